package io.github.linattn.test.fault;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Event;
import io.github.linattn.Forward;
import io.github.linattn.Gradients;
import io.github.linattn.Graph;
import io.github.linattn.LinearAttention;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import io.github.linattn.io.SafeTensors;
import io.github.linattn.io.SafeTensorsWriter;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Breaks when somebody who holds something native is left open and nobody is told. */
final class LeaksTest extends OnFakeKernels {
  private static final String PROPERTY = "linattn.leaks";
  private static final Logger LOG = Logger.getLogger("io.github.linattn.leaks");
  private static final TensorShape SMALL = TensorShape.of(2, 8);
  private static final AttentionShape SHAPE = AttentionShape.of(1, 2, 20, FakeKernels.HEAD_DIM);

  @TempDir private Path folder;

  private final List<LogRecord> reported = new CopyOnWriteArrayList<>();
  private final Handler listener =
      new Handler() {
        @Override
        public void publish(LogRecord line) {
          reported.add(line);
        }

        @Override
        public void flush() {}

        @Override
        public void close() {}
      };

  @BeforeEach
  void listen() {
    System.setProperty(PROPERTY, "report");
    LOG.setUseParentHandlers(false);
    LOG.addHandler(listener);
  }

  @AfterEach
  void listenNoMore() {
    LOG.removeHandler(listener);
    LOG.setUseParentHandlers(true);
    System.clearProperty(PROPERTY);
  }

  /** Opens one of each kind; whoever wants a leak forgets some. */
  private static List<AutoCloseable> ownersOf(Backend gpu, Arena arena) {
    List<AutoCloseable> owners = new ArrayList<>();
    owners.add(gpu.allocate(DType.BF16, SMALL));
    owners.add(gpu.allocatePinned(DType.F32, SMALL));
    owners.add(gpu.pin(arena.allocate(64, 16), DType.F32, SMALL));
    Stream stream = gpu.newStream();
    owners.add(stream);
    owners.add(stream.record());
    owners.add(stream.capture(() -> {}));
    return owners;
  }

  @Test
  void whoIsOpenWhenTheBackendClosesIsNamedWithItsMaker() throws Exception {
    try (Arena arena = Arena.ofShared()) {
      List<AutoCloseable> owners;
      try (Backend gpu = Backend.cuda(0)) {
        owners = ownersOf(gpu, arena);
      }
      String open = " is open though its backend cuda:0 closes; made by ";
      String here = "called at " + LeaksTest.class.getName() + ".ownersOf(LeaksTest.java:";
      assertThat(messages())
          .satisfiesExactly(
              one -> assertThat(one).startsWith("DEVICE memory of 32 bytes" + open + "Backend.all"),
              one -> assertThat(one).startsWith("PINNED memory of 64 bytes" + open + "Backend.all"),
              one -> assertThat(one).startsWith("PINNED memory of 64 bytes" + open + "Backend.pin"),
              one -> assertThat(one).startsWith("a stream" + open + "Backend.newStream"),
              one -> assertThat(one).startsWith("an event" + open),
              one -> assertThat(one).startsWith("a graph" + open))
          .allSatisfy(message -> assertThat(message).contains(here));
      assertThat(reported).extracting(LogRecord::getThrown).doesNotContainNull();
      reported.clear();
      for (AutoCloseable owner : owners.reversed()) {
        owner.close();
      }
      assertThat(reported).as("told once").isEmpty();
    }
  }

  @Test
  void resultsAreNamedByTheirCall() {
    List<AutoCloseable> kept = new ArrayList<>();
    try (Backend gpu = Backend.cuda(0);
        Tensor q = gpu.allocate(DType.BF16, SHAPE.q())) {
      LinearAttention attention = LinearAttention.builder().on(gpu);
      Forward y = attention.forward(q, q, q);
      kept.add(y);
      try (Gradients closed = attention.backward(y, q)) {
        assertThat(closed).isNotNull();
      }
    }
    assertThat(messages())
        .hasSize(2) // o and g
        .allSatisfy(message -> assertThat(message).contains("made by LinearAttention.forward, "));
    assertThat(kept).hasSize(1);
  }

  @Test
  void whatIsClosedIsNotNamed() throws Exception {
    try (Arena arena = Arena.ofShared();
        Backend gpu = Backend.cuda(0)) {
      for (AutoCloseable owner : ownersOf(gpu, arena).reversed()) {
        owner.close();
      }
    }
    collectGarbage();
    assertThat(messages()).isEmpty();
  }

  @Test
  void whoCanNoLongerBeClosedIsNamed() throws IOException {
    Path file = folder.resolve("empty.safetensors");
    new SafeTensorsWriter().write(file);
    forget(file);
    Instant end = Instant.now().plus(Duration.ofSeconds(20));
    while (reported.size() < 4 && Instant.now().isBefore(end)) {
      collectGarbage();
    }
    String lost = " was never closed, and nothing refers to it any more; made by ";
    assertThat(messages())
        .hasSize(4)
        .anySatisfy(message -> assertThat(message).startsWith("a backend" + lost + "Backend.cpu"))
        .anySatisfy(
            message ->
                assertThat(message).startsWith("HOST memory of 64 bytes" + lost + "Backend.alloc"))
        .anySatisfy(
            message ->
                assertThat(message).startsWith("HOST memory of 64 bytes" + lost + "Tensor.alloc"))
        .anySatisfy(
            message -> assertThat(message).startsWith("a mapped file" + lost + "SafeTensors.open"));
  }

  private static void forget(Path file) throws IOException {
    Backend cpu = Backend.cpu(1);
    assertThat(cpu.allocate(DType.F32, SMALL).isOpen()).isTrue();
    assertThat(Tensor.allocate(DType.F32, SMALL).isOpen()).isTrue();
    assertThat(SafeTensors.open(file).names()).isEmpty();
  }

  @Test
  void nothingIsRecordedUnlessAskedFor() throws IOException {
    System.clearProperty(PROPERTY);
    try (Arena arena = Arena.ofShared();
        Backend gpu = Backend.cuda(0)) {
      ownersOf(gpu, arena);
    }
    collectGarbage();
    assertThat(reported).isEmpty();
  }

  @Test
  void eventsAndGraphsThatAreClosedTwiceAreNotNamed() {
    try (Backend gpu = Backend.cuda(0);
        Stream stream = gpu.newStream();
        Event event = stream.record();
        Graph graph = stream.capture(() -> {})) {
      event.close();
      graph.close();
    }
    assertThat(messages()).isEmpty();
  }

  private List<String> messages() {
    return reported.stream().map(LogRecord::getMessage).toList();
  }

  private static void collectGarbage() {
    System.gc();
    try {
      Thread.sleep(50);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }
}
