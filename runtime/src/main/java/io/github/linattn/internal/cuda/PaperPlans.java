package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.Plan;
import io.github.linattn.internal.Operator;
import io.github.linattn.kernelgen.Operation;
import java.util.ArrayList;
import java.util.List;

/** What {@link PaperPass} would run and take. */
final class PaperPlans {
  private final Kernels kernels;

  PaperPlans(Kernels kernels) {
    this.kernels = kernels;
  }

  Plan.Pass forward(Operator operator, AttentionShape shape, long resultBytes) {
    List<String> steps = new ArrayList<>(normalizationSteps(operator, shape));
    steps.add(symbol(Operation.FORWARD, shape));
    return new Plan.Pass(steps, resultBytes, unitRowBytes(operator, shape));
  }

  Plan.Pass backward(Operator operator, AttentionShape shape, long resultBytes) {
    List<String> steps = new ArrayList<>(normalizationSteps(operator, shape));
    steps.add(symbol(Operation.VALUE_CENTER, shape));
    steps.add(symbol(Operation.ROW_DOT, shape));
    steps.add(symbol(Operation.QUERY_GRADIENT, shape));
    steps.add(symbol(Operation.COEFFICIENT_GRADIENT, shape));
    steps.add(symbol(Operation.KEY_GRADIENT, shape));
    steps.add(symbol(Operation.VALUE_GRADIENT, shape));
    if (operator.normalize()) {
      steps.add(symbol(Operation.NORMALIZE_GRADIENT, shape) + " on dq and dk");
    }
    int tiles = kernels.entry(Operation.QUERY_GRADIENT, shape.keyDim()).tiles();
    long centers = PaperPass.centerBytes(shape.coefficients().elements(), shape.valueDim());
    long deltas = shape.normalizer().elements() * Float.BYTES;
    long partials = PaperPass.partialBytes(shape.coefficients().elements(), tiles);
    long workspace = unitRowBytes(operator, shape) + centers + deltas + partials;
    return new Plan.Pass(steps, resultBytes, workspace);
  }

  private List<String> normalizationSteps(Operator operator, AttentionShape shape) {
    return operator.normalize()
        ? List.of(symbol(Operation.NORMALIZE, shape) + " of q and k")
        : List.of();
  }

  private String symbol(Operation operation, AttentionShape shape) {
    return kernels.entry(operation, shape.keyDim()).symbol();
  }

  /** Of q and k. */
  private static long unitRowBytes(Operator operator, AttentionShape shape) {
    long units = operator.normalize() ? shape.q().elements() + shape.k().elements() : 0;
    return units * Float.BYTES;
  }
}
