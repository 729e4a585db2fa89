package io.github.linattn.test.fault;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Graph;
import io.github.linattn.LinearAttention;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import jdk.jfr.Recording;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordingFile;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Breaks when a flight recording lacks what CUDA was asked for, or shows it wrongly. */
final class FlightRecordingTest extends OnFakeKernels {
  private static final String OURS = "io.github.linattn.";
  private static final AttentionShape SHAPE = AttentionShape.of(1, 8, 100, FakeKernels.HEAD_DIM);

  @TempDir private Path folder;

  /** What was recorded meanwhile, in the order in which it ended. */
  private List<RecordedEvent> recorded(Runnable work) throws IOException {
    Path file = folder.resolve("linattn.jfr");
    try (var recording = new Recording()) {
      recording.start();
      work.run();
      recording.stop();
      recording.dump(file);
    }
    List<RecordedEvent> events = new ArrayList<>(RecordingFile.readAllEvents(file));
    events.sort((x, y) -> x.getEndTime().compareTo(y.getEndTime()));
    return events;
  }

  private static List<RecordedEvent> named(List<RecordedEvent> events, String name) {
    return events.stream()
        .filter(event -> event.getEventType().getName().equals(OURS + name))
        .toList();
  }

  @Test
  void launchesAreThoseThatCudaSaw() throws IOException {
    try (BackwardFixture f = new BackwardFixture(SHAPE, DType.BF16)) {
      LinearAttention attention = LinearAttention.builder().on(f.gpu);
      Runnable pass =
          () -> {
            attention.forwardInto(f.input, f.o, f.g, null);
            attention.backwardInto(f.input, f.o, f.g, f.dO, f.gradients);
          };
      pass.run(); // the recording begins when all is loaded
      int first = Math.toIntExact(cudart.launches());
      List<RecordedEvent> launches = named(recorded(pass), "KernelLaunch");
      assertThat(launches).hasSize(Math.toIntExact(cudart.launches()) - first).isNotEmpty();
      for (int i = 0; i < launches.size(); i++) {
        RecordedEvent launch = launches.get(i);
        assertThat(launch.getString("kernel")).isEqualTo(cudart.launchKernel(first + i));
        assertThat(launch.getInt("gridX")).isEqualTo(cudart.launchBlocks(first + i));
        assertThat(launch.getInt("gridY")).isOne();
        assertThat(launch.getInt("blockThreads")).isPositive();
        assertThat(launch.getLong("sharedBytes")).isNotNegative();
        assertThat(launch.getLong("stream")).isNotZero();
        assertThat(launch.getDuration()).isPositive();
      }
      assertThat(launches)
          .extracting(launch -> launch.getLong("stream"))
          .containsOnly(launches.getFirst().getLong("stream"));
    }
  }

  @Test
  void copiesHaveADirection() throws IOException {
    TensorShape shape = TensorShape.of(4, 8);
    try (Backend gpu = Backend.cuda(0);
        Stream stream = gpu.newStream();
        Tensor device = gpu.allocate(DType.F32, shape);
        Tensor other = gpu.allocate(DType.F32, shape);
        Tensor pinned = gpu.allocatePinned(DType.F32, shape)) {
      List<RecordedEvent> events =
          recorded(
              () -> {
                device.copyFrom(new float[32]);
                device.toFloats();
                stream.copy(pinned, device);
                stream.copy(device, other);
                stream.copy(other, pinned);
                try (Graph graph = stream.capture(() -> {})) {
                  graph.launch();
                }
              });
      assertThat(named(events, "Copy"))
          .extracting(copy -> copy.getString("direction") + copy.getBoolean("asynchronous"))
          .containsExactly(
              "to devicefalse", "to hostfalse", "to devicetrue", "on devicetrue", "to hosttrue");
      assertThat(named(events, "Copy")).allMatch(copy -> copy.getLong("bytes") == 128);
      assertThat(named(events, "GraphLaunch")).hasSize(1);
    }
  }

  @Test
  void memoryThatIsTakenIsGivenBack() throws IOException {
    List<RecordedEvent> events =
        named(
            recorded(
                () -> {
                  try (BackwardFixture f = new BackwardFixture(SHAPE, DType.F32)) {
                    f.backward(LinearAttention.builder());
                  }
                }),
            "DeviceMemory");
    long before = events.getFirst().getLong("bytesInUse") - events.getFirst().getLong("bytes");
    long held = before;
    for (RecordedEvent event : events) {
      long bytes = event.getLong("bytes");
      held += event.getString("operation").equals("allocate") ? bytes : -bytes;
      assertThat(event.getLong("bytesInUse")).isEqualTo(held);
      assertThat(event.getLong("address")).isNotZero();
      assertThat(bytes).isPositive();
    }
    assertThat(held).isEqualTo(before);
    assertThat(events).extracting(event -> event.getString("operation")).contains("free");
    assertThat(events.getFirst().getStackTrace()).isNotNull();
  }

  @Test
  void anEventCanBeLeftOut() throws IOException {
    Path file = folder.resolve("without.jfr");
    try (BackwardFixture f = new BackwardFixture(SHAPE, DType.BF16);
        var recording = new Recording()) {
      recording.disable(OURS + "KernelLaunch");
      recording.enable(OURS + "DeviceMemory").withThreshold(Duration.ofHours(1));
      recording.start();
      f.backward(LinearAttention.builder());
      recording.stop();
      recording.dump(file);
    }
    assertThat(RecordingFile.readAllEvents(file))
        .noneMatch(event -> event.getEventType().getName().startsWith(OURS + "K"))
        .noneMatch(event -> event.getEventType().getName().startsWith(OURS + "D"));
  }
}
