package io.github.linattn.bindings;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.linattn.cuda.CudaException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import org.junit.jupiter.api.Test;

/** What the wrapper passes to CUDA, and what it refuses before. */
class CudaTest {
  private final CudartDouble cudart = CudartDouble.fresh();
  private final Cuda cuda = cudart.cuda();

  @Test
  void libraryIsLoadedOnceAndSaysWhatItIs() {
    CudaLibrary.Found found = (CudaLibrary.Found) CudaLibrary.load();
    assertThat(found).isSameAs(CudaLibrary.load());
    assertThat(found.path()).isAbsolute().hasFileName("libcudart.so.13");
    assertThat(found.deviceCount()).isEqualTo(1);
  }

  @Test
  void deviceIsDescribed() {
    cudart.devices(2);
    cuda.setDevice(1);
    assertThat(cuda.device()).isEqualTo(1);
    assertThat(cuda.deviceName(1)).isEqualTo("Test Double");
    assertThat(cuda.attribute(DeviceAttribute.COMPUTE_CAPABILITY_MAJOR, 1)).isEqualTo(9);
    assertThat(cuda.attribute(DeviceAttribute.MAX_SHARED_BYTES_PER_BLOCK, 1)).isEqualTo(232_448);
    for (DeviceAttribute attribute : DeviceAttribute.values()) {
      assertThat(cuda.attribute(attribute, 1)).as(attribute.name()).isNotNegative();
    }
    assertThatThrownBy(() -> cuda.setDevice(2))
        .isInstanceOf(CudaException.class)
        .hasMessage(
            "cudaSetDevice failed: cudaErrorInvalidDevice (101): text of the test double; device 1");
  }

  @Test
  void bytesArriveWhereTheyAreSent() {
    try (Arena arena = Arena.ofConfined()) {
      CudaStream stream = cuda.createStream(arena);
      MemorySegment in = arena.allocateFrom(JAVA_FLOAT, 1, 2, 3, 4);
      MemorySegment out = cuda.allocatePinned(arena, 32);
      DeviceMemory a = cuda.allocate(arena, 32);
      DeviceMemory b = cuda.allocate(arena, 32);
      cuda.fill(a, (byte) 7, 32);
      cuda.copyToDevice(a, 16, in, 16);
      assertThat(CudartDouble.peek(a).get(JAVA_BYTE, 15)).isEqualTo((byte) 7);
      assertThat(CudartDouble.peek(a).asSlice(16).mismatch(in)).isEqualTo(-1);
      cuda.copyOnDeviceAsync(b, a, 32, stream);
      cuda.copyToHostAsync(out, b, 32, stream);
      cuda.synchronize(stream);
      assertThat(out.asSlice(16).toArray(JAVA_FLOAT)).containsExactly(1, 2, 3, 4);
      cuda.copyToHost(out, b, 20, 12);
      assertThat(out.asSlice(0, 12).toArray(JAVA_FLOAT)).containsExactly(2, 3, 4);
    }
    assertThat(cudart.live()).isZero();
  }

  /** Streams of the library do not wait for the default one, on which the copy is. */
  @Test
  void aCopyToTheDeviceIsThereWhenItReturns() {
    try (Arena arena = Arena.ofConfined()) {
      DeviceMemory a = cuda.allocate(arena, 16);
      cuda.copyToDevice(a, 0, arena.allocate(16), 16);
      assertThat(cudart.callNames()).endsWith("cudaMemcpy", "cudaStreamSynchronize");
    }
  }

