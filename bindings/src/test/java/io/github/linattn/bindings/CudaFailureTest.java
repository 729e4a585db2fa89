package io.github.linattn.bindings;

import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static java.util.stream.Collectors.toCollection;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.catchThrowableOfType;

import io.github.linattn.cuda.CudaException;
import io.github.linattn.cuda.CudaOutOfMemoryException;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Fails each CUDA call of a session in turn: it must surface as itself, and leak nothing. */
class CudaFailureTest {
  private static final int LAUNCH_FAILURE = 719;

  private static final String FUNCTION = "--include-function ";

  /** Called by the search, or to describe a failure. */
  private static final Set<String> NOT_OF_A_SESSION =
      Set.of(
          "cudaRuntimeGetVersion",
          "cudaDriverGetVersion",
          "cudaGetErrorName",
          "cudaGetErrorString",
          "cudaGetLastError",
          "cudaPeekAtLastError");

  private static final Set<String> RELEASES =
      Set.of(
          "cudaFree",
          "cudaFreeAsync",
          "cudaFreeHost",
          "cudaHostUnregister",
          "cudaStreamDestroy",
          "cudaEventDestroy",
          "cudaLibraryUnload",
          "cudaGraphDestroy",
          "cudaGraphExecDestroy");

  private static final Set<String> AWAITED =
      Set.of(
          "cudaStreamSynchronize",
          "cudaEventSynchronize",
          "cudaDeviceSynchronize",
          "cudaEventElapsedTime",
          "cudaMemcpy");

  private static final Logger LOG = Logger.getLogger("io.github.linattn.cuda");

  private final List<String> warnings = new ArrayList<>();
  private final Handler collector = new Collector(warnings);
  private final CudartDouble cudart = CudartDouble.fresh();
  private final Cuda cuda = cudart.cuda();

  @BeforeEach
  void collectWarnings() {
    LOG.setUseParentHandlers(false);
    LOG.addHandler(collector);
  }

  @AfterEach
  void stopCollecting() {
    LOG.removeHandler(collector);
    LOG.setUseParentHandlers(true);
  }

  private static final class Collector extends Handler {
    private final List<String> messages;

    Collector(List<String> messages) {
      this.messages = messages;
    }

    @Override
    public void publish(LogRecord event) {
      messages.add(event.getMessage());
    }

    @Override
    public void flush() {}

    @Override
    public void close() {}
  }

  /** Makes every call that the wrapper has. */
  private void session() {
    cuda.setDevice(cuda.deviceCount() - 1);
    cuda.attribute(DeviceAttribute.MULTIPROCESSOR_COUNT, cuda.device());
    cuda.deviceName(0);
    cuda.memoryInfo();
    cuda.keepFreedMemory(0, true);
    try (Arena outer = Arena.ofShared()) {
      CudaStream stream = cuda.createStream(outer);
      try (Arena inner = Arena.ofConfined()) {
        copies(inner, stream);
        events(inner, stream);
        kernels(inner, stream);
        graphs(inner, stream);
        cuda.synchronize(stream);
      }
    }
    cuda.synchronizeDevice();
  }

  private void copies(Arena arena, CudaStream stream) {
    MemorySegment pinned = cuda.allocatePinned(arena, 64);
    MemorySegment host = Arena.ofAuto().allocate(64);
    cuda.registerHost(arena, host, HostAccess.READ_ONLY);
    DeviceMemory a = cuda.allocate(arena, 64);
    DeviceMemory b = cuda.allocateAsync(arena, 64, stream);
    cuda.pointerInfo(a.address());
    cuda.fill(a, (byte) 0, 64);
    cuda.clearAsync(b, 64, stream);
    cuda.copyToDevice(a, 0, pinned, 64);
    cuda.copyToDeviceAsync(a, 0, pinned, 64, stream);
    cuda.copyOnDeviceAsync(b, a, 64, stream);
    cuda.run(cuda.prepareCopy(b, a, 64, stream));
    cuda.copyToHost(pinned, b, 0, 64);
    cuda.copyToHostAsync(pinned, b, 64, stream);
  }

  private void events(Arena arena, CudaStream stream) {
    CudaEvent start = cuda.createEvent(arena);
    CudaEvent end = cuda.createEvent(arena);
    cuda.record(start, stream);
    cuda.record(end, stream);
    cuda.waitFor(stream, end);
    cuda.synchronize(end);
    cuda.elapsedMillis(start, end);
  }

  private void kernels(Arena arena, CudaStream stream) {
    CudaModule image = cuda.loadImage(arena, arena.allocateFrom("image"));
    CudaKernel kernel = cuda.kernel(image, "la_forward");
    cuda.setMaxDynamicSharedMemory(kernel, 200_000);
    MemorySegment arguments = arena.allocateFrom(JAVA_LONG, 1, 2);
    cuda.launch(new LaunchScratch(arena), kernel, 3, 2, 256, 200_000, stream, arguments);
  }

