package io.github.linattn.test.fault;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.DType;
import io.github.linattn.Diagnostics;
import io.github.linattn.Forward;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.Plan;
import io.github.linattn.Sequences;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import io.github.linattn.internal.cuda.ChunkedStructs;
import io.github.linattn.internal.cuda.GradientStructs;
import java.lang.foreign.MemoryLayout.PathElement;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.util.List;
import org.junit.jupiter.api.Test;

/**
 * Breaks when a backward of the family chunked launches other kernels, or with other arguments,
 * than its plan asks for. Kernels do not compute here.
 */
final class ChunkedBackwardTest extends BackwardLaunches {
  private static final StructLayout NORMALIZED = GradientStructs.NORMALIZE_ROWS_GRADIENT;

  @Test
  void eachTaskHasItsTensors() {
    System.setProperty(PLAN, "mma");
    AttentionShape shape = new AttentionShape(2, 64, 32, 100, D, D);
    try (BackwardFixture f = new BackwardFixture(shape, DType.BF16)) {
      f.backward(linear().coefficients(2, 3));
      assertThat(kernels(0, 5))
          .containsExactly(
              "gradient_rows_simt",
              "query_gradient_mma_d128",
              "key_value_gradient_mma_d128",
              "key_value_gradient_mma_d128",
              "gradient_recurrence_simt");
      assertThat(cudart.launches()).isEqualTo(5);
      assertThat(cudart.launchBlocks(1)).isEqualTo(2 * 64 * 2);
      assertThat(cudart.launchBlocks(2)).isEqualTo(2 * 32 * 2);
      MemorySegment query = arguments(1, GRADIENT);
      MemorySegment key = arguments(2, GRADIENT);
      MemorySegment value = arguments(3, GRADIENT);
      Tensor q = f.input.q();
      Tensor k = f.input.k();
      Tensor v = f.input.v();
      assertThat(views(query))
          .containsExactly(address(f.dO), address(v), address(k), address(f.gradients.dq()));
      assertThat(views(key))
          .containsExactly(address(v), address(f.dO), address(q), address(f.gradients.dk()));
      assertThat(views(value))
          .containsExactly(address(k), address(q), address(f.dO), address(f.gradients.dv()));
      long delta = number(arguments(0, ROWS), ROWS, "delta");
      for (int task = 0; task < 3; task++) {
        MemorySegment struct = arguments(1 + task, GRADIENT);
        assertThat(count(struct, GRADIENT, "task")).isEqualTo(task);
        assertThat(count(struct, GRADIENT, "tasks")).isEqualTo(1);
        assertThat(number(struct, GRADIENT, "delta")).isNotZero().isEqualTo(delta);
        assertThat(number(struct, GRADIENT, "query_scale")).isZero();
        assertThat(number(struct, GRADIENT, "slope_query")).isZero();
        assertThat(number(struct, CHUNKED, "normalizer")).isEqualTo(address(f.g));
        assertThat(number(struct, CHUNKED, "state_in")).isZero();
        assertThat(number(struct, CHUNKED, "items")).isZero();
        assertThat(count(struct, CHUNKED, "num_items")).isEqualTo(1);
        assertThat(count(struct, CHUNKED, "group")).isEqualTo(2);
        assertThat(count(struct, CHUNKED, "heads")).isEqualTo(64);
      }
      MemorySegment repair = arguments(4, REPAIR);
      assertThat(count(repair, REPAIR, "count")).isEqualTo(3);
      for (int task = 0; task < 3; task++) {
        MemorySegment struct = arguments(1 + task, GRADIENT);
        assertThat(number(struct, CHUNKED, "marks")).isNotZero();
        assertThat(repair.asSlice(task * GRADIENT.byteSize(), GRADIENT.byteSize()))
            .as("repairs what sweep %d marks", task)
            .matches(copy -> copy.mismatch(struct.asSlice(0, GRADIENT.byteSize())) == -1);
      }
      MemorySegment sums = coefficients(4);
      assertThat(number(sums, COEFFICIENTS, "partials"))
          .isEqualTo(number(query, GRADIENT, "partials"));
      assertThat(count(sums, COEFFICIENTS, "count")).isEqualTo(2);
      assertThat(number(sums, COEFFICIENTS, "a_gradient")).isEqualTo(address(f.gradients.da()));
      long b = COEFFICIENTS.byteOffset(PathElement.groupElement("b"));
      assertThat(sums.get(JAVA_FLOAT, b)).isEqualTo(3);
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void onHopperOneLaunchHasBothTasksAndTheirMaps() {
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(4, 32, 100, D), DType.BF16)) {
      f.backward(linear());
      assertThat(cudart.launches()).isEqualTo(3);
      assertThat(kernels(0, 3))
          .as("dq forms d itself")
          .containsExactly(
              "query_gradient_wgmma_d128",
              "key_value_gradient_wgmma_d128",
              "gradient_recurrence_simt");
      assertThat(cudart.launchBlocks(0)).as("of 64 columns").isEqualTo(128 * 2);
      assertThat(cudart.launchCluster(0)).isEqualTo(2);
      assertThat(cudart.launchBlocks(1)).as("of 128 columns, both tasks").isEqualTo(2 * 128);
      assertThat(cudart.launchCluster(1)).isEqualTo(2);
      assertThat(cudart.launchedEarly(1)).isTrue();
      Tensor q = f.input.q();
      Tensor k = f.input.k();
      Tensor v = f.input.v();
      assertThat(mapped(0, 0, 5))
          .as("x, y, z, out of dq, then o")
          .containsExactly(
              address(f.dO), address(v), address(k), address(f.gradients.dq()), address(f.o));
      assertThat(mapped(1, 0, 4))
          .as("x, y, z, out of dk")
          .containsExactly(address(v), address(f.dO), address(q), address(f.gradients.dk()));
      assertThat(mapped(1, 1, 4))
          .as("x, y, z, out of dv")
          .containsExactly(address(k), address(q), address(f.dO), address(f.gradients.dv()));
      MemorySegment query = hopperTask(0, 0);
      assertThat(count(query, GRADIENT, "task")).isZero();
      assertThat(count(query, GRADIENT, "tasks")).isEqualTo(1);
      assertThat(count(query, CHUNKED, "turns")).as("heads fill the GPU").isEqualTo(1);
      long delta = number(query, GRADIENT, "delta");
      for (int task = 1; task <= 2; task++) {
        MemorySegment struct = hopperTask(1, task - 1);
        assertThat(count(struct, GRADIENT, "task")).isEqualTo(task);
        assertThat(count(struct, GRADIENT, "tasks")).isEqualTo(2);
        assertThat(number(struct, GRADIENT, "delta")).isNotZero().isEqualTo(delta);
      }
    }
  }

