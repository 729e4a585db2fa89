package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionState;
import io.github.linattn.Tensor;
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
    AttentionInput input = call.input();
    requireRows("q", input.q());
    requireRows("k", input.k());
    requireRows("v", input.v());
    requireRows("o", call.output());
    requireState("initial", input.initialState().orElse(null));
    requireState("final", call.finalState());
  }

  private static void requireRows(String name, Tensor tensor) {
    int bytes = tensor.dtype().bytes();
    refuseIf(
        tensor.segment().address() % ALIGNMENT != 0,
        "not built for the GPU: %s that does not start at a multiple of %d bytes"
            .formatted(name, ALIGNMENT));
    for (int axis = 0; axis < tensor.shape().rank() - 1; axis++) {
      refuseIf(
          tensor.shape().extent(axis) > 1 && tensor.stride(axis) * bytes % ALIGNMENT != 0,
          "not built for the GPU: %s with a stride along axis %d that is no multiple of %d bytes"
              .formatted(name, axis, ALIGNMENT));
    }
  }

  private static void requireState(String role, @Nullable AttentionState state) {
    if (state != null) {
      requireWhole(role + " state S", state.s());
      requireWhole(role + " state z", state.z());
      requireWhole(role + " state u", state.u());
    }
  }

  private static void requireWhole(String name, Tensor tensor) {
    refuseIf(!tensor.isContiguous(), "not built for the GPU: %s with gaps".formatted(name));
    refuseIf(
        tensor.segment().address() % ALIGNMENT != 0,
        "not built for the GPU: %s that does not start at a multiple of %d bytes"
            .formatted(name, ALIGNMENT));
  }

  /** Whether the copy engine can read and write the tensors. */
  static boolean suitsTensorMaps(ForwardCall call) {
    AttentionInput input = call.input();
    return suitsTensorMaps(input.q())
        && suitsTensorMaps(input.k())
        && suitsTensorMaps(input.v())
        && suitsTensorMaps(call.output());
  }

  private static boolean suitsTensorMaps(Tensor tensor) {
    for (int axis = 0; axis < tensor.shape().rank() - 1; axis++) {
      long bytes = tensor.stride(axis) * tensor.dtype().bytes();
      if (tensor.shape().extent(axis) > 1 && (bytes == 0 || bytes >= 1L << 40)) {
        return false;
      }
    }
    return true;
  }

  private static void refuseIf(boolean condition, String what) {
    if (condition) {
      throw new UnsupportedOperationException(what + SCOPE);
    }
  }
}
