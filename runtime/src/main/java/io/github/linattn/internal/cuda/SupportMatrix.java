package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Diagnostics.Support;
import io.github.linattn.Diagnostics.Task;
import io.github.linattn.Mode;
import io.github.linattn.internal.cuda.ForwardPlan.Step;
import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.Family;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Manifest;
import io.github.linattn.kernelgen.Operation;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Which kernels the planners find in manifests for each kind of GPU, without a GPU. */
public final class SupportMatrix {
  /** A problem that fills a GPU, so that the fastest kernels that it runs are chosen. */
  private static final int BATCH = 4;

  private static final int HEADS = 16;
  private static final int TOKENS = 10_000;

  /** Only the choice between kernels is asked for, and not what it takes. */
  private static final int MULTIPROCESSORS = 132;

  private final List<Manifest> manifests;
  private final Architecture architecture;
  private final Planner planner;
  private final GradientPlanner gradientPlanner;

  private SupportMatrix(List<Manifest> manifests, Architecture architecture) {
    this.manifests = manifests;
    this.architecture = architecture;
    Planner.Built built =
        (operation, technique, headDim, element, precision) ->
            manifests.stream()
                .map(
                    manifest ->
                        manifest.find(
                            operation,
                            technique,
                            headDim,
                            element,
                            precision,
                            architecture.capability()))
                .flatMap(Optional::stream)
                .findFirst();
    GpuTraits gpu =
        new GpuTraits(
            MULTIPROCESSORS,
            architecture.sharedBytes(),
            architecture.capability(),
            Rates.BYTES_PER_MICRO);
    this.planner = new Planner(gpu, built);
    this.gradientPlanner = new GradientPlanner(gpu, built);
  }

  /** An answer for each kind of GPU, head dimension of the manifests, type, mode and task. */
  public static List<Support> of(List<Manifest> manifests) {
    SortedSet<Integer> headDims =
        manifests.stream()
            .flatMap(manifest -> manifest.entries().stream())
            .map(KernelEntry::headDim)
            .filter(headDim -> headDim != 0)
            .collect(Collectors.toCollection(TreeSet::new));
    return Arrays.stream(Architecture.values())
        .filter(each -> each != Architecture.PTX && each != Architecture.SM_90A)
        .map(each -> new SupportMatrix(manifests, each))
        .flatMap(matrix -> matrix.rows(headDims))
        .toList();
  }

  private Stream<Support> rows(SortedSet<Integer> headDims) {
    List<Support> rows = new ArrayList<>();
    for (Task task : Task.values()) {
      for (boolean normalize : new boolean[] {false, true}) {
        for (DType dtype : DType.values()) {
          for (Mode mode : dtype == DType.F32 ? Mode.values() : new Mode[] {Mode.DEFAULT}) {
            for (int headDim : headDims) {
              String kernels = kernels(task, question(task, normalize, dtype, mode, headDim));
              rows.add(
                  new Support(architecture.id(), task, normalize, dtype, mode, headDim, kernels));
            }
          }
        }
      }
    }
    return rows.stream();
  }

  private static Question question(
      Task task, boolean normalize, DType dtype, Mode mode, int headDim) {
    boolean step = task == Task.DECODE_STEP;
    boolean causal = task != Task.NON_CAUSAL_FORWARD && task != Task.NON_CAUSAL_BACKWARD;
    AttentionShape shape = AttentionShape.of(BATCH, HEADS, step ? 1 : TOKENS, headDim);
    return new Question(shape, dtype, mode, causal, normalize, null, step, step, step, true);
  }

  private String kernels(Task task, Question question) {
    boolean backward = task == Task.BACKWARD || task == Task.NON_CAUSAL_BACKWARD;
    Stream<Step> steps =
        backward
            ? gradientPlanner.plan(question).stream()
                .flatMap(plan -> plan.launches().stream())
                .map(GradientPlan.Launch::step)
            : planner.plan(question).stream().flatMap(plan -> plan.steps().stream());
    String techniques =
        steps
            .map(Step::kernel)
            .filter(kernel -> formsOutputs(kernel.operation()))
            .map(kernel -> kernel.technique().id())
            .distinct()
            .collect(Collectors.joining(" + "));
    return techniques.isEmpty() && isPaper(question, backward) ? Family.PAPER.id() : techniques;
  }

  private static boolean formsOutputs(Operation operation) {
    return switch (operation) {
      case FORWARD,
          NORMALIZED_FORWARD,
          STATE_OUTPUTS,
          DECODE,
          QUERY_GRADIENT,
          KEY_VALUE_GRADIENT,
          ONE_SWEEP,
          NORMALIZED_QUERY_GRADIENT,
          NORMALIZED_KEY_VALUE_GRADIENT,
          GRADIENT_OUTPUTS,
          NORMALIZED_GRADIENT_OUTPUTS ->
          true;
      default -> false;
    };
  }

  /** Whether that family does it, which is left what the family chunked cannot do. */
  private boolean isPaper(Question question, boolean backward) {
    Operation operation = backward ? Operation.QUERY_GRADIENT : Operation.FORWARD;
    return question.causal()
        && question.dtype() == DType.F32
        && manifests.stream()
            .map(manifest -> manifest.findPaper(operation, question.shape().keyDim()))
            .flatMap(Optional::stream)
            .anyMatch(
                kernel ->
                    kernel.runsOn(architecture.capability())
                        && kernel.sharedBytes() <= architecture.sharedBytes());
  }
}
