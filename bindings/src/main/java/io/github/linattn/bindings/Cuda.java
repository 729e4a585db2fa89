package io.github.linattn.bindings;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.github.linattn.bindings.CopyEvent.Direction;
import io.github.linattn.bindings.generated.cudaPointerAttributes;
import io.github.linattn.bindings.generated.cudart;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.function.Consumer;

/**
 * The calls of the CUDA Runtime, each checked: a status other than success becomes a {@link
 * io.github.linattn.cuda.CudaException}, a refused allocation a {@link
 * io.github.linattn.cuda.CudaOutOfMemoryException}, and a call that fails has taken nothing.
 *
 * <p>What a method creates belongs to the {@link Arena} it is given and is released when that
 * closes. The order within one arena is not specified: where it matters (a stream after the memory
 * that it frees), nest arenas. A release that fails cannot be thrown out of an arena without hiding
 * the others: it is logged to {@code io.github.linattn.cuda}, the first of each kind as a warning,
 * and counted by {@link #failedReleases}.
 *
 * <p>Any thread. CUDA's current device belongs to the calling thread: call {@link #setDevice}
 * first. Wrong sizes, closed handles and heap segments are refused in Java before CUDA sees them.
 */
public final class Cuda {

  /** More than any Runtime's cudaDeviceProp (about 1 KB) may grow to. */
  private static final long GENEROUS_STRUCT_BYTES = 4096;

  /** The name is the first member of cudaDeviceProp in every version. */
  private static final long DEVICE_NAME_BYTES = 256;

  /** What every GPU with clusters can run. */
  private static final int MOST_CLUSTER_BLOCKS = 8;

  /** The CUDA version that brought tensor maps. */
  private static final int TENSOR_MAP_VERSION = 12000;

  Cuda() {}

  // Devices

  /** Makes a device the current one of the calling thread. */
  public void setDevice(int device) {
    CudaStatus.check("cudaSetDevice", cudart.cudaSetDevice(device));
  }

