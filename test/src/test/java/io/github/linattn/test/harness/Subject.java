package io.github.linattn.test.harness;

import io.github.linattn.Backend;
import io.github.linattn.LinearAttention;
import io.github.linattn.Plan;
import java.util.List;

/** A backend under test, with the name that reports show. */
public record Subject(String name, Backend backend) {

  /** Whether it computes everything that the operator offers. */
  public boolean isComplete() {
    return backend.name().equals("cpu");
  }

  /** Whether it is a GPU with wgmma. */
  public boolean isHopper() {
    return backend.describe().contains("sm_90");
  }

  /** Whether it computes this forward; what it does not, it must refuse. */
  public boolean does(Case problem) {
    return isComplete() || isPlanned(problem);
  }

  /**
   * Whether kernels of the family chunked are planned for it, or those of the family paper suit.
   */
  private boolean isPlanned(Case problem) {
    try {
      Plan plan = plan(problem, backend);
      return problem.isForPaperKernels()
          || plan.forward().steps().getFirst().startsWith("la_chunked_");
    } catch (UnsupportedOperationException refused) {
      return false;
    }
  }

  /**
   * Whether it computes the gradients of this problem too; for one that it does not, its plan has
   * no steps.
   */
  public static boolean differentiates(Case problem, Backend backend) {
    return backend.name().equals("cpu")
        || plansGradients(problem, backend)
        || (problem.isForPaperKernels() && !problem.goesThroughStates());
  }

  /** Whether kernels of the family chunked are planned for the gradients. */
  public static boolean plansGradients(Case problem, Backend backend) {
    List<String> steps = plan(problem, backend).backward().steps();
    return !steps.isEmpty() && steps.getFirst().startsWith("la_chunked_");
  }

  private static Plan plan(Case problem, Backend backend) {
    LinearAttention attention = problem.operator().on(backend);
    return problem.packing == null
        ? attention.plan(problem.shape, problem.dtype)
        : attention.plan(problem.shape, problem.dtype, problem.packing);
  }

  /** Whether a plan can be of such a problem: a relay is of one sequence. */
  public static boolean canTake(String plan, Case problem) {
    return !plan.endsWith("+") || problem.packing == null;
  }

  @Override
  public String toString() {
    return name;
  }
}
