package io.github.linattn.test.fault;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.sun.management.ThreadMXBean;
import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Forward;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.Sequences;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import io.github.linattn.cuda.CudaException;
import io.github.linattn.internal.cuda.ChunkedStructs;
import io.github.linattn.internal.cuda.GradientStructs;
import java.lang.foreign.Arena;
import java.lang.foreign.StructLayout;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.function.Function;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when a repeated call takes memory of the heap, or asks CUDA for more than its launches.
 */
final class RepeatedCallTest extends OnFakeKernels {
  private static final int D = FakeKernels.HEAD_DIM;
  private static final String PLAN = "linattn.gradient.plan";
  private static final String FORWARD_PLAN = "linattn.plan";
  private static final int LAYERS = 96;
  private static final int ILLEGAL_ADDRESS = 700;
  private static final AttentionShape SHORT = AttentionShape.of(1, 8, 100, D);
  private static final AttentionShape TWO_SEGMENTS = AttentionShape.of(2, 3, 200, D);
  private static final AttentionShape STAGES = AttentionShape.of(1, 4, 4000, D);
  private static final AttentionShape LONG = AttentionShape.of(1, 2, 20_000, D);
  private static final AttentionShape MANY = AttentionShape.of(4, 16, 1000, D);
  private static final AttentionShape PACKED = AttentionShape.of(1, 64, 1000, D);
  private static final AttentionShape GROUPED = new AttentionShape(1, 8, 2, 100, D, D);

  @AfterEach
  void clear() {
    System.clearProperty(PLAN);
    System.clearProperty(FORWARD_PLAN);
  }

  private static LinearAttention.Builder linear() {
    return LinearAttention.builder();
  }

  private static Runnable forward(BackwardFixture f) {
    LinearAttention attention = linear().on(f.gpu);
    AttentionInput in = f.input;
    return () -> attention.forwardInto(in.q(), in.k(), in.v(), f.o, f.g);
  }

  private static Runnable forwardOfAState(BackwardFixture f) {
    LinearAttention attention = linear().on(f.gpu);
    AttentionState state = f.state(1);
    AttentionInput continued = f.input.from(state);
    return () -> attention.forwardInto(continued, f.o, f.g, state);
  }

  private static Runnable backward(BackwardFixture f, LinearAttention.Builder operator) {
    LinearAttention attention = operator.on(f.gpu);
    return () -> attention.backwardInto(f.input, f.o, f.g, f.dO, f.gradients);
  }

  private static Runnable backwardOfStates(BackwardFixture f) {
    LinearAttention attention = linear().on(f.gpu);
    AttentionState state = f.state(1);
    AttentionInput continued = f.input.from(state);
    StateGradient last = f.stateGradient(1);
    Gradients into = f.with(f.stateGradient(1));
    return () -> {
      attention.forwardInto(continued, f.o, f.g, state); // which moves the state on
      attention.backwardInto(continued, f.o, f.g, f.dO, last, into);
    };
  }

  /** A forward that keeps its state, and the backward from that. */
  private static Runnable oneSweep(BackwardFixture f, AttentionInput input) {
    LinearAttention attention = linear().on(f.gpu);
    AttentionState last = f.state(input.sequences().count());
    Forward y = Forward.over(input, f.o, f.g, last);
    return () -> {
      attention.forwardInto(y);
      attention.backwardInto(y, f.dO, null, f.gradients);
    };
  }

  /** Of two segments, in which nobody would cut so few tokens. */
  private static Runnable chain(BackwardFixture f) {
    System.setProperty(PLAN, "one_sweep:128");
    return fromKept(f, linear());
  }

  private static Runnable stages(BackwardFixture f) {
    System.setProperty(FORWARD_PLAN, "wgmma:2048/");
    return fromKept(f, linear());
  }

