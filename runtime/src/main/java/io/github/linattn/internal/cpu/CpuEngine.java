package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.MemoryKind;
import io.github.linattn.Plan;
import io.github.linattn.Sequences;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.Engine;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.internal.HostStorage;
import io.github.linattn.internal.Leaks;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.Storage;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/** The whole operator on the CPU, by its recurrence in fp32, for every type, mode and layout. */
public final class CpuEngine implements Engine {
  private static final System.Logger LOG = System.getLogger(CpuEngine.class.getName());
  private static final AtomicBoolean WARNED = new AtomicBoolean();

  private final Parallel parallel;
  private volatile boolean closed;
  private final Leaks leaks = Leaks.of(name());

  public CpuEngine(int threads) {
    this.parallel = new Parallel(threads);
    if (MatrixKernels.fallsBack() && !WARNED.getAndSet(true)) {
      LOG.log(
          System.Logger.Level.WARNING,
          "the cpu backend computes without vectors, many times slower: {0}",
          MatrixKernels.describe());
    }
  }

  @Override
  public String name() {
    return "cpu";
  }

  @Override
  public String describe() {
    return parallel.threads() + " threads, " + MatrixKernels.describe();
  }

  @Override
  public MemoryKind memoryKind() {
    return MemoryKind.HOST;
  }

  @Override
  public Storage allocate(MemoryKind kind, long bytes) {
    return switch (kind) {
      case HOST -> HostStorage.allocate(bytes, leaks);
      case PINNED, DEVICE -> throw needsGpu(kind + " memory");
    };
  }

  @Override
  public Storage allocateZeroed(long bytes) {
    return HostStorage.allocate(bytes, leaks);
  }

  @Override
  public Storage pin(MemorySegment memory) {
    throw needsGpu("pinned memory");
  }

  @Override
  public Storage wrapDeviceMemory(long address, long bytes) {
    throw needsGpu("device memory");
  }

  private static UnsupportedOperationException needsGpu(String what) {
    return new UnsupportedOperationException(
        what + " needs a GPU; the cpu backend computes in any host memory as it lies");
  }

  @Override
  public void requireReachable(String name, Tensor tensor) {
    if (tensor.memoryKind() == MemoryKind.DEVICE) {
      throw new IllegalArgumentException(
          "%s (%s) lives on GPU %d, out of reach of the cpu backend; copy it to the host"
              .formatted(name, tensor, tensor.device()));
    }
  }

  @Override
  public Stream newStream() {
    return new CpuStream(this);
  }

  @Override
  public boolean owns(Stream stream) {
    return stream instanceof CpuStream mine && mine.isOf(this);
  }

  @Override
  public void forward(ForwardCall call) {
    requireOpen(call.stream());
    AttentionShape shape = call.input().shape();
    run(
        () -> new ForwardPass(call, parallel).run(),
        call::tensors,
        () -> scratchBytes(shape, lanes(shape, call.input().sequences())));
  }

  @Override
  public void backward(BackwardCall call) {
    requireOpen(call.stream());
    AttentionShape shape = call.input().shape();
    run(
        () -> new BackwardPass(call, parallel).run(),
        call::tensors,
        () -> backwardBytes(call.operator(), shape, lanes(shape, call.input().sequences())));
  }

  /**
   * Says which tensor another thread closed, or how much memory is wanted, where the work fails for
   * that.
   */
  static void run(Runnable work, Supplier<List<Tensor>> tensors, LongSupplier workspaceBytes) {
    boolean interrupted = Thread.currentThread().isInterrupted();
    try {
      work.run();
    } catch (IllegalStateException e) {
      @Nullable Tensor closed =
          tensors.get().stream().filter(each -> !each.isOpen()).findFirst().orElse(null);
      if (closed == null) {
        throw e;
      }
      if (!interrupted) {
        Thread.interrupted(); // the JVM interrupts a thread that it tells of a closed arena
      }
      throw new IllegalStateException(
          closed + " was closed while the cpu backend computed with it", e);
    } catch (OutOfMemoryError e) {
      var named =
          new OutOfMemoryError(
              "the cpu backend works in up to %d bytes of the Java heap here: %s; -Xmx gives more"
                  .formatted(workspaceBytes.getAsLong(), e.getMessage()));
      named.initCause(e);
      throw named;
    }
  }

  private static void requireOpen(Stream stream) {
    ((CpuStream) stream).requireOpen(); // the API has asked owns()
  }

  @Override
  public Plan.Pass planForward(
      Operator operator,
      AttentionShape shape,
      DType dtype,
      @Nullable Sequences packing,
      boolean keepsState) {
    long results = Engine.resultBytes(shape, dtype, packing, keepsState);
    String step = operator.causal() ? "recurrence over tokens" : "whole sums, then every query";
    Lanes lanes = lanes(shape, packing);
    return new Plan.Pass(List.of(step(step, lanes)), results, scratchBytes(shape, lanes));
  }

  @Override
  public Plan.Pass planBackward(
      Operator operator,
      AttentionShape shape,
      DType dtype,
      @Nullable Sequences packing,
      boolean lastState) {
    long results = Engine.gradientBytes(shape, dtype);
    Lanes lanes = lanes(shape, packing);
    return new Plan.Pass(
        List.of(step("dq, da, db in token order", lanes), step("dk, dv against it", lanes)),
        results,
        backwardBytes(operator, shape, lanes));
  }

  /**
   * The lanes of a call.
   *
   * @param tokens of the longest
   * @param segments of the longest
   */
  private record Lanes(int count, int tokens, int segments) {}

  private Lanes lanes(AttentionShape shape, @Nullable Sequences packing) {
    Sequences sequences = packing != null ? packing : Sequences.ofLengths(shape.tokens());
    long all = (long) shape.batch() * shape.keyValueHeads() * sequences.count();
    int count = (int) Math.min(Integer.MAX_VALUE, all);
    int longest = IntStream.range(0, sequences.count()).map(sequences::length).max().orElse(0);
    return new Lanes(count, longest, Segments.perLane(count, longest, parallel.threads()));
  }

  private static String step(String what, Lanes lanes) {
    return "%s: %d lanes x %d segments, %s"
        .formatted(what, lanes.count, lanes.segments, MatrixKernels.describe());
  }

  /** Bytes of the sums of the lanes that are under way and of the tiles of every worker. */
  private long scratchBytes(AttentionShape shape, Lanes lanes) {
    long threads = Math.min(parallel.threads(), (long) lanes.count * lanes.segments);
    long held = parallel.mostUnderWay(lanes.count) * lanes.segments;
    long sums = 2 * held * OuterSum.bytes(shape.keyDim(), shape.valueDim());
    long tiles = 4L * Tiles.CHUNK * (shape.keyDim() + shape.valueDim()) * Float.BYTES;
    long matrices = 4 * OuterSum.bytes(shape.keyDim(), shape.valueDim());
    return sums + threads * (tiles + matrices);
  }

  /** The same of a backward, which keeps what it knows of every token of a lane. */
  private long backwardBytes(Operator operator, AttentionShape shape, Lanes lanes) {
    int heads = shape.headsPerKeyValueHead();
    long scalars = operator.normalize() ? 2L * heads + 1 : heads; // δ, 1/|q| and 1/|k| of a token
    long kept = parallel.mostUnderWay(lanes.count) * scalars * lanes.tokens * Double.BYTES;
    return 2 * scratchBytes(shape, lanes) + kept;
  }

  boolean isClosed() {
    return closed;
  }

  @Override
  public void close() {
    closed = true;
    leaks.reportOpen();
    parallel.close();
  }
}