  @Test
  void launchPassesGridBlockSharedMemoryStreamAndArguments() {
    StructLayout layout =
        MemoryLayout.structLayout(JAVA_LONG.withName("pointer"), JAVA_LONG.withName("time"));
    try (Arena arena = Arena.ofConfined()) {
      CudaStream stream = cuda.createStream(arena);
      CudaModule image = cuda.loadImage(arena, arena.allocateFrom("arguments of 16 bytes"));
      CudaKernel kernel = cuda.kernel(image, "la_forward");
      cuda.setMaxDynamicSharedMemory(kernel, 100_000);
      LaunchScratch scratch = new LaunchScratch(arena);
      MemorySegment arguments = arena.allocate(layout);
      for (int i = 0; i < 2; i++) {
        arguments.set(JAVA_LONG, 0, 11 + i);
        arguments.set(JAVA_LONG, 8, -1L);
        cuda.launch(scratch, kernel, 64 + i, 5, 384, 99_000, stream, arguments);
      }
      assertThat(cudart.launches()).isEqualTo(2);
      assertThat(cudart.launchKernel(0)).isEqualTo("la_forward");
      assertThat(cudart.launchDimensions(0)).containsExactly(64, 5, 1, 384, 1, 1);
      assertThat(cudart.launchDimensions(1)).containsExactly(65, 5, 1, 384, 1, 1);
      assertThat(cudart.launchSharedBytes(0)).isEqualTo(99_000);
      assertThat(cudart.launchStream(0)).isEqualTo(stream.address());
      assertThat(cudart.launchArguments(0, layout).toArray(JAVA_LONG)).containsExactly(11, -1);
      assertThat(cudart.launchArguments(1, layout).toArray(JAVA_LONG)).containsExactly(12, -1);
    }
  }

  private PreparedLaunch prepare(
      Arena arena,
      CudaKernel kernel,
      int gridX,
      int clusterX,
      LaunchOrder order,
      CudaStream stream,
      MemorySegment arguments) {
    return cuda.prepare(
        new LaunchScratch(arena), kernel, gridX, clusterX, 384, 1000, order, stream, arguments);
  }

  @Test
  void preparedLaunchesAndCopiesAreRepeated() {
    try (Arena arena = Arena.ofConfined()) {
      CudaStream stream = cuda.createStream(arena);
      CudaKernel kernel =
          cuda.kernel(cuda.loadImage(arena, arena.allocateFrom("arguments of 8 bytes")), "k");
      MemorySegment arguments = arena.allocate(JAVA_LONG);
      PreparedLaunch pairs = prepare(arena, kernel, 6, 2, LaunchOrder.EARLY, stream, arguments);
      PreparedLaunch single = prepare(arena, kernel, 7, 1, LaunchOrder.IN_TURN, stream, arguments);
      PreparedLaunch early = prepare(arena, kernel, 7, 1, LaunchOrder.EARLY, stream, arguments);
      PreparedLaunch together =
          prepare(arena, kernel, 6, 3, LaunchOrder.IN_TURN, stream, arguments);
      cuda.run(pairs);
      arguments.set(JAVA_LONG, 0, 5);
      cuda.run(single);
      cuda.run(pairs);
      cuda.run(early);
      cuda.run(together);
      assertThat(cudart.launchDimensions(2)).containsExactly(6, 1, 1, 384, 1, 1);
      assertThat(cudart.launchCluster(0)).isEqualTo(2);
      assertThat(cudart.launchedEarly(0)).isTrue();
      assertThat(cudart.launchCluster(1)).isEqualTo(1);
      assertThat(cudart.launchedEarly(1)).isFalse();
      assertThat(cudart.launchCluster(3)).isEqualTo(1);
      assertThat(cudart.launchedEarly(3)).isTrue();
      assertThat(cudart.launchCluster(4)).isEqualTo(3);
      assertThat(cudart.launchedEarly(4)).isFalse();
      assertThat(cudart.launchStream(1)).isEqualTo(stream.address());
      MemoryLayout layout = MemoryLayout.structLayout(JAVA_LONG);
      assertThat(cudart.launchArguments(0, layout).get(JAVA_LONG, 0)).isZero();
      assertThat(cudart.launchArguments(2, layout).get(JAVA_LONG, 0)).isEqualTo(5);
      assertThatThrownBy(() -> prepare(arena, kernel, 7, 2, LaunchOrder.EARLY, stream, arguments))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("divides the grid: 2 of 7");

      DeviceMemory a = cuda.allocate(arena, 16);
      DeviceMemory b = cuda.allocate(arena, 16);
      PreparedCopy copy = cuda.prepareCopy(b, a, 8, stream);
      cuda.fill(a, (byte) 3, 16);
      cuda.fill(b, (byte) 5, 16);
      cuda.run(copy);
      assertThat(CudartDouble.peek(b).get(JAVA_BYTE, 7)).isEqualTo((byte) 3);
      assertThat(CudartDouble.peek(b).get(JAVA_BYTE, 8)).isEqualTo((byte) 5);
      PreparedClear clear = cuda.prepareClear(b, 4, stream);
      cuda.run(clear);
      assertThat(CudartDouble.peek(b).get(JAVA_BYTE, 3)).isZero();
      assertThat(CudartDouble.peek(b).get(JAVA_BYTE, 4)).isEqualTo((byte) 3);
      assertThatThrownBy(() -> cuda.prepareClear(b, 17, stream))
          .isInstanceOf(IndexOutOfBoundsException.class);
      assertThatThrownBy(() -> cuda.prepareCopy(b, a, 17, stream))
          .isInstanceOf(IndexOutOfBoundsException.class);
    }
  }