  @Test
  void aForwardKeepsTheStatesBeforeItsSegments() {
    AttentionShape shape = AttentionShape.of(1, 2, 40_000, D);
    List<String> fromKept =
        List.of(
            "query_gradient_wgmma_d128",
            "gradient_recurrence_simt",
            "gradient_sums_wgmma_d128",
            "state_scan_simt",
            "key_value_gradient_wgmma_d128",
            "gradient_recurrence_simt");
    try (BackwardFixture f = new BackwardFixture(shape, DType.BF16)) {
      LinearAttention attention = linear().keepState(true).on(f.gpu);
      try (Forward y = attention.forward(f.input)) { // takes the workspace
        backwardFrom(y, f);
      }
      long bytes = cudart.deviceBytes();
      Plan plan = attention.plan(shape, DType.BF16);
      long plain = linear().on(f.gpu).plan(shape, DType.BF16).forward().resultBytes();
      long checkpoints = plan.forward().resultBytes() - plain - 2L * (D * D + 2 * D) * 4;
      assertThat(checkpoints).isBetween(1L, 3 * shape.q().elements() * 2 / 10);
      assertThat(plan.backward().reason()).contains("from the states that the forward kept");
      try (Forward y = attention.forward(f.input)) {
        assertThat(cudart.deviceBytes() - bytes).isEqualTo(plan.forward().resultBytes());
        int at = Math.toIntExact(cudart.launches());
        long before = number(arguments(at - 3, SCAN), SCAN, "state");
        for (int i = 0; i < 2; i++) { // from the forward, then from one into the same tensors
          at = Math.toIntExact(cudart.launches());
          attention.backwardInto(y, f.dO, null, f.gradients);
          assertThat(kernels(at, fromKept.size())).isEqualTo(fromKept);
          assertThat(plan.backward().steps()).hasSize(fromKept.size());
          MemorySegment dq = hopperTask(at, 0);
          assertThat(number(dq, CHUNKED, "state_in")).isEqualTo(before);
          int items = count(dq, CHUNKED, "num_items");
          int slots = count(dq, CHUNKED, "slots");
          assertThat((long) slots * 2 * (D * D + 2 * D) * 4).isEqualTo(checkpoints);
          assertThat(items).isEqualTo(Math.ceilDiv(slots, count(dq, CHUNKED, "slot_step")));
          assertThat(number(hopperTask(at + 4, 0), CHUNKED, "state_in"))
              .as("of the gradients after segments")
              .isNotEqualTo(before);
          attention.forwardInto(y);
        }
        attention.forwardInto(f.input, f.o, f.g, y.state().orElseThrow());
        at = Math.toIntExact(cudart.launches());
        attention.backwardInto(y, f.dO, null, f.gradients);
        assertThat(kernels(at, 2))
            .as("its state is another forward's")
            .containsExactly("state_sums_wgmma_d128", "state_scan_simt");
        attention.forwardInto(y);
        at = Math.toIntExact(cudart.launches());
        attention.backwardInto(y, f.dO, null, f.gradients);
        assertThat(kernels(at, fromKept.size())).isEqualTo(fromKept);
      }
      assertThat(cudart.deviceBytes()).isEqualTo(bytes);
    }
  }