  /** As a training loop repeats it. */
  private static Runnable fromKept(BackwardFixture f, LinearAttention.Builder operator) {
    LinearAttention attention = operator.keepState(true).on(f.gpu);
    Forward y = f.kept(attention);
    return () -> {
      attention.forwardInto(y);
      attention.backwardInto(y, f.dO, null, f.gradients);
    };
  }

  private static Runnable oneSweepOfPacked(BackwardFixture f) {
    Sequences packing = Sequences.ofLengths(0, 1, 999);
    return oneSweep(f, f.input.packed(packing).from(f.state(3)));
  }

  private static Runnable backwardOfPackedStates(BackwardFixture f) {
    LinearAttention attention = linear().on(f.gpu);
    AttentionInput packed = f.input.packed(Sequences.ofLengths(0, 1, 99)).from(f.state(3));
    StateGradient last = f.stateGradient(3);
    Gradients into = f.with(f.stateGradient(3));
    return () -> attention.backwardInto(packed, f.o, f.g, f.dO, last, into);
  }

  /** Two calls in turn. */
  private static Runnable backwardsOfTwoOperators(BackwardFixture f) {
    Runnable plain = backward(f, linear());
    Runnable perHead = backward(f, linear().coefficients(new float[8], new float[8]));
    return () -> {
      plain.run();
      perHead.run();
    };
  }

  static Stream<Arguments> calls() {
    return Stream.of(
        call("forward", SHORT, RepeatedCallTest::forward),
        call("forward of segments", LONG, RepeatedCallTest::forward),
        call("forward that moves its state", SHORT, RepeatedCallTest::forwardOfAState),
        call("backward", SHORT, f -> backward(f, linear())),
        call("backward of segments", LONG, f -> backward(f, linear())),
        call("backward of groups of heads", GROUPED, f -> backward(f, linear())),
        call("normalised", SHORT, f -> backward(f, linear().normalizeQueriesAndKeys(true))),
        call(
            "normalised, from kept lengths",
            SHORT,
            f -> fromKept(f, linear().normalizeQueriesAndKeys(true))),
        call("chain", TWO_SEGMENTS, RepeatedCallTest::chain),
        call("stages", STAGES, RepeatedCallTest::stages),
        call("without causality", SHORT, f -> backward(f, linear().causal(false))),
        call("states that move", SHORT, RepeatedCallTest::backwardOfStates),
        call("segments and states that move", LONG, RepeatedCallTest::backwardOfStates),
        call("one sweep", MANY, f -> oneSweep(f, f.input)),
        call("one sweep from a state", MANY, f -> oneSweep(f, f.input.from(f.state(1)))),
        call("one sweep of packed sequences", PACKED, RepeatedCallTest::oneSweepOfPacked),
        call("packed, with states", SHORT, RepeatedCallTest::backwardOfPackedStates),
        call("in turn", SHORT, RepeatedCallTest::backwardsOfTwoOperators));
  }

  private static Arguments call(
      String name, AttentionShape shape, Function<BackwardFixture, Runnable> made) {
    return Arguments.of(name, shape, made);
  }

  @ParameterizedTest(name = "{0}")
  @MethodSource("calls")
  void takesNoHeap(String name, AttentionShape shape, Function<BackwardFixture, Runnable> made) {
    try (BackwardFixture f = new BackwardFixture(shape, DType.BF16)) {
      assertThat(allocatedBytes(made.apply(f))).as(name).isZero();
    }
  }

  /** Of 1000 calls by this thread, once the JVM has compiled what they run. */
  private static long allocatedBytes(Runnable call) {
    ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
    long allocated = Long.MAX_VALUE;
    for (int round = 0; round < 60 && allocated > 0; round++) {
      long before = threads.getCurrentThreadAllocatedBytes();
      for (int i = 0; i < 1000; i++) {
        call.run();
      }
      allocated = threads.getCurrentThreadAllocatedBytes() - before;
    }
    return allocated;
  }

