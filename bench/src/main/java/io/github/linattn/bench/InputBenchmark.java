package io.github.linattn.bench;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.LinearAttention;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * A forward of operands that the application holds already: read where they are, or copied to the
 * backend first. An array of the heap can only be copied.
 */
@State(Scope.Benchmark)
@Fork(1)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MILLISECONDS)
@SuppressWarnings("NullAway.Init") // JMH calls setUp first
public class InputBenchmark {

  /** Where q, k and v are and who reads them. */
  public enum Source {
    CPU_MAPPED_FILE_IN_PLACE,
    CPU_MAPPED_FILE_COPIED,
    CPU_HEAP_ARRAY_COPIED,
    GPU_PINNED_IN_PLACE,
    GPU_PINNED_COPIED,
    GPU_MAPPED_FILE_COPIED,
    GPU_HEAP_ARRAY_COPIED
  }

  /** Those of the GPU need one: the exception of a machine without says why there is no figure. */
  @Param public Source source;

  /** N; 4 heads of D = 64. */
  @Param("4096")
  public int tokens;

  private final List<AutoCloseable> owned = new ArrayList<>();
  private final List<Tensor> operands = new ArrayList<>();
  private final List<Runnable> copies = new ArrayList<>();
  private Backend backend;
  private LinearAttention attention;
  private Tensor o;
  private Tensor g;

  /** Puts the operands where they are to be read. */
  @Setup
  public void setUp() throws IOException {
    backend = source.name().startsWith("GPU") ? Backend.cuda(0) : Backend.cpu();
    attention = LinearAttention.builder().normalizeQueriesAndKeys(true).on(backend);
    AttentionShape shape = AttentionShape.of(1, 4, tokens, 64);
    Random random = new Random(20251);
    for (TensorShape extents : List.of(shape.q(), shape.k(), shape.v())) {
      float[] values = new float[Math.toIntExact(extents.elements())];
      for (int i = 0; i < values.length; i++) {
        values[i] = (float) random.nextGaussian();
      }
      operands.add(operand(values, extents));
    }
    o = allocated(shape.output());
    g = allocated(shape.normalizer());
  }

  private Tensor operand(float[] values, TensorShape extents) throws IOException {
    return switch (source) {
      case CPU_MAPPED_FILE_IN_PLACE -> own(Tensor.wrap(mapped(values), DType.F32, extents));
      case GPU_PINNED_IN_PLACE -> pinned(values, extents);
      case CPU_MAPPED_FILE_COPIED, GPU_MAPPED_FILE_COPIED -> copied(mapped(values), extents);
      case GPU_PINNED_COPIED -> copied(pinned(values, extents).segment(), extents);
      case CPU_HEAP_ARRAY_COPIED, GPU_HEAP_ARRAY_COPIED -> {
        Tensor target = allocated(extents);
        copies.add(() -> target.copyFrom(values));
        yield target;
      }
    };
  }

  private Tensor copied(MemorySegment memory, TensorShape extents) {
    Tensor target = allocated(extents);
    copies.add(() -> target.copyFrom(memory));
    return target;
  }

  private Tensor allocated(TensorShape extents) {
    return own(backend.allocate(DType.F32, extents));
  }

  private Tensor pinned(float[] values, TensorShape extents) {
    Tensor tensor = own(backend.allocatePinned(DType.F32, extents));
    tensor.copyFrom(values);
    return tensor;
  }

  /** The values in a file, which is in the page cache. */
  private MemorySegment mapped(float[] values) throws IOException {
    Path file = Files.createTempFile("linattn-operand", ".f32");
    owned.add(() -> Files.delete(file));
    Arena arena = Arena.ofShared();
    owned.add(arena);
    try (FileChannel channel =
        FileChannel.open(file, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
      long bytes = (long) values.length * Float.BYTES;
      MemorySegment memory = channel.map(FileChannel.MapMode.READ_WRITE, 0, bytes, arena);
      MemorySegment.copy(values, 0, memory, JAVA_FLOAT, 0, values.length);
      return memory;
    }
  }

  private Tensor own(Tensor tensor) {
    owned.add(tensor);
    return tensor;
  }

  /** Copies what is to be copied, runs a forward and waits for it. */
  @Benchmark
  public Tensor forward() {
    for (int i = 0; i < copies.size(); i++) {
      copies.get(i).run();
    }
    attention.forwardInto(operands.get(0), operands.get(1), operands.get(2), o, g);
    attention.synchronize();
    return o;
  }

  /** Frees everything. */
  @TearDown
  public void tearDown() throws Exception {
    for (AutoCloseable member : owned.reversed()) {
      member.close();
    }
    backend.close();
  }
}
