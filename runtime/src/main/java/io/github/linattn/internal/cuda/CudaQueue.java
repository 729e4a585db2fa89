package io.github.linattn.internal.cuda;

import io.github.linattn.Event;
import io.github.linattn.Graph;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.CudaEvent;
import io.github.linattn.bindings.CudaGraph;
import io.github.linattn.bindings.CudaStream;
import io.github.linattn.bindings.DeviceMemory;
import io.github.linattn.bindings.LaunchOrder;
import io.github.linattn.bindings.LaunchScratch;
import io.github.linattn.bindings.Prepared;
import io.github.linattn.bindings.PreparedClear;
import io.github.linattn.bindings.PreparedCopy;
import io.github.linattn.bindings.PreparedLaunch;
import io.github.linattn.bindings.TensorMapWriter;
import io.github.linattn.internal.ClosedException;
import io.github.linattn.internal.Copies;
import io.github.linattn.internal.Leaks;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import org.jspecify.annotations.Nullable;

/**
 * A stream of one GPU with what a launch on it fills in. Its own lock keeps calls of several
 * threads apart; who only waits for the stream does not hold it, so that others may go on.
 */
final class CudaQueue implements Stream {
  private final Device device;

  /** Of the backend's kernels, which its graphs launch. */
  private final MemorySegment.Scope kernels;

  private final Arena arena = Arena.ofShared();
  private final CudaStream stream;
  private final LaunchScratch launchScratch;
  private final Leaks leaks;
  private final Leaks.Claim claim;

  /** Read by who waits for the stream, written by who destroys it. */
  private final ReadWriteLock life = new ReentrantReadWriteLock();

  private @Nullable ChunkedCalls calls;
  private @Nullable DeviceConstants constants;
  private @Nullable DeviceLists lists;
  private @Nullable TensorMapWriter tensorMaps;
  private int graphs;

  /** What the graph that is being captured reads and writes; null where none is. */
  private @Nullable Set<Tensor> captured;

  private @Nullable Throwable closedAt;

  CudaQueue(Device device, MemorySegment.Scope kernels, Leaks leaks) {
    this.device = device;
    this.kernels = kernels;
    this.leaks = leaks;
    try {
      this.stream = device.enter().createStream(arena);
      this.launchScratch = new LaunchScratch(arena);
    } catch (RuntimeException | Error e) {
      arena.close();
      throw e;
    }
    this.claim = leaks.claim(this, "a stream");
  }

  Device device() {
    return device;
  }

  CudaStream stream() {
    return stream;
  }

  /** Launches a kernel over {@code count} heads or rows. The caller holds this queue's lock. */
  void launch(LoadedKernel kernel, long count, Arguments filled) {
    int blocks = Math.toIntExact(kernel.entry().gridRule().blocks(count, 0, 0));
    device
        .cuda()
        .launch(
            launchScratch,
            kernel.kernel(),
            blocks,
            1,
            kernel.entry().threads(),
            kernel.entry().sharedBytes(),
            stream,
            filled.memory());
  }

  /** A launch of one step of a plan, to be repeated. */
  PreparedLaunch prepare(
      LaunchScratch scratch, ForwardPlan.Step step, LoadedKernel kernel, Arguments filled) {
    return device
        .cuda()
        .prepare(
            scratch,
            kernel.kernel(),
            step.blocks(),
            step.cluster(),
            step.threads(),
            step.sharedBytes(),
            step.startsEarly() ? LaunchOrder.EARLY : LaunchOrder.IN_TURN,
            stream,
            filled.memory());
  }

  /** Calls of the family chunked; the caller holds this queue's lock. */
  ChunkedCalls calls() {
    ChunkedCalls known = calls;
    if (known == null) {
      known = new ChunkedCalls(this, arena);
      calls = known;
    }
    return known;
  }

  /** Small arrays on the device; the caller holds this queue's lock. */
  DeviceConstants constants() {
    DeviceConstants known = constants;
    if (known == null) {
      known = new DeviceConstants(device, arena);
      constants = known;
    }
    return known;
  }

  /** Lists among these; the caller holds this queue's lock. */
  DeviceLists lists() {
    DeviceLists known = lists;
    if (known == null) {
      known = new DeviceLists(constants());
      lists = known;
    }
    return known;
  }

  /** The encoder of tensor maps; the caller holds this queue's lock. */
  TensorMapWriter tensorMaps() {
    TensorMapWriter known = tensorMaps;
    if (known == null) {
      known = device.cuda().tensorMapWriter(arena);
      tensorMaps = known;
    }
    return known;
  }