  @Test
  void asksCudaForTheDeviceAndTheLaunchesAlone() {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.F32)) {
      Runnable forward = forward(f);
      Runnable backward = backward(f, linear());
      backward.run(); // the larger workspace of the two
      for (Runnable call : new Runnable[] {forward, backward}) {
        call.run();
        long launches = cudart.launches();
        long calls = cudart.calls();
        call.run();
        assertThat(cudart.calls() - calls).isEqualTo(1 + cudart.launches() - launches);
      }
    }
  }

  @Test
  void aStateThatIsTornEndsBackwardsFromIt() {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.F32)) {
      LinearAttention attention = linear().on(f.gpu);
      AttentionState state = f.state(1);
      AttentionInput continued = f.input.from(state);
      attention.backwardInto(continued, f.o, f.g, f.dO, f.gradients);
      attention.backwardInto(continued, f.o, f.g, f.dO, f.gradients);
      cudart.failAt("cudaLaunchKernelExC", 1, ILLEGAL_ADDRESS);
      assertThatThrownBy(() -> attention.forwardInto(continued, f.o, f.g, state))
          .isInstanceOf(CudaException.class);
      assertThatThrownBy(() -> attention.backwardInto(continued, f.o, f.g, f.dO, f.gradients))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("the call that was to write the initial state failed");
    }
  }

  @Test
  void anEqualInputIsRepeatedAndOthersAreNot() {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16)) {
      LinearAttention attention = linear().on(f.gpu);
      AttentionInput packed = f.input.packed(Sequences.ofLengths(40, 60));
      AttentionInput equal = AttentionInput.of(f.input.q(), f.input.k(), f.input.v());
      assertThat(equal).isEqualTo(f.input).hasSameHashCodeAs(f.input);
      assertThat(equal.packed(Sequences.ofLengths(40, 60))).isEqualTo(packed);
      List<AttentionInput> others =
          List.of(
              packed,
              f.input.packed(Sequences.ofLengths(60, 40)),
              f.input.from(f.state(1)),
              AttentionInput.of(f.input.k(), f.input.k(), f.input.v()));
      attention.backwardInto(f.input, f.o, f.g, f.dO, f.gradients);
      List<ByteBuffer> first = launched(0);
      int launches = Math.toIntExact(cudart.launches());
      attention.backwardInto(equal, f.o, f.g, f.dO, f.gradients);
      assertThat(launched(launches)).isEqualTo(first);
      for (AttentionInput other : others) {
        assertThat(other).isNotEqualTo(f.input);
        launches = Math.toIntExact(cudart.launches());
        attention.backwardInto(other, f.o, f.g, f.dO, f.gradients);
        assertThat(launched(launches)).isNotEqualTo(first);
      }
    }
  }

  @Test
  void aClosedTensorIsRefusedWhereverItIs() {
    int tensors = 11 + 3 * 3; // with S, z and u, and the gradients of two states
    for (int closed = 0; closed < tensors; closed++) {
      try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16)) {
        AttentionState state = f.state(1);
        StateGradient last = f.stateGradient(1);
        StateGradient first = f.stateGradient(1);
        Gradients into = f.with(first);
        List<Tensor> all = new ArrayList<>();
        Collections.addAll(all, f.input.q(), f.input.k(), f.input.v(), f.o, f.g, f.dO);
        Collections.addAll(all, into.dq(), into.dk(), into.dv(), into.da(), into.db());
        Collections.addAll(all, state.s(), state.z(), state.u());
        Collections.addAll(all, last.ds(), last.dz(), last.du());
        Collections.addAll(all, first.ds(), first.dz(), first.du());
        assertThat(all).hasSize(tensors);
        LinearAttention attention = linear().on(f.gpu);
        AttentionInput input = f.input.from(state);
        attention.backwardInto(input, f.o, f.g, f.dO, last, into);
        all.get(closed).close();
        long launches = cudart.launches();
        assertThatThrownBy(() -> attention.backwardInto(input, f.o, f.g, f.dO, last, into))
            .isInstanceOf(IllegalArgumentException.class)
            .hasMessageContaining("is closed");
        assertThat(cudart.launches()).isEqualTo(launches);
      }
    }
  }

  @Test
  void memoryThatTheCallerFreedIsRefused() {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16)) {
      Arena arena = Arena.ofShared();
      TensorShape shape = f.g.shape();
      try (Tensor g = f.gpu.pin(arena.allocate(4 * shape.elements(), 16), DType.F32, shape)) {
        LinearAttention attention = linear().on(f.gpu);
        attention.forwardInto(f.input, f.o, g, null);
        attention.backwardInto(f.input, f.o, g, f.dO, f.gradients);
        arena.close();
        long launches = cudart.launches();
        assertThatThrownBy(() -> attention.forwardInto(f.input, f.o, g, null))
            .hasMessageContaining("arena is closed");
        assertThatThrownBy(() -> attention.backwardInto(f.input, f.o, g, f.dO, f.gradients))
            .hasMessageContaining("arena is closed");
        assertThat(cudart.launches()).isEqualTo(launches);
      }
    }
  }

  @Test
  void everyLayerOfAModelIsRepeated() {
    AttentionShape shape = AttentionShape.of(1, 2, 100, D);
    List<BackwardFixture> layers = new ArrayList<>();
    try (Backend gpu = Backend.cuda(0)) {
      LinearAttention attention = linear().on(gpu);
      for (int i = 0; i < LAYERS; i++) {
        layers.add(new BackwardFixture(shape, DType.BF16));
      }
      runAll(attention, layers);
      runAll(attention, layers); // the first backward has moved the workspace
      long launches = cudart.launches();
      long calls = cudart.calls();
      runAll(attention, layers);
      launches = cudart.launches() - launches;
      assertThat(cudart.calls() - calls).isEqualTo(2 * LAYERS + launches);
    }
    layers.forEach(BackwardFixture::close);
  }

  private static void runAll(LinearAttention attention, List<BackwardFixture> layers) {
    for (BackwardFixture f : layers) {
      attention.forwardInto(f.input, f.o, f.g, null);
    }
    for (BackwardFixture f : layers.reversed()) {
      attention.backwardInto(f.input, f.o, f.g, f.dO, f.gradients);
    }
  }

  @Test
  void everyLaunchIsToldThatAStateMovedOn() {
    for (AttentionShape shape : List.of(SHORT, LONG)) {
      reset();
      try (BackwardFixture f = new BackwardFixture(shape, DType.BF16)) {
        AttentionState state = f.state(1);
        AttentionInput continued = f.input.from(state);
        LinearAttention attention = linear().on(f.gpu);
        LinearAttention again = linear().on(f.gpu);
        attention.backwardInto(continued, f.o, f.g, f.dO, f.gradients);
        List<ByteBuffer> before = launched(0);
        attention.forwardInto(continued, f.o, f.g, state);
        int repeated = Math.toIntExact(cudart.launches());
        attention.backwardInto(continued, f.o, f.g, f.dO, f.gradients);
        List<ByteBuffer> after = launched(repeated);
        int fresh = Math.toIntExact(cudart.launches());
        again.backwardInto(continued, f.o, f.g, f.dO, f.gradients);
        assertThat(after)
            .as("as if it were filled in now, and not as before")
            .containsExactlyElementsOf(launched(fresh))
            .isNotEqualTo(before);
      }
    }
  }

  @Test
  void oneSweepIsRepeatedWhileItsStateIsThatOfTheForward() {
    try (BackwardFixture f = new BackwardFixture(MANY, DType.BF16)) {
      LinearAttention attention = linear().on(f.gpu);
      AttentionState last = f.state(1);
      Forward y = Forward.over(f.input, f.o, f.g, last);
      attention.forwardInto(y);
      int first = Math.toIntExact(cudart.launches());
      attention.backwardInto(y, f.dO, null, f.gradients);
      List<ByteBuffer> launched = launched(first);
      assertThat(launched).hasSize(2);
      int again = Math.toIntExact(cudart.launches());
      attention.backwardInto(y, f.dO, null, f.gradients);
      assertThat(launched(again)).isEqualTo(launched);
      attention.forwardInto(f.input.from(last), f.o, f.g, last); // moves it on
      int moved = Math.toIntExact(cudart.launches());
      attention.backwardInto(y, f.dO, null, f.gradients);
      assertThat(cudart.launchKernel(moved)).contains("_query_gradient_");
      assertThat(launched(moved)).hasSize(3);
      attention.forwardInto(y); // brings it back
      int back = Math.toIntExact(cudart.launches());
      attention.backwardInto(y, f.dO, null, f.gradients);
      assertThat(cudart.launchKernel(back)).contains("one_sweep");
      last.z().close();
      int closed = Math.toIntExact(cudart.launches());
      attention.backwardInto(y, f.dO, null, f.gradients);
      assertThat(cudart.launchKernel(closed)).contains("_query_gradient_");
    }
  }

  @Test
  void aRepeatedOneSweepIsToldThatItsFirstStateMovedOn() {
    try (BackwardFixture f = new BackwardFixture(MANY, DType.BF16)) {
      AttentionState first = f.state(1);
      AttentionState last = f.state(1);
      Forward y = Forward.over(f.input.from(first), f.o, f.g, last);
      LinearAttention attention = linear().on(f.gpu);
      attention.forwardInto(y.input(), f.o, f.g, first); // the workspace grows for it
      attention.forwardInto(y);
      int before = Math.toIntExact(cudart.launches());
      attention.backwardInto(y, f.dO, null, f.gradients);
      List<ByteBuffer> launched = launched(before);
      attention.forwardInto(y.input(), f.o, f.g, first);
      attention.forwardInto(y);
      int repeated = Math.toIntExact(cudart.launches());
      attention.backwardInto(y, f.dO, null, f.gradients);
      List<ByteBuffer> after = launched(repeated);
      int fresh = Math.toIntExact(cudart.launches());
      linear().on(f.gpu).backwardInto(y, f.dO, null, f.gradients);
      assertThat(cudart.launchKernel(repeated)).contains("one_sweep");
      assertThat(after).isEqualTo(launched(fresh)).isNotEqualTo(launched);
    }
  }

  /** The arguments of all launches from this one on. */
  private static List<ByteBuffer> launched(int first) {
    List<ByteBuffer> arguments = new ArrayList<>();
    for (int i = first; i < cudart.launches(); i++) {
      long bytes = structOf(cudart.launchKernel(i)).byteSize();
      arguments.add(ByteBuffer.wrap(cudart.launchArguments(i, bytes).toArray(JAVA_BYTE)));
    }
    return arguments;
  }

  private static StructLayout structOf(String kernel) {
    return switch (kernel.replaceAll("la_chunked_|_(bf16|f32).*|_d128", "")) {
      case "gradient_rows_simt" -> GradientStructs.GRADIENT_ROWS;
      case "state_sums_wgmma" -> ChunkedStructs.HOPPER;
      case "state_scan_simt" -> ChunkedStructs.STATE_SCAN;
      case "gradient_sums_mma", "key_value_gradient_mma", "query_gradient_mma" ->
          GradientStructs.GRADIENT;
      case "one_sweep_gradient_wgmma" -> GradientStructs.HOPPER_ONE_SWEEP;
      case "query_gradient_wgmma", "gradient_sums_wgmma", "key_value_gradient_wgmma" ->
          GradientStructs.HOPPER_GRADIENTS;
      case "gradient_recurrence_simt" -> GradientStructs.GRADIENT_RECURRENCE;
      default -> throw new AssertionError("no struct is known here of " + kernel);
    };
  }
}