  private void graphs(Arena arena, CudaStream stream) {
    MemorySegment arguments = arena.allocate(192, 64);
    cuda.tensorMapWriter(arena)
        .extents(128, 100, 2, 1)
        .byteStrides(256, 25_600, 51_200)
        .box(64, 64)
        .write(arguments.asSlice(0, 128), TensorMapWriter.Element.BF16, 4096);
    CudaModule image = cuda.loadImage(arena, arena.allocateFrom("image"));
    CudaKernel kernel = cuda.kernel(image, "la_forward");
    PreparedLaunch launch =
        cuda.prepare(
            new LaunchScratch(arena),
            kernel,
            6,
            2,
            384,
            1000,
            LaunchOrder.EARLY,
            stream,
            arguments);
    cuda.run(launch);
    cuda.beginCapture(stream);
    cuda.run(launch);
    cuda.abandonCapture(stream);
    cuda.beginCapture(stream);
    cuda.run(launch);
    CudaGraph graph = cuda.endCapture(arena, stream);
    cuda.launch(graph, stream);
  }

  private String[] sessionCalls() {
    CudartDouble.fresh();
    session();
    return cudart.callNames();
  }

  @Test
  void sessionMakesEveryBoundCallAndLeavesNothing() throws IOException {
    Set<String> bound =
        Files.readAllLines(Path.of("src/main/jextract/cuda_runtime.args")).stream()
            .filter(line -> line.startsWith(FUNCTION))
            .map(line -> line.substring(FUNCTION.length()))
            .filter(function -> !NOT_OF_A_SESSION.contains(function))
            .collect(toCollection(HashSet::new));
    bound.add("cuTensorMapEncodeTiled"); // of the driver, found by name
    assertThat(new HashSet<>(Arrays.asList(sessionCalls()))).isEqualTo(bound);
    assertThat(cudart.live()).isZero();
  }

  @Test
  void eachFailureSurfacesAsItselfAndLeaksNothing() {
    String[] calls = sessionCalls();
    for (int k = 1; k <= calls.length; k++) {
      String call = calls[k - 1];
      CudartDouble.fresh();
      long failedReleases = cuda.failedReleases();
      cudart.failAt(k, LAUNCH_FAILURE);
      if (RELEASES.contains(call)) {
        session();
        assertThat(cuda.failedReleases()).as(call).isEqualTo(failedReleases + 1);
      } else {
        CudaException failure = catchThrowableOfType(CudaException.class, this::session);
        assertThat(failure).as("call %d, %s", k, call).isNotNull();
        assertThat(failure.call()).isEqualTo(call);
        assertThat(failure.status()).isEqualTo(LAUNCH_FAILURE);
        assertThat(failure.symbol()).isEqualTo("cudaErrorLaunchFailure");
        assertThat(failure.text()).isEqualTo("text of the test double");
        assertThat(failure.device()).hasValue(0);
        assertThat(failure.getMessage().contains("may come from an earlier launch"))
            .as(call)
            .isEqualTo(AWAITED.contains(call));
        assertThat(cuda.failedReleases()).isEqualTo(failedReleases);
      }
      assertThat(cudart.live()).as("live after call %d, %s", k, call).isZero();
    }
    assertThat(warnings.stream().map(warning -> warning.split(" ", 2)[0]))
        .as("one warning for each kind of release")
        .containsExactlyInAnyOrderElementsOf(RELEASES);
  }

  @Test
  void refusedAllocationSaysNeededAndFreeBytes() {
    cudart.memory(1000);
    try (Arena arena = Arena.ofConfined()) {
      cuda.allocate(arena, 600);
      for (Runnable refused :
          List.<Runnable>of(
              () -> cuda.allocate(arena, 500),
              () -> cuda.allocateAsync(arena, 500, CudaStream.ofAddress(0)))) {
        CudaOutOfMemoryException failure =
            catchThrowableOfType(CudaOutOfMemoryException.class, refused::run);
        assertThat(failure.neededBytes()).isEqualTo(500);
        assertThat(failure.freeBytes()).hasValue(400);
        assertThat(failure).hasMessageEndingWith("500 bytes needed, 400 bytes free");
      }
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void refusedPinningDoesNotInventFreeBytes() {
    try (Arena arena = Arena.ofConfined()) {
      cudart.failAt(1, 2);
      CudaOutOfMemoryException failure =
          catchThrowableOfType(
              CudaOutOfMemoryException.class, () -> cuda.allocatePinned(arena, 64));
      assertThat(failure.freeBytes()).isEmpty();
      assertThat(failure).hasMessageEndingWith("64 bytes needed, free bytes unknown");
    }
  }

  @Test
  void whatAClosedArenaCannotOwnIsReleasedAtOnce() {
    Arena closed = Arena.ofConfined();
    closed.close();
    List<Runnable> creations =
        List.of(
            () -> cuda.allocate(closed, 64),
            () -> cuda.allocateAsync(closed, 64, CudaStream.ofAddress(0)),
            () -> cuda.allocatePinned(closed, 64),
            () -> cuda.registerHost(closed, Arena.ofAuto().allocate(8), HostAccess.READ_WRITE),
            () -> cuda.createStream(closed),
            () -> cuda.createEvent(closed),
            () -> cuda.loadImage(closed, Arena.ofAuto().allocateFrom("image")));
    for (Runnable creation : creations) {
      assertThat(catchThrowableOfType(IllegalStateException.class, creation::run)).isNotNull();
      assertThat(cudart.live()).isZero();
    }
  }
}
