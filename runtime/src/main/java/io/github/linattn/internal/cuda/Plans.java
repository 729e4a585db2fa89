package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.ForwardCall;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;

/**
 * The plans of one device for the family {@code chunked}: each made once, or as this process asks
 * by a property. Thread-safe.
 */
final class Plans {
  /** Plans are small; a server sees few shapes. */
  private static final int MOST = 1024;

  private final Planner planner;
  private final GradientPlanner gradientPlanner;
  private final Map<Question, Optional<ForwardPlan>> forwards = new ConcurrentHashMap<>();
  private final Map<Question, Optional<GradientPlan>> backwards = new ConcurrentHashMap<>();

  Plans(Planner planner, GradientPlanner gradientPlanner) {
    this.planner = planner;
    this.gradientPlanner = gradientPlanner;
  }

  static Question question(ForwardCall call) {
    AttentionState initial = call.input().initialState().orElse(null);
    return new Question(
        call.input().shape(),
        call.input().q().dtype(),
        call.operator().mode(),
        call.operator().causal(),
        call.operator().normalize(),
        call.input().isPacked() ? call.input().sequences() : null,
        initial != null,
        call.finalState() != null,
        initial != null && initial == call.finalState(),
        ChunkedSupport.suitsTensorMaps(call));
  }

  static Question question(BackwardCall call) {
    return new Question(
        call.input().shape(),
        call.input().q().dtype(),
        call.operator().mode(),
        call.operator().causal(),
        call.operator().normalize(),
        call.input().isPacked() ? call.input().sequences() : null,
        call.input().initialState().isPresent(),
        call.finalStateGradient() != null || call.gradients().initialState().isPresent(),
        false,
        ChunkedSupport.suitsTensorMaps(call));
  }

  /** Empty where kernels are missing. */
  Optional<ForwardPlan> forward(Question question) {
    Optional<PlanChoice> choice = PlanChoice.asked();
    return choice.isPresent()
        ? Optional.of(
            required(planner.plan(question, choice.get()), question.shape(), choice.get()))
        : known(forwards, question, planner::plan);
  }

  /** Empty where kernels are missing. */
  Optional<GradientPlan> backward(Question question) {
    Optional<GradientChoice> choice = GradientChoice.asked();
    return choice.isPresent()
        ? Optional.of(
            required(gradientPlanner.plan(question, choice.get()), question.shape(), choice.get()))
        : known(backwards, question, gradientPlanner::plan);
  }

  private static <T> T required(Optional<T> plan, AttentionShape shape, Object choice) {
    return plan.orElseThrow(
        () -> new UnsupportedOperationException("no plan for %s is %s".formatted(shape, choice)));
  }

  private static <T> Optional<T> known(
      Map<Question, Optional<T>> plans,
      Question question,
      Function<Question, Optional<T>> planner) {
    if (plans.size() > MOST) {
      plans.clear();
    }
    return plans.computeIfAbsent(question, planner);
  }
}
