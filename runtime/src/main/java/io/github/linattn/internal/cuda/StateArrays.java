package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.internal.Checkpoints;

/** Device addresses of S, z and u of several states, or of their gradients. */
record StateArrays(long s, long z, long u) {
  /** Of what is zero everywhere. */
  static final StateArrays NONE = new StateArrays(0, 0, 0);

  /** Of states without a gap, one array after the other. */
  static StateArrays at(long address, AttentionShape shape, int slots) {
    long states = (long) shape.batch() * shape.keyValueHeads() * slots * Float.BYTES;
    long z = address + states * shape.keyDim() * shape.valueDim();
    long u = z + states * shape.keyDim();
    return new StateArrays(address, z, u);
  }

  /** Bytes of all of them. */
  static long bytes(AttentionShape shape, int slots) {
    long elements = (long) shape.keyDim() * shape.valueDim() + shape.keyDim() + shape.valueDim();
    return elements * shape.batch() * shape.keyValueHeads() * slots * Float.BYTES;
  }

  /** Bytes of S, of z and of u of one slot of all heads. */
  static StateArrays sizes(AttentionShape shape) {
    return sizes(shape, (long) shape.batch() * shape.keyValueHeads());
  }

  /** The same of one head. */
  static StateArrays sizesOfHead(AttentionShape shape) {
    return sizes(shape, 1);
  }

  private static StateArrays sizes(AttentionShape shape, long heads) {
    long bytes = heads * Float.BYTES;
    return new StateArrays(
        bytes * shape.keyDim() * shape.valueDim(),
        bytes * shape.keyDim(),
        bytes * shape.valueDim());
  }

  /** So many times these sizes further. */
  StateArrays further(StateArrays sizes, int times) {
    return new StateArrays(s + times * sizes.s, z + times * sizes.z, u + times * sizes.u);
  }

  /** Those of a chain before its segment {@code index}, which is not the first. */
  static StateArrays ofChain(Checkpoints kept, AttentionShape shape, int index) {
    long address = kept.memory().segment().address();
    return at(address + (index - 1) * bytes(shape, 1), shape, 1);
  }

  static StateArrays of(AttentionState state) {
    return new StateArrays(address(state.s()), address(state.z()), address(state.u()));
  }

  static StateArrays of(StateGradient gradient) {
    return new StateArrays(address(gradient.ds()), address(gradient.dz()), address(gradient.du()));
  }

  private static long address(Tensor tensor) {
    return tensor.segment().address();
  }
}
