package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionState;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import java.lang.foreign.MemorySegment;

/**
 * Moves the state of a lane, or its gradient, between its tensors and sums whose left side is of k.
 */
final class StateRows {
  private StateRows() {}

  /** The sums from which a lane starts: those of the initial state, or zeros. */
  static OuterSum initial(AttentionInput input, Lane lane) {
    OuterSum sum = new OuterSum(input.shape().keyDim(), input.shape().valueDim());
    input.initialState().ifPresent(state -> load(state.s(), state.z(), state.u(), lane, sum));
    return sum;
  }

  /** dS, dz and du of a lane. */
  static void load(StateGradient gradient, Lane lane, OuterSum sum) {
    load(gradient.ds(), gradient.dz(), gradient.du(), lane, sum);
  }

  private static void load(Tensor s, Tensor z, Tensor u, Lane lane, OuterSum sum) {
    long first = element(s, lane);
    MemorySegment memory = s.segment();
    float[] values = new float[sum.rightWidth];
    for (int row = 0; row < sum.leftWidth; row++) {
      s.dtype().decode(memory, first + row * s.stride(3), values, 0, values.length);
      sum.matrix.setRow(row, values);
    }
    loadRow(z, lane, sum.left);
    loadRow(u, lane, sum.right);
  }

  private static void loadRow(Tensor tensor, Lane lane, double[] target) {
    float[] row = new float[target.length];
    tensor.dtype().decode(tensor.segment(), element(tensor, lane), row, 0, row.length);
    for (int i = 0; i < row.length; i++) {
      target[i] = row[i];
    }
  }

  static void store(OuterSum sum, AttentionState state, Lane lane) {
    store(sum, state.s(), state.z(), state.u(), lane);
  }

  static void store(OuterSum sum, StateGradient gradient, Lane lane) {
    store(sum, gradient.ds(), gradient.dz(), gradient.du(), lane);
  }

  private static void store(OuterSum sum, Tensor s, Tensor z, Tensor u, Lane lane) {
    long first = element(s, lane);
    MemorySegment memory = s.segment();
    float[] values = new float[sum.rightWidth];
    for (int row = 0; row < sum.leftWidth; row++) {
      sum.matrix.getRow(row, values);
      s.dtype().encode(values, 0, memory, first + row * s.stride(3), values.length);
    }
    storeRow(sum.left, z, lane);
    storeRow(sum.right, u, lane);
  }

  private static void storeRow(double[] source, Tensor tensor, Lane lane) {
    float[] row = new float[source.length];
    Tiles.toFloats(source, row);
    tensor.dtype().encode(row, 0, tensor.segment(), element(tensor, lane), row.length);
  }

  private static long element(Tensor tensor, Lane lane) {
    return lane.batch() * tensor.stride(0)
        + lane.keyValueHead() * tensor.stride(1)
        + lane.sequence() * tensor.stride(2);
  }
}
