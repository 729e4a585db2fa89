package io.github.linattn.test.harness;

import io.github.linattn.Diagnostics;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.extension.ConditionEvaluationResult;
import org.junit.jupiter.api.extension.ExecutionCondition;
import org.junit.jupiter.api.extension.ExtensionContext;

/** Decides for {@link GpuTest}. */
final class GpuCondition implements ExecutionCondition {
  private static final AtomicBoolean SAID = new AtomicBoolean();

  @Override
  public ConditionEvaluationResult evaluateExecutionCondition(ExtensionContext context) {
    if ("required".equals(System.getProperty("linattn.gpu"))) {
      return ConditionEvaluationResult.enabled("a GPU is required");
    }
    Optional<String> reason = Unusable.REASON;
    if (reason.isEmpty()) {
      return ConditionEvaluationResult.enabled("a GPU is usable");
    }
    if (!SAID.getAndSet(true)) {
      System.out.println("GPU tests are skipped: " + reason.get().lines().findFirst().orElse(""));
    }
    return ConditionEvaluationResult.disabled(reason.get());
  }

  /** Asked once per JVM. */
  private static final class Unusable {
    private static final Optional<String> REASON = ask();

    private static Optional<String> ask() {
      Optional<String> problem = Diagnostics.cudaProblem();
      if (problem.isEmpty() && Diagnostics.kernels().isEmpty()) {
        return Optional.of("this build has no CUDA kernels");
      }
      return problem;
    }
  }
}