  /** The current device of the calling thread. */
  public int device() {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment out = scratch.allocate(JAVA_INT);
      CudaStatus.check("cudaGetDevice", cudart.cudaGetDevice(out));
      return out.get(JAVA_INT, 0);
    }
  }

  /** How many devices this process can see. */
  public int deviceCount() {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment out = scratch.allocate(JAVA_INT);
      CudaStatus.check("cudaGetDeviceCount", cudart.cudaGetDeviceCount(out));
      return out.get(JAVA_INT, 0);
    }
  }

  /** One property of a device. */
  public int attribute(DeviceAttribute attribute, int device) {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment out = scratch.allocate(JAVA_INT);
      CudaStatus.check(
          "cudaDeviceGetAttribute", cudart.cudaDeviceGetAttribute(out, attribute.id(), device));
      return out.get(JAVA_INT, 0);
    }
  }

  /** The marketing name of a device. */
  public String deviceName(int device) {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment properties = scratch.allocate(GENEROUS_STRUCT_BYTES, Long.BYTES);
      CudaStatus.check(
          "cudaGetDeviceProperties", cudart.cudaGetDeviceProperties(properties, device));
      properties.set(JAVA_BYTE, DEVICE_NAME_BYTES - 1, (byte) 0);
      return properties.getString(0);
    }
  }

  /** Waits for all work of the current device. A fault in that work is reported here. */
  public void synchronizeDevice() {
    CudaStatus.checkAwaited("cudaDeviceSynchronize", cudart.cudaDeviceSynchronize());
  }

  /** Free and total memory of the current device. */
  public MemoryInfo memoryInfo() {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment free = scratch.allocate(JAVA_LONG);
      MemorySegment total = scratch.allocate(JAVA_LONG);
      CudaStatus.check("cudaMemGetInfo", cudart.cudaMemGetInfo(free, total));
      return new MemoryInfo(free.get(JAVA_LONG, 0), total.get(JAVA_LONG, 0));
    }
  }

  /**
   * Whether a device keeps what {@link #allocateAsync} took from the driver when it is freed: else
   * each synchronisation gives it back, and the next call pays for it again. It is so for the whole
   * process, and not at first.
   */
  public void keepFreedMemory(int device, boolean keeps) {
    MemorySegment pool =
        created(
            out ->
                CudaStatus.check(
                    "cudaDeviceGetDefaultMemPool",
                    cudart.cudaDeviceGetDefaultMemPool(out, device)));
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment threshold = scratch.allocateFrom(JAVA_LONG, keeps ? -1L : 0L); // unsigned
      CudaStatus.check(
          "cudaMemPoolSetAttribute",
          cudart.cudaMemPoolSetAttribute(
              pool, cudart.cudaMemPoolAttrReleaseThreshold(), threshold));
    }
  }

  // Memory

  /** Allocates memory of the current device, not cleared; freed, after waiting, with its owner. */
  public DeviceMemory allocate(Arena owner, long bytes) {
    Handles.positive(bytes);
    DeviceMemoryEvent event = DeviceMemoryEvent.begun();
    MemorySegment raw =
        created(
            out -> CudaStatus.checkAllocation("cudaMalloc", cudart.cudaMalloc(out, bytes), bytes));
    DeviceMemoryEvent.allocated(event, raw.address(), bytes);
    return new DeviceMemory(own(raw, 0, owner, memory -> free(memory, bytes)), bytes);
  }

  private static void free(MemorySegment device, long bytes) {
    DeviceMemoryEvent event = DeviceMemoryEvent.begun();
    CudaStatus.released("cudaFree", cudart.cudaFree(device));
    DeviceMemoryEvent.freed(event, device.address(), bytes);
  }

  /**
   * Allocates memory in the order of a stream, not cleared. Closing the owner frees it in that
   * order too, without waiting, if the stream still exists then, as one of an outer arena does; if
   * not, it is freed after waiting.
   */
  public DeviceMemory allocateAsync(Arena owner, long bytes, CudaStream stream) {
    Handles.positive(bytes);
    MemorySegment on = stream.handle();
    DeviceMemoryEvent event = DeviceMemoryEvent.begun();
    MemorySegment raw =
        created(
            out ->
                CudaStatus.checkAllocation(
                    "cudaMallocAsync", cudart.cudaMallocAsync(out, bytes, on), bytes));
    DeviceMemoryEvent.allocated(event, raw.address(), bytes);
    return new DeviceMemory(
        own(raw, 0, owner, memory -> freeOnClose(memory, bytes, stream)), bytes);
  }

  private static void freeOnClose(MemorySegment memory, long bytes, CudaStream stream) {
    if (stream.isOpen()) {
      MemorySegment on = MemorySegment.ofAddress(stream.address());
      DeviceMemoryEvent event = DeviceMemoryEvent.begun();
      CudaStatus.released("cudaFreeAsync", cudart.cudaFreeAsync(memory, on));
      DeviceMemoryEvent.freed(event, memory.address(), bytes);
    } else {
      free(memory, bytes);
    }
  }

  /**
   * Allocates page-locked host memory, not cleared, which kernels and asynchronous copies may use
   * in place; freed with its owner, which must outlive that use.
   */
  public MemorySegment allocatePinned(Arena owner, long bytes) {
    Handles.positive(bytes);
    int flags = cudart.cudaHostAllocPortable() | cudart.cudaHostAllocMapped();
    MemorySegment raw =
        created(
            out ->
                CudaStatus.checkPinning(
                    "cudaHostAlloc", cudart.cudaHostAlloc(out, bytes, flags), bytes));
    return own(
        raw,
        bytes,
        owner,
        memory -> CudaStatus.released("cudaFreeHost", cudart.cudaFreeHost(memory)));
  }

  /**
   * Page-locks host memory where it lies and gives the device's view of it, until {@code owner}
   * closes. The memory must outlive the owner.
   */
  public DeviceMemory registerHost(Arena owner, MemorySegment host, HostAccess access) {
    long bytes = Handles.positive(host.byteSize());
    MemorySegment memory = Handles.host(host, bytes);
    CudaStatus.checkPinning(
        "cudaHostRegister", cudart.cudaHostRegister(memory, bytes, access.flags()), bytes);
    MemorySegment registered = MemorySegment.ofAddress(memory.address());
    Consumer<MemorySegment> release =
        view -> CudaStatus.released("cudaHostUnregister", cudart.cudaHostUnregister(registered));
    MemorySegment view;
    try {
      view = deviceView(memory);
    } catch (RuntimeException | Error e) {
      release.accept(registered);
      throw e;
    }
    return new DeviceMemory(own(view, 0, owner, release), bytes);
  }

  private static MemorySegment deviceView(MemorySegment host) {
    return created(
        out ->
            CudaStatus.check(
                "cudaHostGetDevicePointer", cudart.cudaHostGetDevicePointer(out, host, 0)));
  }

  /** What CUDA knows about an address; {@code UNREGISTERED} for any it does not know. */
  public PointerInfo pointerInfo(long address) {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment out = cudaPointerAttributes.allocate(scratch);
      CudaStatus.check(
          "cudaPointerGetAttributes",
          cudart.cudaPointerGetAttributes(out, MemorySegment.ofAddress(address)));
      return new PointerInfo(
          PointerInfo.Kind.ofType(cudaPointerAttributes.type(out)),
          cudaPointerAttributes.device(out));
    }
  }

  /** Copies host memory to the device and waits until it is there. */
  public void copyToDevice(
      DeviceMemory target, long targetOffset, MemorySegment source, long bytes) {
    MemorySegment to = target.pointerTo(targetOffset, bytes);
    MemorySegment from = Handles.host(source, bytes);
    copy(to, from, bytes, Direction.TO_DEVICE);
    // From pageable memory it returns once the bytes have left that memory; streams that do not
    // wait for the default one would read the target too early.
    CudaStatus.checkAwaited(
        "cudaStreamSynchronize", cudart.cudaStreamSynchronize(MemorySegment.NULL));
  }

  /**
   * As {@link #copyToDevice}, in the order of a stream. The host memory is pinned, and neither
   * changed nor freed until the stream has passed the copy.
   */
  public void copyToDeviceAsync(
      DeviceMemory target, long targetOffset, MemorySegment source, long bytes, CudaStream stream) {
    MemorySegment to = target.pointerTo(targetOffset, bytes);
    MemorySegment from = Handles.host(source, bytes);
    copyAsync(to, from, bytes, Direction.TO_DEVICE, stream);
  }

  /** Copies device memory to the host and waits for it. */
  public void copyToHost(MemorySegment target, DeviceMemory source, long sourceOffset, long bytes) {
    MemorySegment to = Handles.writableHost(target, bytes);
    MemorySegment from = source.pointerTo(sourceOffset, bytes);
    copy(to, from, bytes, Direction.TO_HOST);
  }

  /**
   * As {@link #copyToHost}, in the order of a stream. The host memory is pinned, and neither read
   * nor freed until the stream has passed the copy.
   */
  public void copyToHostAsync(
      MemorySegment target, DeviceMemory source, long bytes, CudaStream stream) {
    MemorySegment to = Handles.writableHost(target, bytes);
    MemorySegment from = source.pointerTo(0, bytes);
    copyAsync(to, from, bytes, Direction.TO_HOST, stream);
  }

  /** Copies between ranges of device memory that do not overlap, in the order of a stream. */
  public void copyOnDeviceAsync(
      DeviceMemory target, DeviceMemory source, long bytes, CudaStream stream) {
    copy(prepareCopy(target, source, bytes, stream));
  }

  /** Checks a copy between ranges of device memory that do not overlap, to be repeated. */
  public PreparedCopy prepareCopy(
      DeviceMemory target, DeviceMemory source, long bytes, CudaStream stream) {
    return new PreparedCopy(target.pointerTo(0, bytes), source.pointerTo(0, bytes), bytes, stream);
  }

  private void copy(PreparedCopy copy) {
    copyAsync(copy.target(), copy.source(), copy.bytes(), Direction.ON_DEVICE, copy.stream());
  }

  private static void copy(MemorySegment to, MemorySegment from, long bytes, Direction direction) {
    CopyEvent event = CopyEvent.begun();
    CudaStatus.checkAwaited("cudaMemcpy", cudart.cudaMemcpy(to, from, bytes, direction.kind()));
    CopyEvent.end(event, direction, bytes, false);
  }

  private static void copyAsync(
      MemorySegment to, MemorySegment from, long bytes, Direction direction, CudaStream stream) {
    CopyEvent event = CopyEvent.begun();
    CudaStatus.check(
        "cudaMemcpyAsync",
        cudart.cudaMemcpyAsync(to, from, bytes, direction.kind(), stream.handle()));
    CopyEvent.end(event, direction, bytes, true);
  }

  /** Sets memory to zeros, in the order of a stream. */
  public void clearAsync(DeviceMemory target, long bytes, CudaStream stream) {
    clear(prepareClear(target, bytes, stream));
  }

  /** Checks a range of device memory that is to be set to zeros, again and again. */
  public PreparedClear prepareClear(DeviceMemory target, long bytes, CudaStream stream) {
    return new PreparedClear(target.pointerTo(0, bytes), bytes, stream);
  }

  private void clear(PreparedClear range) {
    CudaStatus.check(
        "cudaMemsetAsync",
        cudart.cudaMemsetAsync(range.target(), 0, range.bytes(), range.stream().handle()));
  }

  /** Sets each byte of a range; may return before it is done. */
  public void fill(DeviceMemory target, byte value, long bytes) {
    MemorySegment to = target.pointerTo(0, bytes);
    CudaStatus.check("cudaMemset", cudart.cudaMemset(to, value & 0xff, bytes));
  }

  // Streams and events

  /**
   * Creates a stream of the current device that does not wait for the default stream. Closing the
   * owner destroys it without waiting: synchronise first.
   */
  public CudaStream createStream(Arena owner) {
    MemorySegment raw =
        created(
            out ->
                CudaStatus.check(
                    "cudaStreamCreateWithFlags",
                    cudart.cudaStreamCreateWithFlags(out, cudart.cudaStreamNonBlocking())));
    return new CudaStream(
        own(
            raw,
            0,
            owner,
            stream -> CudaStatus.released("cudaStreamDestroy", cudart.cudaStreamDestroy(stream))));
  }

  /** Waits until the stream has done all its work. A fault in that work is reported here. */
  public void synchronize(CudaStream stream) {
    CudaStatus.checkAwaited("cudaStreamSynchronize", cudart.cudaStreamSynchronize(stream.handle()));
  }

  /** Makes the later work of a stream wait for an event; returns at once. */
  public void waitFor(CudaStream stream, CudaEvent event) {
    CudaStatus.check(
        "cudaStreamWaitEvent",
        cudart.cudaStreamWaitEvent(stream.handle(), event.handle(), cudart.cudaEventWaitDefault()));
  }

  /** Creates an event of the current device, which notes the time. */
  public CudaEvent createEvent(Arena owner) {
    MemorySegment raw =
        created(
            out ->
                CudaStatus.check(
                    "cudaEventCreateWithFlags",
                    cudart.cudaEventCreateWithFlags(out, cudart.cudaEventDefault())));
    return new CudaEvent(
        own(
            raw,
            0,
            owner,
            event -> CudaStatus.released("cudaEventDestroy", cudart.cudaEventDestroy(event))));
  }

  /** Moves an event to the present end of a stream. */
  public void record(CudaEvent event, CudaStream stream) {
    CudaStatus.check("cudaEventRecord", cudart.cudaEventRecord(event.handle(), stream.handle()));
  }

  /** Waits until its stream has passed an event. A fault in the work before is reported here. */
  public void synchronize(CudaEvent event) {
    CudaStatus.checkAwaited("cudaEventSynchronize", cudart.cudaEventSynchronize(event.handle()));
  }

  /** Device time between two events that have passed. */
  public float elapsedMillis(CudaEvent start, CudaEvent end) {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment out = scratch.allocate(JAVA_FLOAT);
      CudaStatus.checkAwaited(
          "cudaEventElapsedTime", cudart.cudaEventElapsedTime(out, start.handle(), end.handle()));
      return out.get(JAVA_FLOAT, 0);
    }
  }

  // Kernels

  /**
   * Loads an image of kernels: cubin, fatbin or PTX text that ends in a zero byte. CUDA copies it,
   * so that the segment may be freed on return. Unloaded with its owner.
   */
  public CudaModule loadImage(Arena owner, MemorySegment image) {
    long bytes = Handles.positive(image.byteSize());
    MemorySegment code = Handles.host(image, bytes);
    MemorySegment none = MemorySegment.NULL;
    MemorySegment raw =
        created(
            out ->
                CudaStatus.checkAllocation(
                    "cudaLibraryLoadData",
                    cudart.cudaLibraryLoadData(out, code, none, none, 0, none, none, 0),
                    bytes));
    return new CudaModule(
        own(
            raw,
            0,
            owner,
            library ->
                CudaStatus.released("cudaLibraryUnload", cudart.cudaLibraryUnload(library))));
  }

  /** The kernel of that name in a loaded image. */
  public CudaKernel kernel(CudaModule image, String symbol) {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment name = scratch.allocateFrom(symbol);
      MemorySegment raw =
          created(
              out ->
                  CudaStatus.check(
                      "cudaLibraryGetKernel",
                      cudart.cudaLibraryGetKernel(out, image.handle(), name)));
      return new CudaKernel(image, raw, symbol);
    }
  }

  /**
   * Lets launches of a kernel on the current device ask for up to {@code bytes} of shared memory.
   */
  public void setMaxDynamicSharedMemory(CudaKernel kernel, int bytes) {
    CudaStatus.check(
        "cudaFuncSetAttribute",
        cudart.cudaFuncSetAttribute(
            kernel.handle(), cudart.cudaFuncAttributeMaxDynamicSharedMemorySize(), bytes));
  }

  /**
   * Starts a kernel and returns. CUDA copies the arguments, so that they and the scratch may be
   * reused at once; this call takes no memory of its own. A fault inside the kernel appears where
   * the stream is awaited.
   *
   * @param argumentStruct the kernel's one parameter, a struct passed by value, off the Java heap
   * @param scratch not in use by another thread
   */
  public void launch(
      LaunchScratch scratch,
      CudaKernel kernel,
      int gridX,
      int gridY,
      int blockThreads,
      long dynamicSharedBytes,
      CudaStream stream,
      MemorySegment argumentStruct) {
    requireDimensions(gridX, gridY, blockThreads, dynamicSharedBytes);
    long bytes = Handles.positive(argumentStruct.byteSize());
    scratch.fill(
        gridX,
        gridY,
        1,
        blockThreads,
        dynamicSharedBytes,
        LaunchOrder.IN_TURN,
        stream.handle(),
        Handles.host(argumentStruct, bytes));
    KernelLaunchEvent event = KernelLaunchEvent.begun();
    CudaStatus.check(
        "cudaLaunchKernelExC",
        cudart.cudaLaunchKernelExC(scratch.config(), kernel.handle(), scratch.arguments()));
    KernelLaunchEvent.end(event, kernel, scratch);
  }

  /**
   * Fills in a launch of a one-dimensional grid, to be repeated.
   *
   * @param scratch serves this launch alone as long as it is repeated
   * @param clusterX neighbouring blocks that run together and can reach each other's shared memory;
   *     divides the grid, 1 for none, at most 8
   * @param argumentStruct as in {@link #launch(LaunchScratch, CudaKernel, int, int, int, long,
   *     CudaStream, MemorySegment)}; read at each launch
   */
  public PreparedLaunch prepare(
      LaunchScratch scratch,
      CudaKernel kernel,
      int gridX,
      int clusterX,
      int blockThreads,
      long dynamicSharedBytes,
      LaunchOrder order,
      CudaStream stream,
      MemorySegment argumentStruct) {
    requireDimensions(gridX, 1, blockThreads, dynamicSharedBytes);
    if (clusterX < 1 || clusterX > MOST_CLUSTER_BLOCKS || gridX % clusterX != 0) {
      throw new IllegalArgumentException(
          "a cluster has 1 to 8 blocks and divides the grid: " + clusterX + " of " + gridX);
    }
    return new PreparedLaunch(
        scratch,
        kernel,
        gridX,
        clusterX,
        blockThreads,
        dynamicSharedBytes,
        order,
        stream,
        argumentStruct);
  }

  /**
   * Starts a prepared launch, makes a prepared copy, or sets a prepared range to zeros, in the
   * order of its stream, and returns; takes no memory of its own.
   */
  public void run(Prepared work) {
    switch (work) {
      case PreparedClear clear -> clear(clear);
      case PreparedCopy copy -> copy(copy);
      case PreparedLaunch launch -> launch(launch);
    }
  }

  private void launch(PreparedLaunch launch) {
    KernelLaunchEvent event = KernelLaunchEvent.begun();
    CudaStatus.check(
        "cudaLaunchKernelExC",
        cudart.cudaLaunchKernelExC(
            launch.config(), launch.kernel().handle(), launch.scratch().arguments()));
    KernelLaunchEvent.end(event, launch.kernel(), launch.scratch());
  }

  private static void requireDimensions(
      int gridX, int gridY, int blockThreads, long dynamicSharedBytes) {
    if (Math.min(Math.min(gridX, gridY), blockThreads) < 1 || dynamicSharedBytes < 0) {
      throw new IllegalArgumentException(
          "grid and block must be >= 1 and shared memory >= 0: grid "
              + gridX
              + " x "
              + gridY
              + ", block "
              + blockThreads
              + ", shared bytes "
              + dynamicSharedBytes);
    }
  }

  /**
   * Finds the driver's encoder of tensor maps, for GPUs from sm_90 on.
   *
   * @throws io.github.linattn.cuda.CudaException also if the driver has none
   */
  public TensorMapWriter tensorMapWriter(Arena owner) {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment name = scratch.allocateFrom(TensorMapWriter.functionName());
      MemorySegment answer = scratch.allocate(JAVA_INT);
      MemorySegment function =
          created(
              out ->
                  CudaStatus.check(
                      "cudaGetDriverEntryPointByVersion",
                      cudart.cudaGetDriverEntryPointByVersion(
                          name, out, TENSOR_MAP_VERSION, cudart.cudaEnableDefault(), answer)));
      if (answer.get(JAVA_INT, 0) != cudart.cudaDriverEntryPointSuccess()) {
        CudaStatus.check("cudaGetDriverEntryPointByVersion", cudart.cudaErrorSymbolNotFound());
      }
      return new TensorMapWriter(owner, function);
    }
  }

  // Graphs

  /**
   * Lets a stream note the work it is given instead of doing it, until {@link #endCapture} or
   * {@link #abandonCapture}. Other threads may use CUDA as ever meanwhile, but may not wait for the
   * whole device.
   */
  public void beginCapture(CudaStream stream) {
    CudaStatus.check(
        "cudaStreamBeginCapture",
        cudart.cudaStreamBeginCapture(stream.handle(), cudart.cudaStreamCaptureModeRelaxed()));
  }

  /** Ends a capture and makes what was noted ready to be launched. */
  public CudaGraph endCapture(Arena owner, CudaStream stream) {
    MemorySegment template = captured(stream);
    MemorySegment executable;
    try {
      executable =
          created(
              out ->
                  CudaStatus.check(
                      "cudaGraphInstantiate", cudart.cudaGraphInstantiate(out, template, 0)));
    } finally {
      CudaStatus.released("cudaGraphDestroy", cudart.cudaGraphDestroy(template));
    }
    return new CudaGraph(
        own(
            executable,
            0,
            owner,
            graph ->
                CudaStatus.released("cudaGraphExecDestroy", cudart.cudaGraphExecDestroy(graph))));
  }

  /** Ends a capture, also one that failed, and forgets what was noted. */
  public void abandonCapture(CudaStream stream) {
    MemorySegment template = captured(stream);
    if (template.address() != 0) {
      CudaStatus.released("cudaGraphDestroy", cudart.cudaGraphDestroy(template));
    }
  }

  private static MemorySegment captured(CudaStream stream) {
    MemorySegment capturing = stream.handle();
    return created(
        out ->
            CudaStatus.check("cudaStreamEndCapture", cudart.cudaStreamEndCapture(capturing, out)));
  }

  /** Gives all work of a graph to a stream and returns. */
  public void launch(CudaGraph graph, CudaStream stream) {
    GraphLaunchEvent event = GraphLaunchEvent.begun();
    CudaStatus.check("cudaGraphLaunch", cudart.cudaGraphLaunch(graph.handle(), stream.handle()));
    GraphLaunchEvent.end(event, stream);
  }

  // Releases

  /** How many releases have failed in this process. */
  public long failedReleases() {
    return CudaStatus.failedReleases();
  }

  /** The pointer that {@code create} writes to its out-parameter. */
  private static MemorySegment created(Consumer<MemorySegment> create) {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment out = scratch.allocate(ADDRESS);
      create.accept(out);
      return out.get(ADDRESS, 0);
    }
  }

  /** Gives {@code raw} to its owner; released at once where the owner is closed or not ours. */
  private static MemorySegment own(
      MemorySegment raw, long bytes, Arena owner, Consumer<MemorySegment> release) {
    try {
      return raw.reinterpret(bytes, owner, release);
    } catch (RuntimeException | Error e) {
      release.accept(raw);
      throw e;
    }
  }
}
