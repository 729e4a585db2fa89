package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.Mode;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import io.github.linattn.test.harness.GpuTest;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Breaks when a kernel reads what has not come yet or what a copy has replaced: that shows in few
 * rows of few runs, where two streams and all multiprocessors are at work.
 */
@GpuTest
final class GpuRepeatTest {
  private static final int RUNS = 30;

  @ParameterizedTest(name = "{0} {1}, D = {2}, normalised: {3}")
  @CsvSource({
    "BF16, DEFAULT, 64, false",
    "BF16, DEFAULT, 128, false",
    "BF16, DEFAULT, 256, false",
    "F16, DEFAULT, 64, false",
    "F16, DEFAULT, 128, false",
    "F16, DEFAULT, 256, false",
    "F32, TF32, 64, false",
    "F32, TF32, 96, false",
    "F32, TF32, 128, false",
    "F32, TF32, 256, false",
    "F32, DEFAULT, 64, false",
    "F32, DEFAULT, 128, false",
    "F32, ACCURATE, 64, false",
    "F32, ACCURATE, 128, false",
    "BF16, DEFAULT, 128, true",
    "BF16, DEFAULT, 192, true",
    "F16, DEFAULT, 192, true",
    "F32, DEFAULT, 192, true",
    "F32, DEFAULT, 256, true",
    "F32, ACCURATE, 256, true"
  })
  void everyRunHasTheSameBits(DType dtype, Mode mode, int dim, boolean normalized) {
    AttentionShape shape = AttentionShape.of(4, 16, 700, dim);
    LinearAttention.Builder operator =
        LinearAttention.builder().mode(mode).normalizeQueriesAndKeys(normalized);
    try (Backend gpu = Backend.cuda(0);
        Stream stream = gpu.newStream();
        Answers first = new Answers(gpu, shape, dtype, operator.on(gpu));
        Answers second = new Answers(gpu, shape, dtype, operator.on(gpu, stream));
        Arena arena = Arena.ofConfined()) {
      first.compute();
      first.attention.synchronize();
      Map<String, MemorySegment> expected = first.copies(arena);
      for (int run = 0; run < RUNS; run++) {
        first.compute();
        second.compute();
        for (Answers answers : List.of(first, second)) {
          answers.attention.synchronize();
          answers.assertSame(expected, run);
        }
      }
    }
  }

  /** A forward and a backward of the same inputs each time. */
  private static final class Answers implements AutoCloseable {
    private final List<Tensor> owned = new ArrayList<>();
    private final Map<String, Tensor> written = new LinkedHashMap<>();
    private final Backend gpu;
    private final DType dtype;
    private final LinearAttention attention;
    private final AttentionInput input;
    private final Tensor dO;

    Answers(Backend gpu, AttentionShape shape, DType dtype, LinearAttention attention) {
      this.gpu = gpu;
      this.dtype = dtype;
      this.attention = attention;
      Random random = new Random(7);
      input =
          AttentionInput.of(
              drawn(shape.q(), random, 0.2f),
              drawn(shape.k(), random, 0.2f),
              drawn(shape.v(), random, 1));
      dO = drawn(shape.output(), random, 1);
      write("o", dtype, shape.output());
      write("g", DType.F32, shape.normalizer());
      write("dq", dtype, shape.q());
      write("dk", dtype, shape.k());
      write("dv", dtype, shape.v());
      write("da", DType.F32, shape.coefficients());
      write("db", DType.F32, shape.coefficients());
    }

    private Tensor drawn(TensorShape shape, Random random, float size) {
      float[] values = new float[Math.toIntExact(shape.elements())];
      for (int i = 0; i < values.length; i++) {
        values[i] = (random.nextFloat() * 2 - 1) * size;
      }
      Tensor tensor = gpu.allocate(dtype, shape);
      owned.add(tensor);
      tensor.copyFrom(values);
      return tensor;
    }

    private void write(String name, DType type, TensorShape shape) {
      Tensor tensor = gpu.allocate(type, shape);
      owned.add(tensor);
      written.put(name, tensor);
    }

    void compute() {
      attention.forwardInto(input, of("o"), of("g"), null);
      attention.backwardInto(
          input,
          of("o"),
          of("g"),
          dO,
          Gradients.over(of("dq"), of("dk"), of("dv"), of("da"), of("db")));
    }

    private Tensor of(String name) {
      return written.get(name);
    }

    Map<String, MemorySegment> copies(Arena arena) {
      Map<String, MemorySegment> copies = new LinkedHashMap<>();
      written.forEach(
          (name, tensor) -> {
            MemorySegment copy = arena.allocate(tensor.byteSpan());
            tensor.copyTo(copy);
            copies.put(name, copy);
          });
      return copies;
    }

    void assertSame(Map<String, MemorySegment> expected, int run) {
      try (Arena arena = Arena.ofConfined()) {
        copies(arena)
            .forEach(
                (name, copy) ->
                    assertThat(copy.mismatch(expected.get(name)))
                        .as("first other byte of %s in run %d", name, run)
                        .isEqualTo(-1));
      }
    }

    @Override
    public void close() {
      owned.forEach(Tensor::close);
    }
  }
}
