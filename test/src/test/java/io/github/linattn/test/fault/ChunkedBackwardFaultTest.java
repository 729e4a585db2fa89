package io.github.linattn.test.fault;

import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.catchThrowable;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Forward;
import io.github.linattn.Gradients;
import io.github.linattn.Graph;
import io.github.linattn.LinearAttention;
import io.github.linattn.Mode;
import io.github.linattn.Plan;
import io.github.linattn.Sequences;
import io.github.linattn.StateGradient;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.cuda.CudaException;
import io.github.linattn.cuda.CudaOutOfMemoryException;
import io.github.linattn.internal.cuda.ChunkedStructs;
import io.github.linattn.internal.cuda.GradientStructs;
import java.lang.foreign.MemoryLayout.PathElement;
import java.lang.foreign.StructLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.function.UnaryOperator;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/**
 * Breaks when a backward of the family chunked takes other memory than its plan says, can't be
 * captured, leaks, or passes over a failed CUDA call. Kernels do not compute here.
 */
final class ChunkedBackwardFaultTest extends OnFakeKernels {
  private static final int ILLEGAL_ADDRESS = 700;
  private static final Pattern RELEASE = Pattern.compile("Free|Destroy|Unload|Unregister");
  private static final int MEMORY_ALLOCATION = 2;
  private static final int D = FakeKernels.HEAD_DIM;

  private static LinearAttention.Builder linear() {
    return LinearAttention.builder();
  }

  @Test
  void thePlanSaysWhatIsLaunchedAndTaken() {
    AttentionShape small = AttentionShape.of(1, 2, 64, D);
    AttentionShape large = AttentionShape.of(1, 2, 20_000, D);
    try (BackwardFixture f = new BackwardFixture(large, DType.BF16)) {
      LinearAttention attention = linear().normalizeQueriesAndKeys(true).on(f.gpu);
      Sequences few = Sequences.ofLengths(30, 34);
      Plan.Pass before = attention.plan(small, DType.BF16, few).backward();
      Plan.Pass pass = attention.plan(large, DType.BF16).backward();
      // a list of items, so that the backend has its place for lists, which no call takes
      backwardOfFirst(f, attention, first -> first.packed(few));
      long held = cudart.deviceBytes() - before.workspaceBytes();
      int launches = Math.toIntExact(cudart.launches());
      assertThat(launches).isEqualTo(before.steps().size());
      attention.backwardInto(f.input, f.o, f.g, f.dO, f.gradients);
      assertThat(cudart.deviceBytes() - held).isEqualTo(pass.workspaceBytes());
      assertLaunched(pass, launches);
      assertThat(pass.resultBytes()).isEqualTo(3 * large.q().elements() * 2 + 2 * 2 * 4);
      assertThat(pass.estimatedMicros()).isPositive();
      assertThat(pass.reason()).contains("segments");
      long bytes = cudart.deviceBytes();
      attention.backwardInto(f.input, f.o, f.g, f.dO, f.gradients);
      assertThat(cudart.deviceBytes()).isEqualTo(bytes);
    }
  }

  @Test
  void aPlanOfPackedSequencesSaysWhatIsLaunchedAndTaken() {
    AttentionShape small = AttentionShape.of(1, 2, 64, D);
    AttentionShape shape = AttentionShape.of(1, 2, 20_000, D);
    Sequences packing = Sequences.ofLengths(1, 64, 0, 18_000, 1935);
    try (BackwardFixture f = new BackwardFixture(shape, DType.BF16)) {
      LinearAttention attention = linear().on(f.gpu);
      Sequences few = Sequences.ofLengths(30, 34);
      backwardOfFirst(f, attention, first -> first.packed(few));
      Plan plan = attention.plan(shape, DType.BF16, packing);
      Plan.Pass pass = plan.backward();
      assertThat(plan.forward().resultBytes())
          .isEqualTo(attention.plan(shape, DType.BF16).forward().resultBytes());
      assertThat(pass.steps()).isNotEqualTo(attention.plan(shape, DType.BF16).backward().steps());
      Plan.Pass before = attention.plan(small, DType.BF16, few).backward();
      long held = cudart.deviceBytes() - before.workspaceBytes();
      int launches = Math.toIntExact(cudart.launches());
      attention.backwardInto(f.input.packed(packing), f.o, f.g, f.dO, f.gradients);
      assertThat(cudart.deviceBytes() - held).isEqualTo(pass.workspaceBytes());
      assertLaunched(pass, launches);
    }
    try (Backend gpu = Backend.cuda(0)) {
      LinearAttention keeping = linear().keepState(true).on(gpu);
      long ofState = 2L * (D * D + 2 * D) * Float.BYTES;
      assertThat(keeping.plan(shape, DType.BF16, packing).forward().resultBytes())
          .as("a state for each sequence")
          .isGreaterThanOrEqualTo(
              linear().on(gpu).plan(shape, DType.BF16).forward().resultBytes() + 5 * ofState);
    }
  }