  /** A copy between device addresses, to be repeated. */
  PreparedCopy copyOf(long source, long target, long bytes) {
    return device
        .cuda()
        .prepareCopy(
            DeviceMemory.ofAddress(arena, target, bytes),
            DeviceMemory.ofAddress(arena, source, bytes),
            bytes,
            stream);
  }

  /** Copies of states of these sizes. */
  List<Prepared> copiesOf(StateArrays source, StateArrays target, StateArrays sizes) {
    return List.of(
        copyOf(source.s(), target.s(), sizes.s()),
        copyOf(source.z(), target.z(), sizes.z()),
        copyOf(source.u(), target.u(), sizes.u()));
  }

  /** Zeros at a device address, again and again. */
  PreparedClear clearOf(long target, long bytes) {
    DeviceMemory range = DeviceMemory.ofAddress(arena, target, bytes);
    return device.cuda().prepareClear(range, bytes, stream);
  }

  /** Whether it can take work; the caller holds this queue's lock. */
  boolean isOpen() {
    return closedAt == null;
  }

  /**
   * Throws if it can't take work; the caller holds this queue's lock.
   *
   * @throws IllegalStateException if it is closed, with where
   */
  void requireOpen() {
    if (closedAt != null) {
      throw new ClosedException("the stream is closed; see the cause for where", closedAt);
    }
  }

  /** Whether what is launched now becomes part of a graph; the caller holds this queue's lock. */
  boolean isCapturing() {
    return captured != null;
  }

  /** Notes what a call is about to read and write, if it becomes part of a graph. */
  void keepForGraph(List<Tensor> tensors) {
    if (captured != null) {
      captured.addAll(tensors);
    }
  }

  /** Whether a graph that is open may hold addresses of this queue's memory. */
  boolean hasGraphs() {
    return graphs > 0;
  }

  @Override
  public Graph capture(Runnable work) {
    Copies.requirePresent("work", work);
    synchronized (this) {
      requireOpen();
      if (isCapturing()) {
        throw new IllegalStateException("this stream is being captured already");
      }
      Cuda cuda = device.enter();
      cuda.beginCapture(stream);
      Set<Tensor> tensors = Collections.newSetFromMap(new IdentityHashMap<>());
      captured = tensors;
      graphs++;
      Arena owner = Arena.ofShared();
      try {
        try {
          work.run();
          device.enter(); // the work may have gone to another
        } catch (Throwable e) { // of other languages also what no Runnable declares
          suppressing(e, () -> cuda.abandonCapture(stream));
          throw e;
        } finally {
          captured = null;
        }
        CudaGraph graph = cuda.endCapture(owner, stream);
        if (constants != null) {
          calls().setConstantsApart();
        }
        return new Captured(owner, graph, List.copyOf(tensors));
      } catch (Throwable e) {
        graphs--;
        owner.close();
        suppressing(e, this::freeRetired);
        throw e;
      }
    }
  }

  private static void suppressing(Throwable cause, Runnable cleanup) {
    try {
      cleanup.run();
    } catch (RuntimeException e) {
      cause.addSuppressed(e);
    }
  }

  /** Frees memory that has become too small, if no graph is left that may use it. */
  private void freeRetired() {
    if (calls != null) {
      calls.freeRetired();
    }
  }

  /** Work of this queue, owned by whoever captured it. */
  private final class Captured implements Graph {
    private final Arena owner;
    private final CudaGraph graph;
    private final List<Tensor> tensors;
    private final Leaks.Claim claim = leaks.claim(this, "a graph");

    Captured(Arena owner, CudaGraph graph, List<Tensor> tensors) {
      this.owner = owner;
      this.graph = graph;
      this.tensors = tensors;
    }

    @Override
    public void launch() {
      synchronized (CudaQueue.this) {
        requireOpen();
        if (!kernels.isAlive()) {
          throw new IllegalStateException("the backend is closed, and with it the graph's kernels");
        }
        for (Tensor tensor : tensors) {
          if (!tensor.isOpen()) {
            throw new IllegalStateException(
                "%s, which the graph reads or writes, is closed".formatted(tensor));
          }
        }
        device.enter().launch(graph, stream);
      }
    }

    @Override
    public void close() {
      synchronized (CudaQueue.this) {
        if (!owner.scope().isAlive()) {
          return;
        }
        try {
          device.enter();
          if (closedAt == null) {
            synchronize();
          }
        } finally {
          graphs--;
          owner.close();
          claim.end();
        }
        freeRetired();
      }
    }
  }

  @Override
  public synchronized OptionalLong nativeHandle() {
    requireOpen();
    return OptionalLong.of(stream.address());
  }

