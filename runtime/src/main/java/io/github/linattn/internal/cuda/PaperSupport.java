package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Tensor;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.Operator;

/**
 * What the {@code paper} kernels can't do, each refused with a sentence that says what they can.
 */
final class PaperSupport {
  /** The kernels load 16 bytes at a time. */
  private static final int ALIGNMENT = 16;

  private static final String SCOPE =
      "; the kernels of the family paper compute causal fp32 attention with Dv = D, as many"
          + " key/value heads as query heads, one sequence per batch row and tensors without gaps,"
          + " the cpu backend the rest";

  private PaperSupport() {}

  static void require(Operator operator, AttentionShape shape, DType dtype, boolean isPacked) {
    refuseIf(!operator.causal(), "not built for the GPU: attention without causality");
    refuseIf(dtype != DType.F32, "not built for the GPU: " + dtype + " tensors");
    refuseIf(
        shape.valueDim() != shape.keyDim(),
        "not built for the GPU: values of width %d beside keys of width %d"
            .formatted(shape.valueDim(), shape.keyDim()));
    refuseIf(
        shape.keyValueHeads() != shape.heads(),
        "not built for the GPU: %d query heads on %d key/value heads"
            .formatted(shape.heads(), shape.keyValueHeads()));
    refuseIf(isPacked, "not built for the GPU: packed sequences");
  }

  static void require(Operator operator, AttentionInput input) {
    require(operator, input.shape(), input.q().dtype(), input.isPacked());
    requireLayout("q", input.q());
    requireLayout("k", input.k());
    requireLayout("v", input.v());
    input
        .initialState()
        .ifPresent(
            state -> {
              requireLayout("initial state S", state.s());
              requireLayout("initial state z", state.z());
              requireLayout("initial state u", state.u());
            });
  }

  static void require(BackwardCall call) {
    require(call.operator(), call.input());
    refuseIf(
        call.finalStateGradient() != null,
        "not built for the GPU: a backward from the gradient of a final state");
    refuseIf(
        call.gradients().initialState().isPresent(),
        "not built for the GPU: the gradient of an initial state (backwardInto does without where"
            + " its gradients have no tensors for it)");
    requireLayout("o", call.output());
    requireLayout("g", call.normalizer());
    requireLayout("dO", call.outputGradient());
    requireLayout("dq", call.gradients().dq());
    requireLayout("dk", call.gradients().dk());
    requireLayout("dv", call.gradients().dv());
    requireLayout("da", call.gradients().da());
    requireLayout("db", call.gradients().db());
  }

  static void requireLayout(String name, Tensor tensor) {
    refuseIf(!tensor.isContiguous(), "not built for the GPU: %s with gaps".formatted(name));
    refuseIf(
        tensor.segment().address() % ALIGNMENT != 0,
        "not built for the GPU: %s that does not start at a multiple of %d bytes"
            .formatted(name, ALIGNMENT));
  }

  private static void refuseIf(boolean condition, String what) {
    if (condition) {
      throw new UnsupportedOperationException(what + SCOPE);
    }
  }
}