  @Test
  void oneSweepTakesWhatItsPlanSays() {
    AttentionShape small = AttentionShape.of(4, 16, 64, D);
    AttentionShape shape = AttentionShape.of(4, 16, 1000, D);
    try (BackwardFixture f = new BackwardFixture(shape, DType.BF16)) {
      LinearAttention attention = linear().keepState(true).on(f.gpu);
      backwardOfFirst(f, attention);
      Plan.Pass pass = attention.plan(shape, DType.BF16).backward();
      assertThat(pass.reason()).startsWith("one sweep");
      Forward y = f.forward(f.input);
      long before = attention.plan(small, DType.BF16).backward().workspaceBytes();
      long held = cudart.deviceBytes() - before;
      long launches = cudart.launches();
      attention.backwardInto(y, f.dO, null, f.gradients);
      assertThat(cudart.deviceBytes() - held).isEqualTo(pass.workspaceBytes());
      assertThat(cudart.launches() - launches).isEqualTo(pass.steps().size());
      assertThat(pass.steps().getFirst())
          .startsWith(
              "%s: %d blocks"
                  .formatted(cudart.launchKernel(launches), cudart.launchBlocks(launches)));
    }
  }

  @Test
  void aForwardThatCannotKeepItsStatesLeavesNothing() {
    AttentionShape shape = AttentionShape.of(1, 2, 40_000, D);
    try (BackwardFixture f = new BackwardFixture(shape, DType.BF16)) {
      LinearAttention attention = linear().keepState(true).on(f.gpu);
      attention.forward(f.input).close();
      long bytes = cudart.deviceBytes();
      long calls = cudart.calls();
      attention.forward(f.input).close();
      int refused = 0;
      for (int k = 1; k <= cudart.calls() - calls && refused < 6; k++) {
        if (!cudart.call(calls + k - 1).contains("Malloc")) {
          continue;
        }
        refused++;
        long launches = cudart.launches();
        cudart.failAt(k, MEMORY_ALLOCATION);
        assertThatThrownBy(() -> attention.forward(f.input))
            .isInstanceOf(CudaOutOfMemoryException.class);
        cudart.failAt(0, 0);
        assertThat(cudart.launches()).isEqualTo(launches);
        assertThat(cudart.deviceBytes()).as("allocation %d", refused).isEqualTo(bytes);
      }
      assertThat(refused).as("o, g, S, z, u and the states before segments").isEqualTo(6);
    }
  }

  /** Its steps, and no more, since there were so many launches. */
  private static void assertLaunched(Plan.Pass pass, int launches) {
    assertThat(cudart.launches() - launches).isEqualTo(pass.steps().size());
    for (int i = 0; i < pass.steps().size(); i++) {
      assertThat(pass.steps().get(i))
          .startsWith(
              "%s: %d blocks"
                  .formatted(cudart.launchKernel(launches + i), cudart.launchBlocks(launches + i)));
    }
  }

  private static void backwardOfFirst(BackwardFixture f, LinearAttention attention) {
    backwardOfFirst(f, attention, UnaryOperator.identity());
  }

  private static void backwardOfFirst(
      BackwardFixture f, LinearAttention attention, UnaryOperator<AttentionInput> read) {
    attention.backwardInto(
        read.apply(AttentionInput.of(first(f.input.q()), first(f.input.k()), first(f.input.v()))),
        first(f.o),
        first(f.g),
        first(f.dO),
        Gradients.over(
            first(f.gradients.dq()),
            first(f.gradients.dk()),
            first(f.gradients.dv()),
            f.gradients.da(),
            f.gradients.db()));
  }

  private static Tensor first(Tensor tensor) {
    return tensor.sliced(2, 0, 64);
  }

