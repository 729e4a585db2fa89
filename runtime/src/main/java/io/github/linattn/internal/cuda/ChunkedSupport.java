package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionState;
import io.github.linattn.Gradients;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.ForwardCall;
import org.jspecify.annotations.Nullable;

/** What the {@code chunked} kernels ask of memory, refused with a sentence where it is not so. */
final class ChunkedSupport {
  /** The kernels load 16 bytes at a time. */
  private static final int ALIGNMENT = 16;

  private static final String SCOPE =
      "; the cuda backend reads rows that start at multiples of 16 bytes and states without gaps,"
          + " the cpu backend anything";

  private ChunkedSupport() {}

  static void require(ForwardCall call) {
    requireInput(call.input());
    requireRows("o", call.output());
    requireState("final", call.finalState());
  }

  static void require(BackwardCall call) {
    Gradients gradients = call.gradients();
    requireInput(call.input());
    requireRows("o", call.output());
    requireRows("dO", call.outputGradient());
    requireRows("dq", gradients.dq());
    requireRows("dk", gradients.dk());
    requireRows("dv", gradients.dv());
    requireState("final", call.lastState());
    requireWithoutGaps("da", "", gradients.da());
    requireWithoutGaps("db", "", gradients.db());
    requireGradient(" of the final state", call.finalStateGradient());
    requireGradient(" of the initial state", gradients.initialState().orElse(null));
  }

  private static void requireInput(AttentionInput input) {
    requireRows("q", input.q());
    requireRows("k", input.k());
    requireRows("v", input.v());
    requireState("initial", input.initialState().orElse(null));
  }

  private static void requireRows(String name, Tensor tensor) {
    int bytes = tensor.dtype().bytes();
    requireAligned(name, "", tensor);
    for (int axis = 0; axis < tensor.shape().rank() - 1; axis++) {
      if (tensor.shape().extent(axis) > 1 && tensor.stride(axis) * bytes % ALIGNMENT != 0) {
        throw refused(
            "%s with a stride along axis %d that is no multiple of %d bytes"
                .formatted(name, axis, ALIGNMENT));
      }
    }
  }

  private static void requireState(String role, @Nullable AttentionState state) {
    if (state != null) {
      requireWhole(role, " state S", state.s());
      requireWhole(role, " state z", state.z());
      requireWhole(role, " state u", state.u());
    }
  }

  private static void requireGradient(String of, @Nullable StateGradient gradient) {
    if (gradient != null) {
      requireWhole("dS", of, gradient.ds());
      requireWhole("dz", of, gradient.dz());
      requireWhole("du", of, gradient.du());
    }
  }

  /** A name comes in two parts, which are joined for a message alone. */
  private static void requireWithoutGaps(String name, String suffix, Tensor tensor) {
    if (!tensor.isContiguous()) {
      throw refused("%s%s with gaps".formatted(name, suffix));
    }
  }

  private static void requireAligned(String name, String suffix, Tensor tensor) {
    if (tensor.segment().address() % ALIGNMENT != 0) {
      throw refused(
          "%s%s that does not start at a multiple of %d bytes".formatted(name, suffix, ALIGNMENT));
    }
  }

  private static void requireWhole(String name, String suffix, Tensor tensor) {
    requireWithoutGaps(name, suffix, tensor);
    requireAligned(name, suffix, tensor);
  }

  /** Whether the copy engine can read and write the tensors. */
  static boolean suitsTensorMaps(ForwardCall call) {
    AttentionInput input = call.input();
    return suitsTensorMaps(input.q())
        && suitsTensorMaps(input.k())
        && suitsTensorMaps(input.v())
        && suitsTensorMaps(call.output());
  }

  /** Whether it can of a backward. */
  static boolean suitsTensorMaps(BackwardCall call) {
    AttentionInput input = call.input();
    Gradients gradients = call.gradients();
    return suitsTensorMaps(input.q())
        && suitsTensorMaps(input.k())
        && suitsTensorMaps(input.v())
        && suitsTensorMaps(call.output())
        && suitsTensorMaps(call.outputGradient())
        && suitsTensorMaps(gradients.dq())
        && suitsTensorMaps(gradients.dk())
        && suitsTensorMaps(gradients.dv());
  }

  private static boolean suitsTensorMaps(Tensor tensor) {
    for (int axis = 0; axis < tensor.shape().rank() - 1; axis++) {
      long bytes = tensor.stride(axis) * tensor.dtype().bytes();
      if (tensor.shape().extent(axis) > 1 && bytes >= 1L << 40) {
        return false;
      }
    }
    return true;
  }

  private static UnsupportedOperationException refused(String what) {
    return new UnsupportedOperationException("not built for the GPU: " + what + SCOPE);
  }
}
