package io.github.linattn.test.fault;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Event;
import io.github.linattn.Graph;
import io.github.linattn.LinearAttention;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import io.github.linattn.cuda.CudaException;
import java.io.IOException;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/**
 * Breaks when a stream keeps more after each call that fails, or when closing it frees what another
 * thread uses at that time.
 */
final class ChunkedStreamTest extends OnFakeKernels {
  private static final int ILLEGAL_ADDRESS = 700;
  private static final int D = FakeKernels.HEAD_DIM;
  private static final AttentionShape SHORT = AttentionShape.of(1, 2, 100, D);
  private static final AttentionShape TOKEN = AttentionShape.of(1, 2, 1, D);

  @AfterEach
  void letGo() {
    cudart.letGo();
  }

  /** Work of a thread of its own. */
  private static final class Beside {
    private final FutureTask<Boolean> task;
    private final Thread thread;

    Beside(Runnable work) {
      task = new FutureTask<>(work, true);
      thread = new Thread(task);
      thread.start();
    }

    /** Returns once it can't go on by itself. */
    void awaitRest() {
      await(
          () ->
              switch (thread.getState()) {
                case BLOCKED, WAITING, TERMINATED -> true;
                default -> false;
              });
    }

    boolean isDone() {
      return task.isDone();
    }

    /** Throws what it has thrown. */
    void finish() throws Exception {
      task.get(20, TimeUnit.SECONDS);
    }
  }

  private static Beside heldIn(String function, long k, Runnable work) {
    cudart.hold(function, k);
    var held = new Beside(work);
    await(cudart::isHolding);
    return held;
  }

  private static void await(BooleanSupplier condition) {
    Instant end = Instant.now().plus(Duration.ofSeconds(20));
    while (!condition.getAsBoolean()) {
      assertThat(Instant.now()).as("waited for too long").isBefore(end);
      Thread.onSpinWait();
    }
  }

  private static Runnable forward(BackwardFixture f, Stream stream) {
    LinearAttention attention = LinearAttention.builder().on(f.gpu, stream);
    return () -> attention.forwardInto(f.input.q(), f.input.k(), f.input.v(), f.o, f.g);
  }