  @Test
  void graphsRepeatWhatWasNoted() {
    try (Arena arena = Arena.ofConfined()) {
      CudaStream stream = cuda.createStream(arena);
      CudaKernel kernel = cuda.kernel(cuda.loadImage(arena, arena.allocateFrom("image")), "k");
      MemorySegment arguments = arena.allocate(JAVA_LONG);
      PreparedLaunch launch = prepare(arena, kernel, 1, 1, LaunchOrder.IN_TURN, stream, arguments);
      cuda.beginCapture(stream);
      cuda.run(launch);
      cuda.run(launch);
      assertThatThrownBy(() -> cuda.synchronize(stream))
          .hasMessageContaining("cudaErrorStreamCaptureUnsupported");
      CudaGraph graph = cuda.endCapture(arena, stream);
      assertThat(cudart.launches()).isZero();
      cuda.launch(graph, stream);
      cuda.launch(graph, stream);
      assertThat(cudart.launches()).isEqualTo(4);
      cuda.beginCapture(stream);
      cuda.run(launch);
      cuda.abandonCapture(stream);
      cuda.synchronize(stream);
      assertThat(cudart.launches()).isEqualTo(4);
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void tensorMapsSayWhatTheyWereTold() {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment map = arena.allocate(128, 64);
      TensorMapWriter writer = cuda.tensorMapWriter(arena);
      writer.extents(96, 1000, 4, 2).byteStrides(384, 384_000, 1_536_000).box(32, 64);
      writer.write(map, TensorMapWriter.Element.F32, 0x1000);
      // type, rank, no interleave, 128 byte swizzle, 256 byte promotion, zeros
      assertThat(map.asSlice(0, 24).toArray(JAVA_INT)).containsExactly(7, 4, 0, 3, 3, 0);
      assertThat(map.asSlice(24, 64).toArray(JAVA_LONG))
          .containsExactly(0x1000, 96, 1000, 4, 2, 384, 384_000, 1_536_000);
      assertThat(map.asSlice(88, 16).toArray(JAVA_INT)).containsExactly(32, 64, 1, 1);
      long calls = cudart.calls();
      assertThatThrownBy(() -> writer.write(map, TensorMapWriter.Element.F32, 0x1008))
          .isInstanceOf(IllegalArgumentException.class);
      assertThatThrownBy(() -> writer.byteStrides(8, 16, 16))
          .isInstanceOf(IllegalArgumentException.class);
      assertThatThrownBy(() -> writer.box(64, 64).write(map, TensorMapWriter.Element.F32, 0x1000))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("at most 128 bytes");
      assertThat(cudart.calls()).isEqualTo(calls);
      cudart.oldDriver();
      assertThatThrownBy(() -> cuda.tensorMapWriter(arena))
          .isInstanceOf(CudaException.class)
          .hasMessageContaining("cudaErrorSymbolNotFound");
    }
  }

  @Test
  void freedMemoryStaysWithTheDevice() {
    cuda.keepFreedMemory(0, true);
    assertThat(cudart.poolThreshold()).isEqualTo(-1);
    cuda.keepFreedMemory(0, false);
    assertThat(cudart.poolThreshold()).isZero();
  }

  @Test
  void unknownKernelAndUnreadableImageAreRefused() {
    try (Arena arena = Arena.ofConfined()) {
      CudaModule image = cuda.loadImage(arena, arena.allocateFrom("image"));
      assertThatThrownBy(() -> cuda.kernel(image, "missing_kernel"))
          .hasMessageContaining("cudaLibraryGetKernel failed: cudaErrorSymbolNotFound");
      assertThatThrownBy(() -> cuda.loadImage(arena, arena.allocate(16)))
          .hasMessageContaining("cudaLibraryLoadData failed: cudaErrorInvalidKernelImage");
    }
  }

  @Test
  void pointersAreTold() {
    try (Arena arena = Arena.ofConfined()) {
      DeviceMemory device = cuda.allocate(arena, 64);
      MemorySegment pinned = cuda.allocatePinned(arena, 64);
      MemorySegment plain = arena.allocate(64);
      assertThat(cuda.pointerInfo(device.address()).kind()).isEqualTo(PointerInfo.Kind.DEVICE);
      assertThat(cuda.pointerInfo(pinned.address()).kind()).isEqualTo(PointerInfo.Kind.HOST);
      assertThat(cuda.pointerInfo(plain.address()).kind()).isEqualTo(PointerInfo.Kind.UNREGISTERED);
      DeviceMemory view = cuda.registerHost(arena, plain, HostAccess.READ_WRITE);
      assertThat(view.address()).isEqualTo(plain.address());
      assertThat(cuda.pointerInfo(plain.address()).kind()).isEqualTo(PointerInfo.Kind.HOST);
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void streamOrderedMemoryMayShareItsStreamsArena() {
    long failedReleases = cuda.failedReleases();
    try (Arena arena = Arena.ofConfined()) {
      CudaStream stream = cuda.createStream(arena);
      cuda.allocateAsync(arena, 64, stream);
    }
    assertThat(cudart.live()).isZero();
    assertThat(cuda.failedReleases()).isEqualTo(failedReleases);
  }

  @Test
  void wrongSizesNeverReachCuda() {
    try (Arena arena = Arena.ofConfined()) {
      DeviceMemory device = cuda.allocate(arena, 16);
      MemorySegment host = arena.allocate(16);
      MemorySegment heap = MemorySegment.ofArray(new byte[16]);
      long calls = cudart.calls();
      assertThatThrownBy(() -> cuda.copyToDevice(device, 1, host, 16))
          .isInstanceOf(IndexOutOfBoundsException.class);
      assertThatThrownBy(() -> cuda.copyToHost(host.asSlice(8), device, 0, 9))
          .isInstanceOf(IndexOutOfBoundsException.class);
      assertThatThrownBy(() -> cuda.copyToHost(host, device, -1, 4))
          .isInstanceOf(IndexOutOfBoundsException.class);
      assertThatThrownBy(() -> cuda.copyToHost(host.asReadOnly(), device, 0, 16))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("read-only");
      assertThatThrownBy(() -> cuda.copyToDevice(device, 0, heap, 16))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("off the Java heap");
      assertThatThrownBy(() -> cuda.allocate(arena, 0))
          .isInstanceOf(IllegalArgumentException.class);
      assertThatThrownBy(() -> device.pointer().get(JAVA_BYTE, 0))
          .isInstanceOf(IndexOutOfBoundsException.class);
      assertThat(cudart.calls()).isEqualTo(calls);
    }
  }

  @Test
  void closedOwnersAreNamed() {
    Arena arena = Arena.ofConfined();
    DeviceMemory device = cuda.allocate(arena, 16);
    CudaStream stream = cuda.createStream(arena);
    CudaKernel kernel = cuda.kernel(cuda.loadImage(arena, arena.allocateFrom("image")), "k");
    arena.close();
    assertThatThrownBy(() -> cuda.fill(device, (byte) 0, 16))
        .isInstanceOf(IllegalStateException.class)
        .hasMessage("this device memory was closed");
    assertThatThrownBy(() -> cuda.synchronize(stream)).hasMessage("this stream was closed");
    assertThatThrownBy(() -> cuda.setMaxDynamicSharedMemory(kernel, 1))
        .hasMessage("this kernel image was closed");
  }

  @Test
  void contextIsAddedAndTheClassKept() {
    cudart.memory(8);
    try (Arena arena = Arena.ofConfined()) {
      assertThatThrownBy(
              () -> {
                try {
                  cuda.allocate(arena, 16);
                } catch (CudaException e) {
                  throw e.withContext("shape [4, 16]").withContext("forward");
                }
              })
          .hasMessageContaining("device 0; shape [4, 16]; forward; 16 bytes needed, 8 bytes free");
    }
  }
}