  @Test
  void blocksOfDqTakeTurnsWhereHeadsAreFew() {
    System.setProperty(PLAN, "wgmma");
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 200, D), DType.BF16)) {
      f.backward(linear());
      assertThat(cudart.launches()).isEqualTo(3);
      assertThat(cudart.launchKernel(0)).contains("query_gradient_wgmma_d128");
      assertThat(cudart.launchBlocks(0)).as("4 chunks, 4 turns").isEqualTo(2 * 2 * 4);
      assertThat(cudart.launchCluster(0)).isEqualTo(2);
      assertThat(cudart.launchBlocks(1)).isEqualTo(2 * 2);
      assertThat(count(hopperTask(0, 0), CHUNKED, "turns")).isEqualTo(4);
      assertThat(count(hopperTask(1, 0), CHUNKED, "turns")).isEqualTo(1);
      assertThat(count(hopperTask(1, 1), CHUNKED, "turns")).isEqualTo(1);
      MemorySegment sums = coefficients(2);
      assertThat(count(sums, COEFFICIENTS, "count")).as("tiles and turns").isEqualTo(2 * 4);
    }
  }

  /** dq hands states on from the first item, dk and dv their gradients from the last. */
  @Test
  void blocksOfARelayHandStatesOn() {
    System.setProperty(PLAN, "wgmma:64+");
    AttentionShape shape = AttentionShape.of(2, 4, 200, D);
    try (BackwardFixture f = new BackwardFixture(shape, DType.BF16)) {
      f.backward(linear());
      assertThat(kernels(0, 3))
          .containsExactly(
              "query_gradient_wgmma_d128",
              "key_value_gradient_wgmma_d128",
              "gradient_recurrence_simt");
      MemorySegment query = hopperTask(0, 0);
      MemorySegment key = hopperTask(1, 0);
      MemorySegment value = hopperTask(1, 1);
      long slot = 8L * D * D * Float.BYTES;
      for (MemorySegment task : List.of(query, key, value)) {
        assertThat(count(task, CHUNKED, "num_items")).isEqualTo(4);
        assertThat(count(task, CHUNKED, "turns")).isEqualTo(1);
        assertThat(number(task, CHUNKED, "items")).isNotZero();
        long further = number(task, CHUNKED, "state_out") - number(task, CHUNKED, "state_in");
        assertThat(further).isEqualTo(slot);
        long sums = number(task, CHUNKED, "value_sum_out") - number(task, CHUNKED, "value_sum_in");
        assertThat(sums).isEqualTo(slot / D);
      }
      assertThat(number(query, CHUNKED, "key_sum_out") - number(query, CHUNKED, "key_sum_in"))
          .isEqualTo(slot / D);
      long bytes = number(key, CHUNKED, "tickets") - number(query, CHUNKED, "tickets");
      assertThat(number(value, CHUNKED, "tickets") - number(key, CHUNKED, "tickets"))
          .isEqualTo(bytes)
          .isGreaterThan(5 * slot);
      MemorySegment repair = arguments(2, REPAIR);
      for (int i = 0; i < 3; i++) {
        MemorySegment task = repair.asSlice(i * GRADIENT.byteSize(), GRADIENT);
        MemorySegment sweep = List.of(query, key, value).get(i);
        assertThat(count(task, CHUNKED, "num_items")).isEqualTo(1);
        assertThat(count(task, CHUNKED, "turns")).as("marks of items").isEqualTo(4);
        assertThat(number(task, CHUNKED, "marks")).isEqualTo(number(sweep, CHUNKED, "marks"));
        assertThat(number(task, CHUNKED, "tickets")).isZero();
        assertThat(number(task, CHUNKED, "items")).isZero();
      }
      assertThat(number(repair, CHUNKED, "state_in"))
          .as("before the first token")
          .isEqualTo(number(query, CHUNKED, "state_in"));
      assertThat(repair.asSlice(GRADIENT.byteSize(), GRADIENT))
          .as("after the last")
          .matches(task -> number(task, CHUNKED, "state_in") == number(key, CHUNKED, "state_in"));
      assertThat(count(coefficients(2), COEFFICIENTS, "count")).isEqualTo(4 * 2);
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void statesAndTheirGradientsGoThroughTheSweeps() {
    System.setProperty(PLAN, "mma");
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 64, 100, D), DType.BF16)) {
      AttentionState state = f.state(1);
      StateGradient last = f.stateGradient(1);
      StateGradient first = f.stateGradient(1);
      f.backward(linear(), f.input.from(state), last, f.with(first));
      MemorySegment query = arguments(1, GRADIENT);
      assertThat(number(query, CHUNKED, "state_in")).isEqualTo(address(state.s()));
      assertThat(number(query, CHUNKED, "key_sum_in")).isEqualTo(address(state.u()));
      assertThat(number(query, CHUNKED, "value_sum_in")).isEqualTo(address(state.z()));
      MemorySegment key = arguments(2, GRADIENT);
      assertThat(number(key, CHUNKED, "state_in")).isEqualTo(address(last.ds()));
      assertThat(number(key, CHUNKED, "value_sum_in")).isEqualTo(address(last.dz()));
      assertThat(number(key, CHUNKED, "state_out")).isZero();
      assertThat(number(key, CHUNKED, "value_sum_out")).isEqualTo(address(first.dz()));
      MemorySegment value = arguments(3, GRADIENT);
      assertThat(number(value, CHUNKED, "state_in")).isEqualTo(address(last.ds()));
      assertThat(number(value, CHUNKED, "value_sum_in")).isEqualTo(address(last.du()));
      assertThat(number(value, CHUNKED, "state_out")).isEqualTo(address(first.ds()));
      assertThat(number(value, CHUNKED, "value_sum_out")).isEqualTo(address(first.du()));
    }
  }

  @Test
  void segmentsAreScannedBeforeEachSweep() {
    System.setProperty(PLAN, "mma:256");
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 1000, D), DType.BF16)) {
      StateGradient last = f.stateGradient(1);
      StateGradient first = f.stateGradient(1);
      f.backward(linear(), f.input.from(f.state(1)), last, f.with(first));
      assertThat(cudart.launchKernel(1)).contains("state_sums_wgmma");
      assertThat(kernels(2, 8))
          .as("dq is repaired while the states before it stand")
          .containsExactly(
              "state_scan_simt",
              "query_gradient_mma_d128",
              "gradient_recurrence_simt",
              "gradient_sums_mma",
              "state_scan_simt",
              "key_value_gradient_mma_d128",
              "key_value_gradient_mma_d128",
              "gradient_recurrence_simt");
      assertThat(count(arguments(4, REPAIR), REPAIR, "count")).isEqualTo(1);
      assertThat(number(coefficients(4), COEFFICIENTS, "partials")).isZero();
      assertThat(count(arguments(9, REPAIR), REPAIR, "first")).as("behind dq").isEqualTo(1);
      assertThat(count(arguments(9, REPAIR), REPAIR, "count")).isEqualTo(3);
      MemorySegment states = arguments(1, ChunkedStructs.HOPPER).asSlice(4 * 128);
      assertThat(count(states, CHUNKED, "num_items")).isEqualTo(3);
      assertThat(count(states, CHUNKED, "slots")).isEqualTo(4);
      assertThat(count(states, CHUNKED, "group")).isEqualTo(1);
      assertThat(number(states, CHUNKED, "state_out"))
          .isEqualTo(number(arguments(2, SCAN), SCAN, "state"));
      MemorySegment forwards = arguments(2, SCAN);
      MemorySegment backwards = arguments(6, SCAN);
      assertThat(count(forwards, SCAN, "backwards")).isZero();
      assertThat(number(forwards, SCAN, "state_out")).isZero();
      assertThat(count(backwards, SCAN, "backwards")).isEqualTo(1);
      assertThat(number(backwards, SCAN, "key_sum_in")).isEqualTo(address(last.dz()));
      assertThat(number(backwards, SCAN, "state_out")).isEqualTo(address(first.ds()));
      MemorySegment sums = arguments(5, GRADIENT);
      assertThat(number(sums, CHUNKED, "state_out")).isEqualTo(number(backwards, SCAN, "state"));
      assertThat(number(sums, CHUNKED, "key_sum_out"))
          .isEqualTo(number(backwards, SCAN, "key_sum"));
      assertThat(count(sums, CHUNKED, "num_items")).isEqualTo(4);
      MemorySegment query = arguments(3, GRADIENT);
      assertThat(number(query, CHUNKED, "key_sum_in"))
          .isEqualTo(number(forwards, SCAN, "value_sum"));
      MemorySegment value = arguments(8, GRADIENT);
      assertThat(number(value, CHUNKED, "value_sum_in"))
          .isEqualTo(number(backwards, SCAN, "value_sum"));
      assertThat(number(value, CHUNKED, "state_out")).as("the scan writes it").isZero();
      assertThat(count(coefficients(9), COEFFICIENTS, "count")).isEqualTo(4 * 2);
      assertThat(count(coefficients(9), COEFFICIENTS, "parts")).as("of 512 tokens").isEqualTo(2);
      assertThat(number(coefficients(9), COEFFICIENTS, "products"))
          .as("behind the partial sums")
          .isEqualTo(number(coefficients(9), COEFFICIENTS, "partials") + 2 * 8 * 16);
      assertThat(number(coefficients(9), COEFFICIENTS, "tickets")).isNotZero();
    }
  }

  /** No state is summed, and dq starts from the initial one. */
  @Test
  void segmentsOfDkAndDvLeaveDqWhole() {
    System.setProperty(PLAN, "mma:256:0");
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 1000, D), DType.BF16)) {
      AttentionState before = f.state(1);
      StateGradient first = f.stateGradient(1);
      f.backward(linear(), f.input.from(before), null, f.with(first));
      assertThat(kernels(1, 7))
          .containsExactly(
              "query_gradient_mma_d128",
              "gradient_recurrence_simt",
              "gradient_sums_mma",
              "state_scan_simt",
              "key_value_gradient_mma_d128",
              "key_value_gradient_mma_d128",
              "gradient_recurrence_simt");
      MemorySegment query = arguments(1, GRADIENT);
      assertThat(number(query, CHUNKED, "state_in")).isEqualTo(address(before.s()));
      assertThat(count(query, CHUNKED, "num_items")).isEqualTo(1);
      assertThat(count(query, CHUNKED, "item_tokens")).isEqualTo(1000);
      MemorySegment scan = arguments(4, SCAN);
      assertThat(number(scan, SCAN, "state_out")).isEqualTo(address(first.ds()));
      MemorySegment value = arguments(6, GRADIENT);
      assertThat(number(value, CHUNKED, "value_sum_in")).isEqualTo(number(scan, SCAN, "value_sum"));
      assertThat(count(value, CHUNKED, "num_items")).isEqualTo(4);
      assertThat(count(value, CHUNKED, "item_tokens")).isEqualTo(256);
      assertThat(count(coefficients(7), COEFFICIENTS, "count")).isEqualTo(2);
    }
  }

  /** Each scan is of its own segments, in one place in turn. */
  @Test
  void dqMayHaveSegmentsOfItsOwn() {
    System.setProperty(PLAN, "mma:256:512");
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 1000, D), DType.BF16)) {
      f.backward(linear(), f.input, null, f.with(f.stateGradient(1)));
      MemorySegment states = arguments(1, ChunkedStructs.HOPPER).asSlice(4 * 128);
      assertThat(count(states, CHUNKED, "item_tokens")).isEqualTo(512);
      assertThat(count(states, CHUNKED, "num_items")).isEqualTo(1);
      assertThat(count(states, CHUNKED, "slots")).isEqualTo(2);
      MemorySegment query = arguments(3, GRADIENT);
      assertThat(count(query, CHUNKED, "item_tokens")).isEqualTo(512);
      assertThat(number(query, CHUNKED, "state_in"))
          .isEqualTo(number(arguments(2, SCAN), SCAN, "state"));
      MemorySegment value = arguments(8, GRADIENT);
      assertThat(count(value, CHUNKED, "item_tokens")).isEqualTo(256);
      assertThat(number(value, CHUNKED, "state_in"))
          .isEqualTo(number(arguments(6, SCAN), SCAN, "state"));
      assertThat(count(coefficients(9), COEFFICIENTS, "count")).isEqualTo(2 * 2);
    }
  }

  @Test
  void onHopperSumsForTheSecondSweepHaveMapsToo() {
    System.setProperty(PLAN, "wgmma:256");
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 1000, D), DType.BF16)) {
      f.backward(linear());
      assertThat(kernels(1, 6))
          .containsExactly(
              "state_scan_simt",
              "query_gradient_wgmma_d128",
              "gradient_recurrence_simt",
              "gradient_sums_wgmma_d128",
              "state_scan_simt",
              "key_value_gradient_wgmma_d128");
      assertThat(cudart.launchBlocks(4)).as("2 heads, 3 items, 2 tiles").isEqualTo(2 * 3 * 2);
      assertThat(cudart.launchCluster(4)).isEqualTo(2);
      assertThat(mapped(4, 0, 4).subList(1, 3))
          .as("y and z of dv")
          .containsExactly(address(f.input.q()), address(f.dO));
      MemorySegment sums = hopperTask(4, 0);
      assertThat(count(sums, GRADIENT, "tasks")).isEqualTo(1);
      assertThat(count(sums, CHUNKED, "num_items")).isEqualTo(3);
      assertThat(count(sums, CHUNKED, "slots")).isEqualTo(4);
      MemorySegment items =
          MemorySegment.ofAddress(number(sums, CHUNKED, "items")).reinterpret(3 * 24);
      assertThat(items.toArray(JAVA_INT))
          .as(
              "start, tokens, slot, a reserved word and tokens before, but of a state, of all others")
          .containsExactly(256, 256, 1, 0, 256, 0, 512, 256, 2, 0, 512, 0, 768, 232, 3, 0, 768, 0);
      assertThat(number(sums, GRADIENT, "delta"))
          .isEqualTo(number(hopperTask(2, 0), GRADIENT, "delta"));
      MemorySegment scan = arguments(5, SCAN);
      assertThat(number(sums, CHUNKED, "state_out")).isEqualTo(number(scan, SCAN, "state"));
      assertThat(number(sums, CHUNKED, "key_sum_out")).isEqualTo(number(scan, SCAN, "key_sum"));
      assertThat(number(sums, CHUNKED, "value_sum_out")).isEqualTo(number(scan, SCAN, "value_sum"));
    }
  }

  @Test
  void packedSequencesHaveListsOfItems() {
    Sequences packing = Sequences.ofLengths(0, 1, 299);
    for (String plan : List.of("mma", "mma:128")) {
      reset();
      System.setProperty(PLAN, plan);
      try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 300, D), DType.BF16)) {
        AttentionInput packed = f.input.packed(packing);
        f.backward(linear(), packed, f.stateGradient(3), f.with(f.stateGradient(3)));
        int last = Math.toIntExact(cudart.launches()) - 2;
        MemorySegment value = arguments(last, GRADIENT);
        boolean whole = plan.equals("mma");
        assertThat(count(value, CHUNKED, "num_items")).isEqualTo(whole ? 3 : 1 + 3);
        assertThat(count(value, CHUNKED, "slots")).isEqualTo(whole ? 3 : 4);
        MemorySegment items =
            MemorySegment.ofAddress(number(value, CHUNKED, "items")).reinterpret(4 * 24);
        int second = whole ? 1 : 0;
        assertThat(items.asSlice(24L * second, 12).toArray(JAVA_INT))
            .as("start, tokens and slot of the second sequence")
            .containsExactly(0, 1, second);
      }
    }
  }

  @Test
  void withoutCausalityEveryRowReadsTheTotals() {
    AttentionShape shape = new AttentionShape(1, 4, 2, 1000, 48, 80);
    try (BackwardFixture f = new BackwardFixture(shape, DType.F32)) {
      f.backward(linear().causal(false).normalizeQueriesAndKeys(true));
      assertThat(number(arguments(0, ROWS), ROWS, "delta")).as("formed with dq").isZero();
      assertThat(kernels(1, 8))
          .containsExactly(
              "state_sums_mma",
              "state_scan_simt",
              "normalized_gradient_outputs_wgmma",
              "gradient_sums_mma",
              "state_scan_simt",
              "normalized_gradient_outputs_wgmma",
              "gradient_outputs_wgmma",
              "gradient_recurrence_simt");
      assertThat(cudart.launches()).as("gradients are finished").isEqualTo(9);
      MemorySegment forwards = arguments(2, SCAN);
      MemorySegment query = arguments(3, GRADIENT);
      assertThat(number(query, CHUNKED, "state_in")).isEqualTo(number(forwards, SCAN, "state_out"));
      assertThat(count(query, CHUNKED, "slots")).isEqualTo(1);
      assertThat(count(query, CHUNKED, "key_dim")).as("of dO and v").isEqualTo(80);
      assertThat(count(query, CHUNKED, "value_dim")).as("of k and dq").isEqualTo(48);
      assertThat(count(query, CHUNKED, "normalize")).isEqualTo(1);
      assertThat(number(query, GRADIENT, "key_scale")).isNotZero();
      assertThat(count(arguments(8, REPAIR), REPAIR, "first")).as("nothing is marked").isEqualTo(1);
      assertThat(count(arguments(8, REPAIR), REPAIR, "count")).isEqualTo(1);
      assertThat(count(coefficients(8), COEFFICIENTS, "sees_all")).isEqualTo(1);
      assertThat(count(coefficients(8), COEFFICIENTS, "slope_is_summed")).isEqualTo(1);
      assertThat(number(coefficients(8), COEFFICIENTS, "query")).as("dq is finished").isZero();
      MemorySegment key = arguments(6, GRADIENT);
      MemorySegment value = arguments(7, GRADIENT);
      assertThat(number(query, CHUNKED, "value")).as("its own").isEqualTo(address(f.input.q()));
      assertThat(number(key, CHUNKED, "value")).isEqualTo(address(f.input.k()));
      assertThat(number(key, GRADIENT, "key_scale"))
          .isEqualTo(number(query, GRADIENT, "key_scale"));
      assertThat(number(value, CHUNKED, "query")).isEqualTo(address(f.input.k()));
      assertThat(number(value, CHUNKED, "value")).as("v has no length").isZero();
    }
  }

  @Test
  void withoutCausalityLengthsThatAForwardKeptAreTaken() {
    AttentionShape shape = new AttentionShape(2, 4, 2, 100, D, D);
    LinearAttention.Builder operator = linear().causal(false).normalizeQueriesAndKeys(true);
    try (BackwardFixture f = new BackwardFixture(shape, DType.BF16)) {
      LinearAttention attention = operator.keepState(true).on(f.gpu);
      try (Forward y = attention.forward(f.input)) {
        assertThat(kernels(0, 3))
            .containsExactly(
                "normalized_state_sums_wgmma_d128", "state_sums_mma", "state_outputs_wgmma");
        MemorySegment again = arguments(1, CHUNKED);
        assertThat(number(again, CHUNKED, "marks")).as("sums are there").isNotZero();
        assertThat(number(again, CHUNKED, "state_out"))
            .isEqualTo(address(y.state().orElseThrow().s()));
        long ofKeys =
            number(arguments(0, ChunkedStructs.HOPPER), ChunkedStructs.HOPPER, "row_scales");
        long ofQueries = number(arguments(2, CHUNKED), CHUNKED, "key");
        assertThat(ofQueries).isNotZero();
        assertThat(ofKeys).isEqualTo(ofQueries + 4L * 2 * 4 * 100);
        attention.backwardInto(y, f.dO, null, f.gradients);
        assertThat(kernels(3, 6))
            .containsExactly(
                "gradient_rows_simt",
                "normalized_gradient_outputs_wgmma",
                "normalized_gradient_sums_wgmma_d128",
                "normalized_gradient_outputs_wgmma",
                "gradient_outputs_wgmma",
                "gradient_recurrence_simt");
        MemorySegment rows = arguments(3, ROWS);
        assertThat(count(rows, ROWS, "scales_are_kept")).isEqualTo(1);
        MemorySegment query = arguments(4, GRADIENT);
        assertThat(number(query, GRADIENT, "query_scale")).isEqualTo(ofQueries);
        assertThat(number(query, GRADIENT, "key_scale")).isEqualTo(ofKeys);
      }
      int at = Math.toIntExact(cudart.launches());
      attention.forwardInto(f.input, f.o, f.g, f.state(1));
      assertThat(number(arguments(at, ChunkedStructs.HOPPER), ChunkedStructs.HOPPER, "row_scales"))
          .as("nobody has memory for them")
          .isZero();
      assertThat(number(arguments(at + 2, CHUNKED), CHUNKED, "key")).isZero();
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void withoutCausalitySumsOfOneItemAreReadWhereTheyAre() {
    AttentionShape shape = new AttentionShape(1, 4, 2, 300, 48, 80);
    try (BackwardFixture f = new BackwardFixture(shape, DType.F32)) {
      f.backward(linear().causal(false));
      assertThat(kernels(0, 6))
          .containsExactly(
              "state_sums_mma",
              "gradient_outputs_wgmma",
              "gradient_sums_mma",
              "gradient_outputs_wgmma",
              "gradient_outputs_wgmma",
              "gradient_recurrence_simt");
      MemorySegment sums = arguments(0, CHUNKED);
      MemorySegment query = arguments(1, GRADIENT);
      assertThat(number(query, CHUNKED, "state_in")).isEqualTo(number(sums, CHUNKED, "state_out"));
      assertThat(number(query, CHUNKED, "value_sum_in"))
          .as("z")
          .isEqualTo(number(sums, CHUNKED, "key_sum_out"));
      assertThat(number(query, CHUNKED, "key")).as("o, for d").isEqualTo(address(f.o));
      assertThat(number(query, GRADIENT, "delta")).isNotZero();
      assertThat(number(arguments(3, GRADIENT), CHUNKED, "key")).as("d is there").isZero();
      MemorySegment ofGradients = arguments(2, GRADIENT);
      MemorySegment value = arguments(4, GRADIENT);
      assertThat(number(value, CHUNKED, "state_in"))
          .isEqualTo(number(ofGradients, CHUNKED, "state_out"));
      assertThat(number(value, CHUNKED, "value_sum_in"))
          .as("du")
          .isEqualTo(number(ofGradients, CHUNKED, "value_sum_out"));
    }
  }

  @Test
  void withoutCausalityAKeptStateIsNotSummedAgain() {
    AttentionShape shape = new AttentionShape(1, 4, 2, 300, 48, 80);
    try (BackwardFixture f = new BackwardFixture(shape, DType.F32)) {
      LinearAttention attention = linear().causal(false).keepState(true).on(f.gpu);
      assertThat(attention.plan(shape, DType.F32).backward().steps()).hasSize(5);
      try (Forward y = attention.forward(f.input)) {
        AttentionState state = y.state().orElseThrow();
        assertThat(kernels(0, 2)).containsExactly("state_sums_mma", "state_outputs_wgmma");
        MemorySegment sums = arguments(0, CHUNKED);
        assertThat(number(sums, CHUNKED, "state_out")).isEqualTo(address(state.s()));
        assertThat(number(sums, CHUNKED, "key_sum_out")).isEqualTo(address(state.z()));
        assertThat(state.count(0)).isEqualTo(300);
        attention.backwardInto(y, f.dO, null, f.gradients);
        assertThat(kernels(2, 5))
            .containsExactly(
                "gradient_outputs_wgmma",
                "gradient_sums_mma",
                "gradient_outputs_wgmma",
                "gradient_outputs_wgmma",
                "gradient_recurrence_simt");
        MemorySegment query = arguments(2, GRADIENT);
        assertThat(number(query, CHUNKED, "state_in")).isEqualTo(address(state.s()));
        assertThat(number(query, CHUNKED, "value_sum_in")).isEqualTo(address(state.z()));
        assertThat(number(query, CHUNKED, "key_sum_in")).isEqualTo(address(state.u()));
      }
    }
  }

  @Test
  void withoutCausalityStatesAndTheirGradientsAreAddedByScans() {
    AttentionShape shape = new AttentionShape(1, 4, 2, 300, 48, 80);
    try (BackwardFixture f = new BackwardFixture(shape, DType.F32);
        AttentionState initial = f.gpu.newState(shape, 1)) {
      StateGradient last = f.stateGradient(1);
      StateGradient first = f.stateGradient(1);
      LinearAttention attention = linear().causal(false).on(f.gpu);
      AttentionInput from = f.input.from(initial);
      try (Forward y = Forward.over(from, f.o, f.g, null)) {
        attention.backwardInto(y, f.dO, last, f.with(first));
      }
      assertThat(kernels(0, 8))
          .containsExactly(
              "state_sums_mma",
              "state_scan_simt",
              "gradient_outputs_wgmma",
              "gradient_sums_mma",
              "state_scan_simt",
              "gradient_outputs_wgmma",
              "gradient_outputs_wgmma",
              "gradient_recurrence_simt");
      MemorySegment states = arguments(1, SCAN);
      assertThat(number(states, SCAN, "state_in")).isEqualTo(address(initial.s()));
      MemorySegment query = arguments(2, GRADIENT);
      assertThat(number(query, CHUNKED, "state_in")).isEqualTo(number(states, SCAN, "state_out"));
      MemorySegment gradients = arguments(4, SCAN);
      assertThat(number(gradients, SCAN, "state_in")).isEqualTo(address(last.ds()));
      assertThat(number(gradients, SCAN, "state_out")).isEqualTo(address(first.ds()));
      MemorySegment value = arguments(6, GRADIENT);
      assertThat(number(value, CHUNKED, "state_in")).isEqualTo(address(first.ds()));
      assertThat(number(value, CHUNKED, "value_sum_in")).isEqualTo(address(first.du()));
    }
  }

  @Test
  void theSweepsLeaveDividedRowsToThePass() {
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 100, D), DType.BF16)) {
      f.backward(linear().normalizeQueriesAndKeys(true));
      assertThat(kernels(0, Math.toIntExact(cudart.launches())))
          .containsExactly(
              "gradient_rows_simt",
              "normalized_query_gradient_wgmma_d128",
              "normalized_key_value_gradient_wgmma_d128",
              "gradient_recurrence_simt",
              "normalize_rows_gradient_simt",
              "normalize_rows_gradient_simt");
      MemorySegment ofQueries = arguments(4, NORMALIZED);
      assertThat(number(ofQueries, NORMALIZED, "row")).isEqualTo(address(f.input.q()));
      assertThat(number(ofQueries, NORMALIZED, "gradient")).isEqualTo(address(f.gradients.dq()));
      assertThat(number(ofQueries, NORMALIZED, "scale"))
          .isEqualTo(number(hopperTask(1, 0), GRADIENT, "query_scale"));
      MemorySegment ofKeys = arguments(5, NORMALIZED);
      assertThat(number(ofKeys, NORMALIZED, "row")).isEqualTo(address(f.input.k()));
      assertThat(number(ofKeys, NORMALIZED, "gradient")).isEqualTo(address(f.gradients.dk()));
    }
  }

  @Test
  void lengthsThatAForwardKeptAreTaken() {
    AttentionShape shape = new AttentionShape(2, 4, 2, 100, D, D);
    LinearAttention.Builder operator = linear().normalizeQueriesAndKeys(true);
    try (BackwardFixture f = new BackwardFixture(shape, DType.BF16)) {
      LinearAttention attention = operator.keepState(true).on(f.gpu);
      Plan plan = attention.plan(shape, DType.BF16);
      Plan without = operator.keepState(false).on(f.gpu).plan(shape, DType.BF16);
      long states = 4L * 2 * 2 * (D * D + 2 * D);
      long lengths = 4L * 2 * (4 + 2) * 100;
      assertThat(plan.forward().resultBytes())
          .isEqualTo(without.forward().resultBytes() + states + lengths);
      assertThat(plan.backward().workspaceBytes())
          .isLessThan(without.backward().workspaceBytes() - lengths);
      try (Forward y = attention.forward(f.input)) {
        assertThat(kernels(0, 1)).containsExactly("normalized_forward_wgmma_d128");
        MemorySegment forward = arguments(0, ChunkedStructs.HOPPER);
        long ofQueries = number(forward, ChunkedStructs.HOPPER, "row_scales");
        assertThat(ofQueries).isNotZero();
        int at = Math.toIntExact(cudart.launches());
        attention.backwardInto(y, f.dO, null, f.gradients);
        assertThat(cudart.launches() - at).isEqualTo(plan.backward().steps().size());
        MemorySegment rows = arguments(at, ROWS);
        assertThat(count(rows, ROWS, "scales_are_kept")).isEqualTo(1);
        long ofKeys = ofQueries + 4L * 2 * 4 * 100;
        assertThat(number(rows, ROWS, "query_scale")).isEqualTo(ofQueries);
        assertThat(number(rows, ROWS, "key_scale")).isEqualTo(ofKeys);
        assertThat(number(hopperTask(at + 1, 0), GRADIENT, "query_scale")).isEqualTo(ofQueries);
        assertThat(number(hopperTask(at + 2, 1), GRADIENT, "key_scale")).isEqualTo(ofKeys);
        assertThat(number(arguments(at + 5, NORMALIZED), NORMALIZED, "scale")).isEqualTo(ofKeys);
      }
      int at = Math.toIntExact(cudart.launches());
      attention.forwardInto(f.input, f.o, f.g, f.state(1));
      assertThat(number(arguments(at, ChunkedStructs.HOPPER), ChunkedStructs.HOPPER, "row_scales"))
          .as("nobody has memory for them")
          .isZero();
      at = Math.toIntExact(cudart.launches());
      attention.backwardInto(f.input, f.o, f.g, f.dO, f.gradients);
      MemorySegment rows = arguments(at, ROWS);
      assertThat(count(rows, ROWS, "scales_are_kept")).isZero();
      assertThat(number(rows, ROWS, "key_scale")).isNotZero();
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void theSlopeIsSummedWhereItFollowsBadlyFromTheConstant() {
    float[] a = {1, 1};
    for (float smallest : new float[] {0.0625f, 0.0624f, 0}) {
      reset();
      try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 100, D), DType.BF16)) {
        f.backward(linear().coefficients(a, new float[] {1, -smallest}));
        boolean summed = smallest < 0.0625f;
        assertThat(cudart.launchKernel(0)).contains("query_gradient_wgmma");
        MemorySegment query = hopperTask(0, 0);
        assertThat(number(query, GRADIENT, "slope_query"))
            .isEqualTo(summed ? address(f.input.q()) : 0);
        int last = Math.toIntExact(cudart.launches()) - 1;
        MemorySegment sums = coefficients(last);
        assertThat(count(sums, COEFFICIENTS, "slope_is_summed")).isEqualTo(summed ? 1 : 0);
        assertThat(number(sums, COEFFICIENTS, "b_per_head")).isNotZero();
        assertThat(number(sums, COEFFICIENTS, "query"))
            .isEqualTo(summed ? 0 : address(f.input.q()));
        assertThat(number(sums, COEFFICIENTS, "out")).isEqualTo(address(f.o));
        assertThat(count(sums, COEFFICIENTS, "parts")).isEqualTo(1);
      }
    }
  }

  /** The terms of da nearly cancel there, so that it follows from db. */
  @Test
  void theConstantFollowsFromTheSlopeOfRowsThatAreNormalized() {
    for (float b : new float[] {0.25f, 0.249f, 0}) {
      reset();
      try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 100, D), DType.BF16)) {
        f.backward(linear().coefficients(1, b).normalizeQueriesAndKeys(true));
        int passes = 2; // behind the sums, those that finish the gradients of rows
        MemorySegment sums = coefficients(Math.toIntExact(cudart.launches()) - 1 - passes);
        assertThat(count(sums, COEFFICIENTS, "slope_is_summed")).isEqualTo(b < 0.25f ? 1 : 0);
        assertThat(number(sums, COEFFICIENTS, "query"))
            .isEqualTo(b < 0.25f ? 0 : address(f.input.q()));
      }
    }
  }

  /** Those of the shipped ones that this build has: all, unless some were asked for. */
  private static List<Integer> headDims(String operation, String dtype) {
    return Diagnostics.kernels().stream()
        .filter(kernel -> kernel.symbol().startsWith("la_chunked_" + operation))
        .filter(kernel -> kernel.dtype().equals(dtype))
        .map(Diagnostics.Kernel::headDim)
        .distinct()
        .sorted()
        .toList();
  }

  @Test
  void whatTheKernelsCannotReadIsRefused() {
    CudartDouble.assumeBuiltKernels();
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 64, D), DType.BF16)) {
      Tensor shifted = f.gpu.allocate(DType.BF16, TensorShape.of(1, 2, 64, D + 8));
      Tensor odd = shifted.sliced(3, 1, D);
      Gradients into =
          Gradients.over(
              odd, f.gradients.dk(), f.gradients.dv(), f.gradients.da(), f.gradients.db());
      assertThatThrownBy(() -> f.backward(linear(), f.input, null, into))
          .isInstanceOf(UnsupportedOperationException.class)
          .hasMessageContaining("dq that does not start at a multiple of 16 bytes");
      shifted.close();
    }
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 64, 48), DType.BF16)) {
      assertThatThrownBy(() -> f.backward(linear()))
          .isInstanceOf(UnsupportedOperationException.class)
          .hasMessageContaining("no CUDA kernel for a backward of BF16 with head dimension 48")
          .hasMessageContaining("built: " + headDims("query_gradient", "bf16") + ".")
          .hasMessageContaining("linattn generate --head-dim 48");
    }
    try (BackwardFixture f = new BackwardFixture(AttentionShape.of(1, 2, 64, 320), DType.BF16)) {
      assertThatThrownBy(() -> f.backward(linear()))
          .isInstanceOf(UnsupportedOperationException.class)
          .hasMessageContaining("None is made for sm_90; the cpu backend does it");
    }
    assertThat(cudart.launches()).isZero();
  }
}
