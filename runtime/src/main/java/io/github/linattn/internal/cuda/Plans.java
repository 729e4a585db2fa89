package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.io.Tuning;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * The plans of one device for the family {@code chunked}: each made once, as it was tuned or else
 * as the planner chooses, or as this process asks by a property. Thread-safe.
 */
final class Plans {
  /** Plans are small; a server sees few shapes. */
  private static final int MOST = 1024;

  private static final String AS_TUNED = ", as tuned";

  private final Planner planner;
  private final GradientPlanner gradientPlanner;
  private final Tuning tuning;
  private final String gpu;
  private final Map<Question, Optional<ForwardPlan>> forwards = new ConcurrentHashMap<>();
  private final Map<Question, Optional<ForwardPlan>> keeping = new ConcurrentHashMap<>();
  private final Map<Question, Optional<GradientPlan>> backwards = new ConcurrentHashMap<>();
  private final Map<Question, Optional<Checkpoints.Form>> chains = new ConcurrentHashMap<>();

  /**
   * For one device.
   *
   * @param gpu its name, under which it is tuned
   */
  Plans(Planner planner, GradientPlanner gradientPlanner, Tuning tuning, String gpu) {
    this.planner = planner;
    this.gradientPlanner = gradientPlanner;
    this.tuning = tuning;
    this.gpu = gpu;
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
            ChunkedSupport.suitsTensorMaps(call))
        .summingSlope(call.operator().sumsSlope());
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
        call.gradients().initialState().isPresent(),
        false,
        ChunkedSupport.suitsTensorMaps(call),
        call.operator().sumsSlope(),
        call.lastState() != null,
        !call.operator().causal() && call.finalStateGradient() != null,
        call.checkpoints() == null ? null : call.checkpoints().form());
  }

  /** What a forward keeps beside its last state for a backward, if there is anything. */
  Optional<Checkpoints.Form> checkpoints(Question question) {
    return keeping(question)
        .flatMap(plan -> toKeep(question, plan, () -> chain(ofBackward(question, null))));
  }

  /** What this plan keeps, or else the chain where one pass could be one. */
  private static Optional<Checkpoints.Form> toKeep(
      Question question, ForwardPlan plan, Supplier<Optional<Checkpoints.Form>> chain) {
    boolean mayChain =
        question.keepsForBackward() && question.packing() == null && plan.goesInOnePass();
    return plan.toKeep(question).or(mayChain ? chain : Optional::empty);
  }

  private static Question ofBackward(Question question, Checkpoints.@Nullable Form kept) {
    return question.keeping(question.initialState()).ofBackward(true, kept);
  }

  private Optional<Checkpoints.Form> chain(Question backward) {
    Optional<GradientChoice> choice = GradientChoice.asked();
    return choice.isPresent()
        ? choice
            .filter(asked -> asked.kind() == GradientPlan.Kind.CHAIN)
            .map(GradientChoice::form)
            .filter(form -> form.segment() < backward.shape().tokens())
        : known(chains, backward, gradientPlanner::chain);
  }

  /**
   * Empty where kernels are missing.
   *
   * @param kept what it writes for a backward, as {@link #checkpoints} asks for, or null
   */
  Optional<ForwardPlan> forward(Question question, Checkpoints.@Nullable Form kept) {
    if (kept == null) {
      return forward(question, forwards, asked -> tuned(asked).or(() -> planner.plan(asked)));
    }
    return kept.chained()
        ? known(forwards, question.keeping(kept), planner::plan)
        : keeping(question).map(plan -> plan.into(kept));
  }

  private Optional<ForwardPlan> keeping(Question question) {
    return forward(question, keeping, this::chosenKeeping);
  }

  /** As tuned, where it keeps what is planned to be kept: plans are tuned without. */
  private Optional<ForwardPlan> chosenKeeping(Question question) {
    Optional<ForwardPlan> planned = planned(question);
    Question backward = ofBackward(question, null);
    Supplier<Optional<Checkpoints.Form>> chain =
        () -> known(chains, backward, gradientPlanner::chain);
    return planned.flatMap(
        byModel ->
            tuned(question)
                .filter(
                    asTuned ->
                        toKeep(question, asTuned, chain).equals(toKeep(question, byModel, chain)))
                .or(() -> planned));
  }

  private Optional<ForwardPlan> forward(
      Question question,
      Map<Question, Optional<ForwardPlan>> plans,
      Function<Question, Optional<ForwardPlan>> chosen) {
    Optional<PlanChoice> choice = PlanChoice.asked();
    return choice.isPresent()
        ? Optional.of(
            required(planner.plan(question, choice.get()), question.shape(), choice.get()))
        : known(plans, question, chosen);
  }

  /** Empty where kernels are missing. */
  Optional<GradientPlan> backward(Question question) {
    Optional<GradientChoice> choice = GradientChoice.asked();
    return choice.isPresent()
        ? Optional.of(
            required(gradientPlanner.plan(question, choice.get()), question.shape(), choice.get()))
        : known(backwards, question, this::chosenGradient);
  }

  /** As tuned where that is possible for this very problem. */
  private Optional<ForwardPlan> tuned(Question question) {
    return tuned(question, Tuning.Pass.FORWARD)
        .flatMap(name -> planner.plan(question, PlanChoice.parse(name)))
        .map(plan -> plan.because(plan.reason() + AS_TUNED));
  }

  /** Where it may keep what a backward wants, that with which both together take least. */
  private Optional<ForwardPlan> planned(Question question) {
    boolean hasChoice = question.causal() && question.shape().tokens() > 1;
    if (!hasChoice || !question.keepsForBackward()) {
      return planner.plan(question);
    }
    Question backward = ofBackward(question, null);
    double without = micros(gradientPlanner.plan(backward), 0);
    Optional<Checkpoints.Form> chain = gradientPlanner.chain(backward);
    double inChain =
        chain
            .flatMap(form -> planner.plan(question.keeping(form)))
            .map(ForwardPlan::micros)
            .orElse(0.0);
    Function<Checkpoints.Form, Double> with =
        kept -> Math.min(without, micros(ofKept(question, kept), without));
    Map<Checkpoints.Form, Double> known = new HashMap<>();
    return planner.planWith(
        question,
        plan -> {
          Optional<Checkpoints.Form> kept = toKeep(question, plan, () -> chain);
          boolean chained = kept.filter(Checkpoints.Form::chained).isPresent();
          double forward = chained ? Math.max(plan.micros(), inChain) : plan.micros();
          return forward + kept.map(form -> known.computeIfAbsent(form, with)).orElse(without);
        });
  }

  /** The fastest backward from what is kept; from states of segments, of which many are asked. */
  private Optional<GradientPlan> ofKept(Question question, Checkpoints.Form kept) {
    Question backward = ofBackward(question, kept);
    return kept.chained() || kept.segment() == 0
        ? gradientPlanner.plan(backward)
        : gradientPlanner.planFromKept(backward);
  }

  private static double micros(Optional<GradientPlan> plan, double otherwise) {
    return plan.map(GradientPlan::micros).orElse(otherwise);
  }

  /** As tuned, but from what a forward kept: plans are tuned without. */
  private Optional<GradientPlan> chosenGradient(Question question) {
    Optional<GradientPlan> kept =
        gradientPlanner.plan(question).filter(GradientPlan::startsFromKept);
    return kept.isPresent() ? kept : tunedGradient(question);
  }

  private Optional<GradientPlan> tunedGradient(Question question) {
    return tuned(question, Tuning.Pass.BACKWARD)
        .filter(name -> question.shape().headsPerKeyValueHead() == 1) // as those that are timed
        .flatMap(name -> gradientPlanner.plan(question, GradientChoice.parse(name)))
        .map(plan -> plan.because(plan.reason() + AS_TUNED))
        .or(() -> gradientPlanner.plan(question));
  }

  private Optional<String> tuned(Question question, Tuning.Pass pass) {
    AttentionShape shape = question.shape();
    int tokens = shape.tokens();
    boolean isTuned =
        question.causal()
            && question.packing() == null
            && tokens > 1
            && shape.keyDim() == shape.valueDim();
    if (!isTuned) {
      return Optional.empty();
    }
    var problem =
        new Tuning.Problem(
            gpu, pass, shape.keyDim(), question.dtype(), question.mode(), question.normalize());
    return tuning.find(problem, question.heads(), tokens).map(choice -> choice.name(tokens));
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