  @Test
  void aRepeatedBackwardOnlyLaunchesUnlessItsStateMovedOn() {
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 100, D), DType.F32)) {
      AttentionState state = f.state(1);
      AttentionInput continued = f.input.from(state);
      LinearAttention attention = linear().mode(Mode.ACCURATE).on(f.gpu);
      Runnable backward =
          () -> attention.backwardInto(continued, f.o, f.g, f.dO, null, f.gradients);
      backward.run();
      long launches = cudart.launches();
      long calls = cudart.calls();
      backward.run();
      assertThat(cudart.launches()).isEqualTo(2 * launches);
      assertThat(cudart.calls() - calls).as("setDevice and launches").isEqualTo(1 + launches);
      attention.forwardInto(continued, f.o, f.g, state);
      long before = cudart.launches();
      backward.run();
      StructLayout hopper = GradientStructs.HOPPER_GRADIENT;
      long gradient = hopper.byteOffset(PathElement.groupElement("gradient"));
      long count = ChunkedStructs.CHUNKED.byteOffset(PathElement.groupElement("initial_count"));
      assertThat(cudart.launchKernel(before)).contains("query_gradient_wgmma");
      assertThat(cudart.launchArguments(before, hopper.byteSize()).get(JAVA_LONG, gradient + count))
          .isEqualTo(100);
    }
  }

  @Test
  void aBackwardIsCapturedAndLaunchedAgain() {
    float[] perHead = {1, 2};
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 5000, D), DType.BF16);
        Stream stream = f.gpu.newStream()) {
      LinearAttention attention = linear().coefficients(perHead, perHead).on(f.gpu, stream);
      try (Graph graph =
          stream.capture(() -> attention.backwardInto(f.input, f.o, f.g, f.dO, f.gradients))) {
        assertThat(cudart.launches()).isZero();
        graph.launch();
        long launches = cudart.launches();
        assertThat(launches).isPositive();
        attention.backwardInto(f.input, f.o, f.g, f.dO, f.gradients);
        assertThat(cudart.launches()).isEqualTo(2 * launches);
      }
    }
    assertThat(cudart.live()).isZero();
  }

  /** Every kind of plan once, and a graph. */
  private static void run() {
    float[] perHead = {1, 2};
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 4096, D), DType.BF16);
        Stream stream = f.gpu.newStream()) {
      LinearAttention attention = linear().coefficients(perHead, perHead).on(f.gpu, stream);
      StateGradient last = f.stateGradient(1);
      Gradients into = f.with(f.stateGradient(1));
      attention.backwardInto(f.input.from(f.state(1)), f.o, f.g, f.dO, last, into);
      linear()
          .causal(false)
          .normalizeQueriesAndKeys(true)
          .on(f.gpu, stream)
          .backwardInto(f.input, f.o, f.g, f.dO, f.gradients);
      try (Graph graph =
          stream.capture(() -> attention.backwardInto(f.input, f.o, f.g, f.dO, f.gradients))) {
        graph.launch();
      }
      stream.synchronize();
    }
  }

  @Test
  void eachFailedCallSurfacesFreesEverythingAndLeavesTheNextRunWhole() {
    run(); // what is asked once per process is asked here
    cudart.reset();
    run();
    List<String> calls = new ArrayList<>();
    for (long i = 0; i < cudart.calls(); i++) {
      calls.add(cudart.call(i));
    }
    assertThat(calls).contains("cudaLaunchKernelExC", "cudaGraphLaunch", "cuTensorMapEncodeTiled");
    for (int k = 1; k <= calls.size(); k++) {
      String call = calls.get(k - 1);
      cudart.reset();
      cudart.failAt(k, ILLEGAL_ADDRESS);
      Throwable thrown = catchThrowable(ChunkedBackwardFaultTest::run);
      cudart.failAt(0, 0);
      String where = "call %d, %s".formatted(k, call);
      if (!RELEASE.matcher(call).find()) {
        assertThat(thrown).as(where).isInstanceOf(CudaException.class).hasMessageContaining(call);
      } else if (thrown != null) { // a release may only warn, but must not become something else
        assertThat(thrown).as(where).isInstanceOf(CudaException.class);
      }
      if (call.equals("cudaLaunchKernelExC")) {
        assertThat(thrown).as(where).hasMessageContaining("backward of ");
      }
      assertThat(cudart.live()).as("left alive after " + where).isZero();
    }
    cudart.reset();
    assertThat(catchThrowable(ChunkedBackwardFaultTest::run)).isNull();
    assertThat(cudart.live()).isZero();
  }
}
