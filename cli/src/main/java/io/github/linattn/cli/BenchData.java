package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import java.util.random.RandomGenerator;
import java.util.random.RandomGeneratorFactory;

/**
 * Inputs of any size from few numbers: rows that repeat after {@link #PERIOD}, a prime, so that
 * heads begin at different rows and the sums over a long sequence are known from a short one.
 */
final class BenchData {
  /** How numbers are drawn. */
  enum Kind {
    NORMAL,
    /** Their absolute values: no sum cancels, so that rounding to one side adds up. */
    POSITIVE
  }

  /** Rows until they repeat. */
  static final int PERIOD = 1021;

  private static final double PRODUCT_DEVIATION = 0.2;
  private static final int POISON_BYTES = 1 << 22;

  private final float[] q;
  private final float[] k;
  private final float[] v;
  private final float[] s;
  private final float[] z;
  private final float[] u;
  private final float[] dO;

  BenchData(BenchCase problem, long seed) {
    AttentionShape shape = problem.shape();
    DType dtype = problem.precision().dtype();
    RandomGenerator random = RandomGeneratorFactory.of("L64X128MixRandom").create(seed);
    double scale = Math.sqrt(PRODUCT_DEVIATION / Math.sqrt(shape.keyDim()));
    Kind kind = problem.data();
    this.q = numbers(kind, random, PERIOD * shape.keyDim(), scale, dtype);
    this.k = numbers(kind, random, PERIOD * shape.keyDim(), scale, dtype);
    this.v = numbers(kind, random, PERIOD * shape.valueDim(), 1, dtype);
    int held = problem.decode() ? 1 : 0;
    this.s = numbers(kind, random, held * shape.keyDim() * shape.valueDim(), 1, DType.F32);
    this.z = numbers(kind, random, held * shape.keyDim(), 1, DType.F32);
    this.u = numbers(kind, random, held * shape.valueDim(), 1, DType.F32);
    this.dO = numbers(Kind.NORMAL, random, PERIOD * shape.valueDim(), 1, dtype);
  }

  private static float[] numbers(
      Kind kind, RandomGenerator random, int count, double scale, DType dtype) {
    float[] values = new float[count];
    for (int i = 0; i < count; i++) {
      float value = dtype.round((float) (scale * random.nextGaussian()));
      values[i] = kind == Kind.POSITIVE ? Math.abs(value) : value;
    }
    return values;
  }

  float[] q() {
    return q;
  }

  float[] k() {
    return k;
  }

  float[] v() {
    return v;
  }

  /** Of either sign whatever the kind of the inputs, as gradients of a loss are. */
  float[] dO() {
    return dO;
  }

  /** S of every head. */
  float[] s() {
    return s;
  }

  /** z of every head. */
  float[] z() {
    return z;
  }

  /** u of every head. */
  float[] u() {
    return u;
  }

  /**
   * Rows of one head.
   *
   * @param period all rows, {@code width} wide
   * @param firstRow of the head, counted over all heads
   */
  static void copyRows(
      float[] period, int width, long firstRow, int rows, float[] target, int offset) {
    for (int i = 0; i < rows; i++) {
      int row = (int) ((firstRow + i) % PERIOD);
      System.arraycopy(period, row * width, target, offset + i * width, width);
    }
  }

  /** Fills a tensor on the device with a period; queued. */
  static void fill(Stream stream, Tensor tensor, float[] period) {
    Tensor flat = flat(tensor);
    int first = (int) Math.min(period.length, flat.shape().elements());
    flat.sliced(0, 0, first).copyFrom(Arrays.copyOf(period, first));
    spread(stream, flat, first);
  }

  /** Fills a tensor on the device with NaN; queued. */
  static void poison(Stream stream, Tensor tensor) {
    Tensor flat = flat(tensor);
    int size = tensor.dtype().bytes();
    int first = (int) Math.min(POISON_BYTES / size, flat.shape().elements());
    byte[] ones = new byte[first * size];
    Arrays.fill(ones, (byte) 0xff);
    flat.sliced(0, 0, first).copyFrom(MemorySegment.ofArray(ones));
    spread(stream, flat, first);
  }

  /** All elements in a row. */
  static Tensor flat(Tensor tensor) {
    return tensor.reshaped(TensorShape.of(tensor.shape().elements()));
  }

  private static void spread(Stream stream, Tensor flat, long first) {
    long all = flat.shape().elements();
    for (long done = first; done < all; done *= 2) {
      long count = Math.min(done, all - done);
      stream.copy(flat.sliced(0, 0, count), flat.sliced(0, done, count));
    }
  }
}