  @Override
  public void synchronize() {
    life.readLock().lock();
    try {
      device.enter().synchronize(stream);
    } finally {
      life.readLock().unlock();
    }
  }

  @Override
  public synchronized Event record() {
    requireOpen();
    Cuda cuda = device.enter();
    Arena owner = Arena.ofShared();
    try {
      CudaEvent event = cuda.createEvent(owner);
      cuda.record(event, stream);
      return new Mark(device, owner, event, isCapturing() ? this : null, leaks);
    } catch (RuntimeException | Error e) {
      owner.close();
      throw e;
    }
  }

  @Override
  public synchronized void waitFor(Event event) {
    Mark mark = mark("event", event);
    requireOpen();
    if (mark.capturedBy != null && mark.capturedBy != this) {
      // its graph would hold work of this stream, whose memory it does not keep
      throw new IllegalStateException(
          "the event was recorded while its stream was captured: no other stream can wait for it");
    }
    device.enter().waitFor(stream, mark.event);
  }

  private static Mark mark(String name, Event event) {
    Copies.requirePresent(name, event);
    if (event instanceof Mark mark) {
      return mark;
    }
    throw new IllegalArgumentException("the event is of another backend");
  }

  @Override
  public synchronized void copy(Tensor source, Tensor target) {
    requireOpen();
    Copies.requireAlike(source, target);
    Cuda cuda = device.enter();
    long bytes = source.byteSpan();
    keepForGraph(List.of(source, target));
    boolean fromDevice = isOnDevice("source", source);
    boolean toDevice = isOnDevice("target", target);
    if (fromDevice && toDevice) {
      cuda.copyOnDeviceAsync(deviceMemory(target), deviceMemory(source), bytes, stream);
    } else if (fromDevice) {
      cuda.copyToHostAsync(target.segment(), deviceMemory(source), bytes, stream);
    } else if (toDevice) {
      cuda.copyToDeviceAsync(deviceMemory(target), 0, source.segment(), bytes, stream);
    } else {
      throw new IllegalArgumentException(
          "a stream copies to, from or within the GPU; both tensors are of the host");
    }
  }

  private boolean isOnDevice(String role, Tensor tensor) {
    return switch (tensor.memoryKind()) {
      case PINNED -> false;
      case HOST ->
          throw new IllegalArgumentException(
              "the %s %s is pageable host memory; a stream copies pinned memory only"
                  .formatted(role, tensor));
      case DEVICE -> {
        if (tensor.device() != device.ordinal()) {
          throw new IllegalArgumentException(
              "the %s %s is on GPU %d, this stream on GPU %d"
                  .formatted(role, tensor, tensor.device(), device.ordinal()));
        }
        yield true;
      }
    };
  }

  private DeviceMemory deviceMemory(Tensor tensor) {
    return DeviceMemory.ofAddress(arena, tensor.segment().address(), tensor.byteSpan());
  }

  /** Waits for the work, then destroys the stream; a second call does nothing. */
  @Override
  public synchronized void close() {
    if (closedAt != null) {
      return;
    }
    if (isCapturing()) {
      throw new IllegalStateException("this stream is being captured and can't be closed");
    }
    closedAt = new Throwable("closed here");
    try {
      synchronize();
    } finally {
      try {
        if (calls != null) {
          calls.close();
        }
        if (constants != null) {
          constants.close();
        }
      } finally {
        destroy();
      }
    }
  }

  private void destroy() {
    life.writeLock().lock();
    try {
      arena.close();
      claim.end();
    } finally {
      life.writeLock().unlock();
    }
  }

  /** A recorded event, owned by whoever asked for it. */
  private static final class Mark implements Event {
    private final Device device;
    private final Arena owner;
    private final CudaEvent event;
    private final @Nullable CudaQueue capturedBy;
    private final Leaks.Claim claim;

    Mark(Device device, Arena owner, CudaEvent event, @Nullable CudaQueue capturedBy, Leaks leaks) {
      this.device = device;
      this.owner = owner;
      this.event = event;
      this.capturedBy = capturedBy;
      this.claim = leaks.claim(this, "an event");
    }

    @Override
    public void synchronize() {
      device.enter().synchronize(event);
    }

    @Override
    public double millisSince(Event earlier) {
      Mark start = mark("earlier", earlier);
      if (start.device != device) { // which is of one backend
        throw new IllegalArgumentException("the earlier event is of another backend");
      }
      return device.enter().elapsedMillis(start.event, event);
    }

    @Override
    public void close() {
      if (owner.scope().isAlive()) {
        try {
          device.enter();
        } finally {
          owner.close();
          claim.end();
        }
      }
    }
  }
}