  @Test
  void aStreamIsClosedBehindTheCallThatUsesIt() throws Exception {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16)) {
      Stream stream = f.gpu.newStream();
      Beside call = heldIn("cudaLaunchKernelExC", 1, forward(f, stream));
      long bytes = cudart.deviceBytes();
      var close = new Beside(stream::close);
      close.awaitRest();
      assertThat(close.isDone()).as("closed beside the call").isFalse();
      assertThat(cudart.deviceBytes()).isEqualTo(bytes);
      cudart.letGo();
      call.finish();
      close.finish();
      assertThat(cudart.deviceBytes()).isLessThan(bytes);
      assertThatThrownBy(forward(f, stream)::run).hasMessageContaining("the stream is closed");
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void aGraphIsNotLaunchedWhileItsStreamIsClosed() throws Exception {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16)) {
      Stream stream = f.gpu.newStream();
      try (Graph graph = stream.capture(forward(f, stream))) {
        Beside close = heldIn("cudaStreamSynchronize", 1, stream::close);
        var launch = new Beside(graph::launch);
        launch.awaitRest();
        assertThat(cudart.launches()).isZero();
        cudart.letGo();
        close.finish();
        assertThatThrownBy(launch::finish).cause().hasMessageContaining("the stream is closed");
      }
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void aStreamIsClosedBehindItsOtherUses() throws Exception {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16);
        Stream other = f.gpu.newStream();
        Event event = other.record()) {
      Map<String, Consumer<Stream>> uses =
          Map.of(
              "cudaStreamSynchronize", Stream::synchronize,
              "cudaMemcpyAsync", stream -> stream.copy(f.input.q(), f.o),
              "cudaEventRecord", stream -> stream.record().close(),
              "cudaStreamWaitEvent", stream -> stream.waitFor(event));
      for (var use : uses.entrySet()) {
        Stream stream = f.gpu.newStream();
        Beside call = heldIn(use.getKey(), 1, () -> use.getValue().accept(stream));
        var close = new Beside(stream::close);
        close.awaitRest();
        cudart.letGo();
        call.finish();
        close.finish();
        assertThatThrownBy(() -> use.getValue().accept(stream))
            .isInstanceOf(IllegalStateException.class)
            .hasMessageContaining("closed");
      }
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void aGraphIsNotLaunchedBehindItsTensors() {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16);
        Stream stream = f.gpu.newStream();
        Tensor copied = f.gpu.allocate(DType.BF16, f.o.shape());
        Graph forward = stream.capture(forward(f, stream));
        Graph again = stream.capture(forward(f, stream));
        Graph copy = stream.capture(() -> stream.copy(copied, f.input.q()))) {
      copied.close();
      forward.launch();
      again.launch();
      assertThatThrownBy(copy::launch)
          .isInstanceOf(IllegalStateException.class)
          .hasMessageContaining("which the graph reads or writes, is closed");
      f.o.close();
      long launches = cudart.launches();
      for (Graph graph : List.of(forward, again)) {
        assertThatThrownBy(graph::launch)
            .isInstanceOf(IllegalStateException.class)
            .hasMessageContaining("which the graph reads or writes, is closed");
      }
      assertThat(cudart.launches()).isEqualTo(launches);
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void aStreamTellsOthersItsHandle() {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16)) {
      Stream stream = f.gpu.newStream();
      assertThat(stream.nativeHandle().orElseThrow()).isNotZero();
      stream.close();
      assertThatThrownBy(stream::nativeHandle).hasMessageContaining("the stream is closed");
    }
  }

  /** What comes to a closed stream has written nothing. */
  @Test
  void aStateIsAsItWasAfterACallToAClosedStream() {
    try (BackwardFixture f = new BackwardFixture(TOKEN, DType.BF16)) {
      AttentionState state = f.state(1);
      Stream stream = f.gpu.newStream();
      LinearAttention closed = LinearAttention.builder().on(f.gpu, stream);
      stream.close();
      AttentionInput in = f.input;
      assertThatThrownBy(() -> closed.decodeInto(in.q(), in.k(), in.v(), state, f.o, f.g))
          .hasMessageContaining("the stream is closed");
      LinearAttention.builder().on(f.gpu).decodeInto(in.q(), in.k(), in.v(), state, f.o, f.g);
    }
  }

  @Test
  void deviceMemoryOfOthersIsAsLongAsItsTensor() {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16)) {
      Tensor dq = f.gradients.dq();
      TensorShape whole = TensorShape.of(dq.shape().elements());
      TensorShape more = TensorShape.of(dq.shape().elements() + (1 << 20));
      long address = dq.segment().address();
      f.gpu.wrapDeviceMemory(address, DType.BF16, whole).close();
      assertThatThrownBy(() -> f.gpu.wrapDeviceMemory(address, DType.BF16, more))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining(
              ", the last byte of the tensor, is no memory of cuda:0: CUDA does not know it");
    }
  }

  @Test
  @SuppressWarnings("NullAway") // what a caller outside the reach of a null checker may pass
  void anEventThatIsLeftOutIsNamed() {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16);
        Stream stream = f.gpu.newStream();
        Event event = stream.record()) {
      assertThatThrownBy(() -> stream.waitFor(null)).hasMessage("event is null");
      assertThatThrownBy(() -> event.millisSince(null)).hasMessage("earlier is null");
    }
  }

  @Test
  void timeIsTakenBetweenEventsOfOneBackend() {
    try (Backend one = Backend.cuda(0);
        Backend other = Backend.cuda(0);
        Stream stream = one.newStream();
        Stream theirs = other.newStream();
        Event event = stream.record();
        Event earlier = theirs.record()) {
      assertThatThrownBy(() -> event.millisSince(earlier))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessage("the earlier event is of another backend");
    }
  }

  @Test
  void aStreamTakesWorkWhileAnotherThreadWaitsForIt() throws Exception {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16);
        Stream stream = f.gpu.newStream()) {
      Beside waiting = heldIn("cudaStreamSynchronize", 1, stream::synchronize);
      try {
        new Beside(forward(f, stream)).finish();
        assertThat(waiting.isDone()).isFalse();
      } finally {
        cudart.letGo(); // or closing the stream would wait, too
      }
      waiting.finish();
    }
  }

  @Test
  void aStreamIsNotClosedByWhatItCaptures() {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16);
        Stream stream = f.gpu.newStream()) {
      assertThatThrownBy(() -> stream.capture(stream::close))
          .isInstanceOf(IllegalStateException.class)
          .hasMessageContaining("is being captured");
      forward(f, stream).run();
      stream.synchronize();
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void whatEndsACaptureLeavesTheStreamAsItWas() {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16);
        Stream stream = f.gpu.newStream()) {
      Runnable work =
          () -> {
            forward(f, stream).run();
            throwAny(new IOException("of the caller"));
          };
      assertThatThrownBy(() -> stream.capture(work)).hasMessage("of the caller");
      assertThat(cudart.launches()).isZero();
      forward(f, stream).run();
      assertThat(cudart.launches()).isPositive();
      stream.synchronize();
      stream.capture(forward(f, stream)).close();
    }
    assertThat(cudart.live()).isZero();
  }

  /** As languages without checked exceptions do. */
  @SuppressWarnings({"unchecked", "TypeParameterUnusedInFormals"})
  private static <E extends Throwable> void throwAny(Throwable thrown) throws E {
    throw (E) thrown;
  }

  @Test
  void aGraphIsNotLaunchedBehindItsBackend() {
    BackwardFixture f = new BackwardFixture(SHORT, DType.BF16);
    Stream stream = f.gpu.newStream();
    Graph graph = stream.capture(forward(f, stream));
    f.gpu.close();
    assertThatThrownBy(graph::launch)
        .isInstanceOf(IllegalStateException.class)
        .hasMessageContaining("the backend is closed");
    assertThat(cudart.launches()).isZero();
    graph.close();
    stream.close();
    f.close();
    assertThat(cudart.live()).isZero();
  }

  @Test
  @SuppressWarnings("NullAway") // what a caller outside the reach of a null checker may pass
  void aStateThatIsLeftOutIsNamedAlsoBehindTheSameCallWithout() {
    try (BackwardFixture f = new BackwardFixture(TOKEN, DType.BF16);
        Stream stream = f.gpu.newStream()) {
      forward(f, stream).run();
      LinearAttention attention = LinearAttention.builder().on(f.gpu, stream);
      assertThatThrownBy(
              () -> attention.decodeInto(f.input.q(), f.input.k(), f.input.v(), null, f.o, f.g))
          .hasMessage("state is null");
      assertThatThrownBy(() -> stream.capture(null)).hasMessage("work is null");
    }
  }

  @Test
  void noOtherStreamJoinsACapture() {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16);
        Stream stream = f.gpu.newStream();
        Stream other = f.gpu.newStream()) {
      Runnable work =
          () -> {
            forward(f, stream).run();
            try (Event event = stream.record()) {
              stream.waitFor(event);
              assertThatThrownBy(() -> other.waitFor(event))
                  .isInstanceOf(IllegalStateException.class)
                  .hasMessageContaining("while its stream was captured");
            }
          };
      stream.capture(work).close();
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void aBackendThatLoadsAKernelCanBeClosedAgain() throws Exception {
    BackwardFixture f = new BackwardFixture(SHORT, DType.BF16);
    Stream stream = f.gpu.newStream();
    Beside call = heldIn("cudaLibraryGetKernel", 1, forward(f, stream));
    assertThatThrownBy(f.gpu::close).isInstanceOf(IllegalStateException.class);
    cudart.letGo();
    call.finish();
    stream.close();
    f.close();
    assertThat(cudart.live()).isZero();
  }

  @Test
  void ticketsThatCannotBeClearedAreFreed() {
    try (BackwardFixture f = new BackwardFixture(TOKEN, DType.BF16)) {
      AttentionState of = f.state(1);
      LinearAttention attention = LinearAttention.builder().on(f.gpu);
      Runnable step =
          () -> {
            AttentionState state = AttentionState.over(of.s(), of.z(), of.u(), 0);
            attention.decodeInto(f.input.q(), f.input.k(), f.input.v(), state, f.o, f.g);
          };
      long left = leftByFailures(step, "cudaMemsetAsync");
      step.run();
      assertThat(cudart.live()).as("they, and the kernel").isEqualTo(left + 2);
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void anImageWhoseKernelIsRefusedServesTheNextCall() {
    for (String refused : List.of("cudaLibraryGetKernel", "cudaFuncSetAttribute")) {
      try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16);
          Stream stream = f.gpu.newStream()) {
        leftByFailures(forward(f, stream), refused);
        forward(f, stream).run();
      }
      assertThat(cudart.live()).isZero();
    }
  }

  @Test
  void aStateWhoseCallFailedIsNoInitialOneUntilAnotherHasFilledIt() {
    try (BackwardFixture f = new BackwardFixture(SHORT, DType.BF16)) {
      LinearAttention attention = LinearAttention.builder().on(f.gpu);
      AttentionState state = f.state(1);
      AttentionInput continued = f.input.from(state);
      Runnable call = () -> attention.forwardInto(continued, f.o, f.g, state);
      for (String when : List.of("anew", "repeated")) {
        cudart.failAt("cudaLaunchKernelExC", 1, ILLEGAL_ADDRESS);
        assertThatThrownBy(call::run).as(when).isInstanceOf(CudaException.class);
        assertThatThrownBy(call::run)
            .as(when)
            .isInstanceOf(IllegalArgumentException.class)
            .hasMessageStartingWith("the call that was to write the initial state failed");
        attention.forwardInto(f.input, f.o, f.g, state);
        assertThatThrownBy(() -> attention.forwardInto(continued, f.g, f.g, state))
            .as("refused, so that nothing is written")
            .isInstanceOf(IllegalArgumentException.class);
        call.run();
      }
      assertThat(state.count(0)).isEqualTo(2 * SHORT.tokens());
    }
  }

  /** What is alive after a call has failed, which is no more when it has failed again. */
  private static long leftByFailures(Runnable call, String function) {
    long left = 0;
    for (int i = 0; i < 3; i++) {
      cudart.failAt(function, 1, ILLEGAL_ADDRESS);
      assertThatThrownBy(call::run)
          .isInstanceOf(CudaException.class)
          .hasMessageContaining(function);
      if (i > 0) {
        assertThat(cudart.live()).as("after another failure of " + function).isEqualTo(left);
      }
      left = cudart.live();
    }
    return left;
  }
}
