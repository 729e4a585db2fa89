package io.github.linattn.test.fault;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.DType;
import io.github.linattn.Forward;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.Plan;
import io.github.linattn.Sequences;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.cuda.CudaException;
import io.github.linattn.internal.cuda.ChunkedStructs;
import io.github.linattn.internal.cuda.GradientStructs;
import java.lang.foreign.MemoryLayout.PathElement;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/**
 * Breaks when one sweep, a chain of such sweeps, or one of all segments at once, launches other
 * kernels, or with other arguments, than its plan asks for. Kernels do not compute here.
 */
final class ChunkedOneSweepTest extends BackwardLaunches {
  private static final int LAUNCH_OUT_OF_RESOURCES = 701;
  private static final StructLayout ONE_SWEEP = GradientStructs.HOPPER_ONE_SWEEP;

  @Test
  void oneSweepHasBothTasksAndTheStates() {
    System.setProperty(PLAN, "one_sweep");
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(2, 3, 200, D), DType.BF16)) {
      AttentionState first = f.state(1);
      StateGradient last = f.stateGradient(1);
      StateGradient initial = f.stateGradient(1);
      Forward y = f.forward(f.input.from(first));
      LinearAttention attention = linear().coefficients(2, 3).keepState(true).on(f.gpu);
      attention.backwardInto(y, f.dO, last, f.with(initial));
      assertThat(kernels(0, Math.toIntExact(cudart.launches())))
          .containsExactly("one_sweep_gradient_wgmma_d128", "gradient_recurrence_simt");
      assertThat(cudart.launchBlocks(0)).as("of dk and of dv").isEqualTo(6 * 2);
      assertThat(cudart.launchCluster(0)).isEqualTo(2);
      assertThat(cudart.launchedEarly(0)).isTrue();
      Tensor q = f.input.q();
      Tensor k = f.input.k();
      Tensor v = f.input.v();
      assertThat(mapped(0, 0, 5))
          .as("x, y, z, out of dk, then o")
          .containsExactly(
              address(v), address(f.dO), address(q), address(f.gradients.dk()), address(f.o));
      assertThat(mapped(0, 1, 4))
          .as("x, y, z, out of dv")
          .containsExactly(address(k), address(q), address(f.dO), address(f.gradients.dv()));
      MemorySegment sweep = arguments(0, ONE_SWEEP);
      long map = ONE_SWEEP.byteOffset(PathElement.groupElement("query_gradient"));
      assertThat(sweep.get(JAVA_LONG, map + 24)).isEqualTo(address(f.gradients.dq()));
      AttentionState kept = y.state().orElseThrow();
      assertThat(number(sweep, ONE_SWEEP, "last_state")).isEqualTo(address(kept.s()));
      assertThat(number(sweep, ONE_SWEEP, "last_key_sum")).isEqualTo(address(kept.z()));
      assertThat(number(sweep, ONE_SWEEP, "first_state")).isEqualTo(address(first.s()));
      assertThat(number(sweep, ONE_SWEEP, "first_key_sum")).isEqualTo(address(first.z()));
      assertThat(number(sweep, ONE_SWEEP, "first_value_sum")).isEqualTo(address(first.u()));
      MemorySegment repair = arguments(1, REPAIR);
      assertThat(count(repair, REPAIR, "count")).isEqualTo(3);
      long delta = number(repair, GRADIENT, "delta");
      long partials = number(repair, GRADIENT, "partials");
      for (int task = 0; task < 2; task++) {
        MemorySegment struct = hopperTask(0, task);
        assertThat(count(struct, GRADIENT, "task")).isEqualTo(1 + task);
        assertThat(count(struct, GRADIENT, "tasks")).isEqualTo(2);
        assertThat(number(struct, GRADIENT, "delta")).isNotZero().isEqualTo(delta);
        assertThat(number(struct, GRADIENT, "partials")).isNotZero().isEqualTo(partials);
        assertThat(number(struct, CHUNKED, "state_in")).isEqualTo(address(last.ds()));
        assertThat(count(struct, CHUNKED, "turns")).isEqualTo(1);
        MemorySegment repaired = repair.asSlice((1 + task) * GRADIENT.byteSize(), GRADIENT);
        assertThat(number(repaired, CHUNKED, "marks")).isEqualTo(number(struct, CHUNKED, "marks"));
        assertThat(views(repaired)).isEqualTo(views(struct));
      }
      assertThat(number(hopperTask(0, 0), CHUNKED, "value_sum_in")).isEqualTo(address(last.dz()));
      assertThat(number(hopperTask(0, 1), CHUNKED, "value_sum_in")).isEqualTo(address(last.du()));
      assertThat(number(hopperTask(0, 1), CHUNKED, "state_out")).isEqualTo(address(initial.ds()));
      assertThat(views(repair))
          .as("of dq")
          .containsExactly(address(f.dO), address(v), address(k), address(f.gradients.dq()));
      assertThat(number(repair, CHUNKED, "state_in")).isEqualTo(address(first.s()));
      assertThat(number(repair, CHUNKED, "marks"))
          .isNotZero()
          .isEqualTo(number(sweep, ONE_SWEEP, "query_marks"));
      MemorySegment sums = coefficients(1);
      assertThat(number(sums, COEFFICIENTS, "partials")).isEqualTo(partials);
      assertThat(count(sums, COEFFICIENTS, "count")).as("tiles").isEqualTo(2);
    }
  }

  @Test
  void packedSequencesTakeTwoSweepsWhateverIsKept() {
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 195, D), DType.BF16)) {
      backwardFrom(f.forward(f.input.packed(Sequences.ofLengths(0, 1, 64, 130))), f);
      assertThat(kernels(0, 1)).noneMatch(kernel -> kernel.contains("one_sweep"));
    }
  }

  @Test
  void theStateOfTheForwardMakesItOneSweep() {
    AttentionShape shape = AttentionShape.of(4, 16, 1000, D);
    try (BackwardFixture f = new BackwardFixture(shape, DType.BF16)) {
      Forward y = f.forward(f.input);
      AttentionState kept = y.state().orElseThrow();
      AttentionState moved = AttentionState.over(kept.s(), kept.z(), kept.u(), 1001);
      backwardFrom(y, f);
      backwardFrom(Forward.over(f.input, f.o, f.g, moved), f);
      backwardFrom(Forward.over(f.input, f.o, f.g, null), f);
      assertThat(kernels(0, 8))
          .as("from the state, from one that moved on, from none")
          .containsExactly(
              "one_sweep_gradient_wgmma_d128",
              "gradient_recurrence_simt",
              "query_gradient_wgmma_d128",
              "key_value_gradient_wgmma_d128",
              "gradient_recurrence_simt",
              "query_gradient_wgmma_d128",
              "key_value_gradient_wgmma_d128",
              "gradient_recurrence_simt");
      LinearAttention.Builder keeping = linear().keepState(true);
      assertThat(keeping.on(f.gpu).plan(shape, DType.BF16).describe())
          .contains("one_sweep_gradient", "one sweep: 1 items of up to 1000 tokens")
          .doesNotContain("query_gradient");
      assertThat(linear().on(f.gpu).plan(shape, DType.BF16).backward().reason())
          .contains("two sweeps", "from the state that a forward keeps one sweep");
      assertThat(keeping.coefficients(1, 0.06f).on(f.gpu).plan(shape, DType.BF16).describe())
          .as("db is summed")
          .contains("two sweeps")
          .doesNotContain("one sweep");
    }
  }

  /** Of equal lengths, so that the state counts the same tokens after each. */
  @Test
  void aStateIsOfTheForwardThatWroteItLast() {
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(4, 16, 1000, D), DType.BF16);
        BackwardFixture other = new BackwardFixture(f.input.shape(), DType.BF16)) {
      LinearAttention attention = linear().on(f.gpu);
      AttentionState shared = f.state(1);
      Forward first = Forward.over(f.input, f.o, f.g, shared);
      Forward second = Forward.over(f.input, other.o, other.g, shared);
      attention.forwardInto(first);
      expectOneSweep(true, attention, first, f);
      attention.forwardInto(second);
      expectOneSweep(false, attention, first, f);
      expectOneSweep(true, attention, second, f);
      attention.forwardInto(f.input, f.o, f.g, shared);
      expectOneSweep(false, attention, first, f);
      expectOneSweep(false, attention, second, f);
      Forward third = Forward.over(f.input, f.o, f.g, shared);
      expectOneSweep(true, attention, third, f);
      attention.forwardInto(first);
      expectOneSweep(true, attention, first, f);
      expectOneSweep(false, attention, third, f);
    }
  }

  @Test
  void aForwardThatEndsHalfwayMayHaveWrittenTheState() {
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(4, 16, 1000, D), DType.BF16);
        BackwardFixture other = new BackwardFixture(f.input.shape(), DType.BF16)) {
      LinearAttention attention = linear().on(f.gpu);
      AttentionState shared = f.state(1);
      Forward first = Forward.over(f.input, f.o, f.g, shared);
      Forward second = Forward.over(f.input, other.o, other.g, shared);
      for (int i = 0; i < 2; i++) { // the second time as a call that is repeated
        attention.forwardInto(second);
        attention.forwardInto(first);
        expectOneSweep(true, attention, first, f);
        cudart.failAt("cudaLaunchKernelExC", 2, LAUNCH_OUT_OF_RESOURCES);
        assertThatThrownBy(() -> attention.forwardInto(second)).isInstanceOf(CudaException.class);
        expectOneSweep(false, attention, first, f);
      }
    }
  }

  private static void expectOneSweep(
      boolean expected, LinearAttention attention, Forward y, BackwardFixture f) {
    int at = Math.toIntExact(cudart.launches());
    attention.backwardInto(y, f.dO, null, f.gradients);
    assertThat(kernels(at, 1).getFirst().startsWith("one_sweep")).isEqualTo(expected);
  }

  @Test
  void aChainPassesStatesAndTheirGradientsFromSegmentToSegment() {
    System.setProperty(PLAN, "one_sweep:128");
    AttentionShape shape = AttentionShape.of(2, 3, 300, D);
    long state = 4L * 6 * (D * D + 2 * D);
    try (BackwardFixture f = new BackwardFixture(shape, DType.BF16)) {
      AttentionState first = f.state(1);
      AttentionInput from = f.input.from(AttentionState.over(first.s(), first.z(), first.u(), 37));
      StateGradient finalGradient = f.stateGradient(1);
      StateGradient firstGradient = f.stateGradient(1);
      LinearAttention attention = linear().keepState(true).on(f.gpu);
      Plan plan = attention.plan(shape, DType.BF16);
      try (Forward y = attention.forward(from)) {
        assertThat(kernels(0, 6))
            .containsExactly(
                "forward_wgmma_d128",
                "recurrence_simt",
                "forward_wgmma_d128",
                "recurrence_simt",
                "forward_wgmma_d128",
                "recurrence_simt");
        assertThat(plan.forward().steps()).hasSize(6);
        assertThat(plan.describe().lines().filter(line -> line.endsWith(", 3 times"))).hasSize(4);
        List<MemorySegment> forwards =
            IntStream.of(0, 2, 4).mapToObj(launch -> hopperForward(launch)).toList();
        assertThat(forwards)
            .extracting(each -> number(each, CHUNKED, "initial_count"))
            .containsExactly(37L, 165L, 293L);
        assertThat(forwards)
            .extracting(each -> count(each, CHUNKED, "tokens"))
            .containsExactly(128, 128, 44);
        long kept = number(forwards.get(1), CHUNKED, "state_in");
        assertThat(number(forwards.get(0), CHUNKED, "state_in")).isEqualTo(address(first.s()));
        assertThat(number(forwards.get(0), CHUNKED, "state_out")).isEqualTo(kept);
        assertThat(number(forwards.get(1), CHUNKED, "state_out")).isEqualTo(kept + state);
        assertThat(number(forwards.get(2), CHUNKED, "state_in")).isEqualTo(kept + state);
        AttentionState last = y.state().orElseThrow();
        assertThat(number(forwards.get(2), CHUNKED, "state_out")).isEqualTo(address(last.s()));
        assertThat(plan.forward().resultBytes())
            .isEqualTo(
                linear().keepState(false).on(f.gpu).plan(shape, DType.BF16).forward().resultBytes()
                    + state
                    + 2 * state);

        int at = Math.toIntExact(cudart.launches());
        long held = cudart.deviceBytes() - plan.forward().workspaceBytes() - 2 * 256;
        Gradients into = f.with(firstGradient);
        attention.backwardInto(y, f.dO, finalGradient, into);
        assertThat(cudart.deviceBytes() - held).isEqualTo(plan.backward().workspaceBytes());
        assertThat(cudart.launches() - at).isEqualTo(plan.backward().steps().size()).isEqualTo(6);
        long later = 0;
        for (int i = 2; i >= 0; i--) {
          int launch = at + 2 * (2 - i);
          assertThat(kernels(launch, 2))
              .containsExactly("one_sweep_gradient_wgmma_d128", "gradient_recurrence_simt");
          MemorySegment sweep = arguments(launch, ONE_SWEEP);
          MemorySegment values = hopperTask(launch, 1);
          String segment = "segment " + i;
          assertThat(number(sweep, ONE_SWEEP, "first_state"))
              .as(segment)
              .isEqualTo(i == 0 ? address(first.s()) : kept + (i - 1) * state);
          assertThat(number(sweep, ONE_SWEEP, "last_state"))
              .as(segment)
              .isEqualTo(i == 2 ? address(last.s()) : kept + i * state);
          assertThat(number(values, CHUNKED, "state_in"))
              .as(segment)
              .isEqualTo(i == 2 ? address(finalGradient.ds()) : later);
          later = number(values, CHUNKED, "state_out");
          assertThat(later)
              .as(segment)
              .isNotEqualTo(number(values, CHUNKED, "state_in"))
              .isNotZero();
          assertThat(number(values, CHUNKED, "initial_count")).isEqualTo(37 + i * 128);
          assertThat(number(values, CHUNKED, "query"))
              .isEqualTo(address(f.input.k()) + i * 128L * D * 2);
          assertThat(count(arguments(launch + 1, REPAIR), REPAIR, "adds"))
              .as("da and db of %s", segment)
              .isEqualTo(i == 2 ? 0 : 1);
        }
        assertThat(later).isEqualTo(address(firstGradient.ds()));
        repeats(attention, y, f, finalGradient, into);
      }
    }
  }

  /** Where blocks come in rounds. Each item knows how many tokens are before it, by call. */
  @Test
  void segmentsOfAChainHandStatesOn() {
    cudart.multiprocessors(4);
    System.setProperty(PLAN, "one_sweep:4096");
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 3, 8192, D), DType.BF16)) {
      AttentionState first = f.state(1);
      LinearAttention attention = linear().keepState(true).on(f.gpu);
      try (Forward y = attention.forward(f.input.from(first))) {
        for (long before : new long[] {0, 8192, 16_384}) {
          int at = Math.toIntExact(cudart.launches());
          attention.forwardInto(y);
          backwardFrom(y, f);
          expectCountsOfRelays(at, before);
          linear().on(f.gpu).forwardInto(f.input.from(first), f.o, f.g, first);
        }
      }
    }
    assertThat(cudart.live()).isZero();
  }

  /** Of the forwards of two segments, and behind them of one sweep of the last and of the first. */
  private static void expectCountsOfRelays(int at, long before) {
    List<MemorySegment> relays =
        List.of(
            hopperForward(at), hopperForward(at + 2), hopperTask(at + 6, 0), hopperTask(at + 4, 1));
    for (int i = 0; i < relays.size(); i++) {
      MemorySegment relay = relays.get(i);
      assertThat(number(relay, CHUNKED, "tickets")).isNotZero();
      assertThat(count(relay, CHUNKED, "num_items")).isEqualTo(2);
      long start = before + i % 2 * 4096;
      assertThat(countsOfItems(relay)).containsExactly(start, start + 2048);
    }
  }

  private static List<Long> countsOfItems(MemorySegment chunked) {
    int items = count(chunked, CHUNKED, "num_items");
    long bytes = ChunkedStructs.ITEM.byteSize();
    MemorySegment list =
        MemorySegment.ofAddress(number(chunked, CHUNKED, "items")).reinterpret(items * bytes);
    long count = ChunkedStructs.ITEM.byteOffset(PathElement.groupElement("count"));
    return IntStream.range(0, items)
        .mapToObj(item -> list.get(JAVA_LONG, item * bytes + count))
        .toList();
  }

  @Test
  void aChainMayEndWithOneToken() {
    System.setProperty(PLAN, "one_sweep:128");
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(2, 3, 129, D), DType.BF16);
        Forward y = linear().keepState(true).on(f.gpu).forward(f.input)) {
      assertThat(kernels(0, 3))
          .containsExactly("forward_wgmma_d128", "recurrence_simt", "decode_simt");
      assertThat(number(arguments(2, CHUNKED), CHUNKED, "tickets")).isNotZero();
      backwardFrom(y, f);
      assertThat(kernels(3, 4)).filteredOn(each -> each.startsWith("one_sweep")).hasSize(2);
    }
  }

  /** The same call looks nothing up, and its initial state may have moved on. */
  private static void repeats(
      LinearAttention attention,
      Forward y,
      BackwardFixture f,
      StateGradient finalGradient,
      Gradients into) {
    int at = Math.toIntExact(cudart.launches());
    long bytes = cudart.deviceBytes();
    attention.forwardInto(y);
    attention.backwardInto(y, f.dO, finalGradient, into);
    assertThat(cudart.launches() - at).isEqualTo(12);
    assertThat(number(hopperForward(at + 4), CHUNKED, "initial_count")).isEqualTo(293);
    assertThat(number(hopperTask(at + 6, 1), CHUNKED, "initial_count")).isEqualTo(293);
    assertThat(cudart.deviceBytes()).isEqualTo(bytes);
  }

  private static MemorySegment hopperForward(int launch) {
    StructLayout hopper = ChunkedStructs.HOPPER;
    return arguments(launch, hopper)
        .asSlice(hopper.byteOffset(PathElement.groupElement("chunked")), CHUNKED);
  }

  @Test
  void aChunkOrLessIsOneSweepWithoutAState() {
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(2, 3, 64, D), DType.BF16)) {
      f.backward(linear());
      assertThat(kernels(0, 2))
          .containsExactly("one_sweep_gradient_wgmma_d128", "gradient_recurrence_simt");
      assertThat(number(arguments(0, ONE_SWEEP), ONE_SWEEP, "last_state")).isZero();
    }
  }

  @Test
  void aStateThatDoesNotFitIsRefused() {
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 100, D), DType.BF16)) {
      AttentionState narrow = f.gpu.newState(AttentionShape.of(1, 1, 100, D), 1);
      AttentionState wrong = AttentionState.over(narrow.s(), narrow.z(), narrow.u(), 100);
      assertThatThrownBy(() -> backwardFrom(Forward.over(f.input, f.o, f.g, wrong), f))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("the final state must have S [1, 2, 1, 128, 128]");
      narrow.close();
      StateGradient first = f.stateGradient(1);
      AttentionState over = AttentionState.over(first.ds(), first.dz(), first.du(), 100);
      assertThatThrownBy(
              () ->
                  linear()
                      .on(f.gpu)
                      .backwardInto(
                          Forward.over(f.input, f.o, f.g, over), f.dO, null, f.with(first)))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("dS of the initial state is written and overlaps final state S");
    }
  }

  /** What is left of S and the sums go on from the last item, and the state before is at hand. */
  @Test
  void blocksOfOneSweepHandStatesOn() {
    System.setProperty(PLAN, "one_sweep:128+");
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(2, 4, 300, D), DType.BF16)) {
      Forward y = f.forward(f.input.from(f.state(1)));
      Gradients into = f.with(f.stateGradient(1));
      linear().keepState(true).on(f.gpu).backwardInto(y, f.dO, f.stateGradient(1), into);
      assertThat(kernels(0, 2))
          .containsExactly("one_sweep_gradient_wgmma_d128", "gradient_recurrence_simt");
      assertThat(cudart.launchBlocks(0)).isEqualTo(8 * 3 * 2);
      MemorySegment sweep = arguments(0, ONE_SWEEP);
      MemorySegment key = hopperTask(0, 0);
      MemorySegment value = hopperTask(0, 1);
      long slot = 8L * D * D * Float.BYTES;
      for (MemorySegment task : List.of(key, value)) {
        assertThat(count(task, CHUNKED, "num_items")).isEqualTo(3);
        assertThat(count(task, CHUNKED, "turns")).isEqualTo(1);
        assertThat(number(task, CHUNKED, "items")).isNotZero();
        assertThat(number(task, CHUNKED, "tickets")).isNotZero();
        assertThat(number(task, CHUNKED, "state_out") - number(task, CHUNKED, "state_in"))
            .isEqualTo(slot);
      }
      assertThat(number(key, CHUNKED, "tickets")).isNotEqualTo(number(value, CHUNKED, "tickets"));
      assertThat(number(key, CHUNKED, "key_sum_in")).isZero();
      assertThat(number(value, CHUNKED, "key_sum_out") - number(value, CHUNKED, "key_sum_in"))
          .isEqualTo(slot / D);
      long left = number(sweep, ONE_SWEEP, "first_state");
      assertThat(left - number(sweep, ONE_SWEEP, "last_state")).isEqualTo(slot);
      assertThat(
              number(sweep, ONE_SWEEP, "first_key_sum") - number(sweep, ONE_SWEEP, "last_key_sum"))
          .isEqualTo(slot / D);
      MemorySegment repair = arguments(1, REPAIR);
      assertThat(number(repair, CHUNKED, "state_in"))
          .as("before the first token")
          .isEqualTo(left + 2 * slot);
      assertThat(number(repair, CHUNKED, "key_sum_in"))
          .as("u")
          .isEqualTo(number(sweep, ONE_SWEEP, "first_value_sum") + 2 * slot / D);
      for (int task = 0; task < 3; task++) {
        MemorySegment repaired = repair.asSlice(task * GRADIENT.byteSize(), GRADIENT);
        assertThat(count(repaired, CHUNKED, "num_items")).isEqualTo(1);
        assertThat(count(repaired, CHUNKED, "turns")).as("marks of items").isEqualTo(3);
        assertThat(number(repaired, CHUNKED, "tickets")).isZero();
      }
      assertThat(count(coefficients(1), COEFFICIENTS, "count")).isEqualTo(3 * 2);
    }
    assertThat(cudart.live()).isZero();
  }

  /**
   * States between stages stand in two places in turn, and go from there to where they are kept.
   */
  @Test
  void aForwardInStagesKeepsTheStatesOfSegmentsSweptAtOnce() {
    System.setProperty(FORWARD_PLAN, "wgmma:4096/");
    System.setProperty(PLAN, "one_sweep:4096*");
    AttentionShape shape = AttentionShape.of(1, 4, 10_000, D);
    long state = 4L * 4 * (D * D + 2 * D);
    for (boolean continues : new boolean[] {false, true}) {
      cudart.reset();
      try (BackwardFixture f = new BackwardFixture(shape, DType.BF16)) {
        AttentionState first = f.state(1);
        AttentionInput input = continues ? f.input.from(first) : f.input;
        LinearAttention attention = linear().keepState(true).on(f.gpu);
        try (Forward y = attention.forward(input)) {
          List<String> part = List.of("forward_wgmma_d128", "recurrence_simt");
          List<String> later = List.of(part.get(0), part.get(1), "state_scan_simt");
          assertThat(kernels(0, continues ? 9 : 8))
              .isEqualTo(
                  Stream.of(continues ? later : part, later, later).flatMap(List::stream).toList());
          int second = continues ? 3 : 2;
          MemorySegment head = hopperForward(0);
          MemorySegment middle = hopperForward(second);
          MemorySegment tail = hopperForward(second + 3);
          long handedOn = number(head, CHUNKED, "state_out");
          assertThat(number(head, CHUNKED, "state_in"))
              .isEqualTo(continues ? address(first.s()) : 0);
          assertThat(number(middle, CHUNKED, "state_in")).isEqualTo(handedOn);
          assertThat(Math.abs(number(middle, CHUNKED, "state_out") - handedOn)).isEqualTo(state);
          assertThat(number(tail, CHUNKED, "state_in"))
              .isEqualTo(number(middle, CHUNKED, "state_out"));
          AttentionState last = y.state().orElseThrow();
          assertThat(number(tail, CHUNKED, "state_out")).isEqualTo(address(last.s()));
          MemorySegment scan = arguments(second + 2, SCAN);
          assertThat(number(scan, SCAN, "state_in")).isEqualTo(handedOn);
          assertThat(number(scan, SCAN, "state_out")).isZero();
          assertThat(count(scan, SCAN, "num_items")).as("places").isEqualTo(3);
          assertThat(span(scan)).containsExactly(1, 1);
          assertThat(span(arguments(second + 5, SCAN))).containsExactly(2, 1);
          long kept = number(scan, SCAN, "state");
          assertThat(number(arguments(second + 5, SCAN), SCAN, "state")).isEqualTo(kept);

          int at = Math.toIntExact(cudart.launches());
          attention.backwardInto(y, f.dO, null, f.gradients);
          assertThat(kernels(at, 5))
              .containsExactly(
                  "gradient_rows_simt",
                  "gradient_sums_wgmma_d128",
                  "state_scan_simt",
                  "one_sweep_gradient_wgmma_d128",
                  "gradient_recurrence_simt");
          MemorySegment sweep = arguments(at + 3, ONE_SWEEP);
          assertThat(number(sweep, ONE_SWEEP, "first_state")).isEqualTo(kept);
          assertThat(number(sweep, ONE_SWEEP, "end_state")).isEqualTo(address(last.s()));
          int again = Math.toIntExact(cudart.launches());
          attention.forwardInto(y);
          assertThat(cudart.launches() - again).isEqualTo(at);
          assertThat(number(arguments(again + second + 2, SCAN), SCAN, "state")).isEqualTo(kept);
        }
        int at = Math.toIntExact(cudart.launches());
        attention.forwardInto(input, f.o, f.g, f.state(1));
        assertThat(cudart.launches() - at).as("nothing to keep").isEqualTo(6);
      }
      assertThat(cudart.live()).isZero();
    }
  }

  private static int[] span(MemorySegment scan) {
    MemorySegment list = MemorySegment.ofAddress(number(scan, SCAN, "spans")).reinterpret(8);
    return list.toArray(JAVA_INT);
  }

  /** Of the first segment nobody wants the sums: they and d are of the tokens behind it. */
  @Test
  void oneSweepTakesAllSegmentsAtOnce() {
    System.setProperty(PLAN, "one_sweep:128*");
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(2, 3, 300, D), DType.BF16)) {
      Forward y = f.forward(f.input);
      linear().keepState(true).on(f.gpu).backwardInto(y, f.dO, null, f.gradients);
      assertThat(kernels(0, 7))
          .containsExactly(
              "state_sums_wgmma_d128",
              "state_scan_simt",
              "gradient_rows_simt",
              "gradient_sums_wgmma_d128",
              "state_scan_simt",
              "one_sweep_gradient_wgmma_d128",
              "gradient_recurrence_simt");
      long slot = (long) D * D * Float.BYTES;
      MemorySegment rows = arguments(2, ROWS);
      assertThat(count(rows, ROWS, "tokens")).isEqualTo(300 - 128);
      MemorySegment sums = hopperTask(3, 0);
      assertThat(count(sums, CHUNKED, "tokens")).isEqualTo(300 - 128);
      assertThat(count(sums, CHUNKED, "num_items")).isEqualTo(2);
      assertThat(count(sums, CHUNKED, "slots")).isEqualTo(3);
      long behind = 128L * D * 2;
      assertThat(mapped(3, 0, 3))
          .containsExactly(
              address(f.input.k()) + behind, address(f.input.q()) + behind, address(f.dO) + behind);
      assertThat(number(sums, CHUNKED, "normalizer"))
          .isEqualTo(address(y.normalizer()) + 128 * Float.BYTES);
      assertThat(number(sums, GRADIENT, "delta")).isEqualTo(number(rows, ROWS, "delta"));
      long gradients = number(arguments(4, SCAN), SCAN, "state");
      assertThat(number(sums, CHUNKED, "state_out")).isEqualTo(gradients + slot);
      MemorySegment sweep = arguments(5, ONE_SWEEP);
      for (int task = 0; task < 2; task++) {
        MemorySegment of = hopperTask(5, task);
        assertThat(count(of, CHUNKED, "num_items")).isEqualTo(3);
        assertThat(count(of, CHUNKED, "tokens")).isEqualTo(300);
        assertThat(number(of, CHUNKED, "state_in")).isEqualTo(gradients);
        assertThat(number(of, CHUNKED, "state_out")).isZero();
        assertThat(number(of, CHUNKED, "tickets")).isZero();
      }
      long before = number(arguments(1, SCAN), SCAN, "state");
      assertThat(before).isNotEqualTo(gradients);
      assertThat(number(sweep, ONE_SWEEP, "first_state")).isEqualTo(before);
      assertThat(number(sweep, ONE_SWEEP, "last_state")).isEqualTo(before + slot);
      assertThat(
              number(sweep, ONE_SWEEP, "last_key_sum") - number(sweep, ONE_SWEEP, "first_key_sum"))
          .isEqualTo(slot / D);
      AttentionState last = y.state().orElseThrow();
      assertThat(number(sweep, ONE_SWEEP, "end_state")).isEqualTo(address(last.s()));
      assertThat(number(sweep, ONE_SWEEP, "end_key_sum")).isEqualTo(address(last.z()));
      MemorySegment repair = arguments(6, REPAIR);
      assertThat(count(repair, REPAIR, "count")).isEqualTo(3);
      assertThat(number(repair, CHUNKED, "state_in")).isEqualTo(before);
      assertThat(count(coefficients(6), COEFFICIENTS, "count")).isEqualTo(3 * 2);
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void segmentsOfOneSweepTakeStatesAndGiveTheirGradients() {
    System.setProperty(PLAN, "one_sweep:128*");
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(2, 3, 300, D), DType.BF16)) {
      AttentionState before = f.state(1);
      Forward y = f.forward(f.input.from(before));
      StateGradient last = f.stateGradient(1);
      StateGradient first = f.stateGradient(1);
      linear().keepState(true).on(f.gpu).backwardInto(y, f.dO, last, f.with(first));
      assertThat(number(arguments(1, SCAN), SCAN, "state_in")).isEqualTo(address(before.s()));
      MemorySegment sums = hopperTask(3, 0);
      assertThat(count(sums, CHUNKED, "tokens")).isEqualTo(300);
      assertThat(count(sums, CHUNKED, "num_items")).isEqualTo(3);
      MemorySegment scan = arguments(4, SCAN);
      assertThat(number(sums, CHUNKED, "state_out")).isEqualTo(number(scan, SCAN, "state"));
      assertThat(number(scan, SCAN, "state_in")).isEqualTo(address(last.ds()));
      assertThat(number(scan, SCAN, "state_out")).isEqualTo(address(first.ds()));
    }
    assertThat(cudart.live()).isZero();
  }
}
