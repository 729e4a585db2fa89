package io.github.linattn.internal.cpu;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_SHORT_UNALIGNED;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import io.github.linattn.DType;
import io.github.linattn.internal.cpu.MatrixKernel.Order;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The kernel with vectors against plain loops, for rows and widths that leave remainders. */
final class MatrixKernelsTest {
  private static final int CHUNK = Tiles.CHUNK;

  private final MatrixKernel plain = new ScalarMatrixKernel();
  private final MatrixKernel vectors = new VectorMatrixKernel();

  /** What one seed makes: extents and operands. */
  private static final class Case {
    final Random random;
    final int rows;
    final int width;
    final int other;
    final Order order;

    Case(long seed) {
      random = new Random(seed);
      rows = 1 + random.nextInt(CHUNK);
      width = 16 * (1 + random.nextInt(9));
      other = 16 * (1 + random.nextInt(9));
      order = Order.values()[random.nextInt(2)];
    }

    Panels panels(int rows, int columns) {
      Panels panels = new Panels(rows, columns);
      for (int i = 0; i < rows; i++) {
        panels.setRow(i, row(columns));
      }
      return panels;
    }

    Panels tile(int columns) {
      return panels(CHUNK, columns);
    }

    float[] row(int length) {
      float[] row = new float[length];
      for (int i = 0; i < length; i++) {
        row[i] = (float) random.nextGaussian();
      }
      return row;
    }

    /** As tensors have them, with a gap between rows for some, or in a buffer. */
    Rows emptyRows(int columns) {
      if (random.nextBoolean()) {
        RowBuffer buffer = new RowBuffer(MatrixKernels.create());
        buffer.reserve(CHUNK * columns);
        return buffer.rows(columns);
      }
      int distance = columns + 4 * random.nextInt(3);
      MemorySegment memory = Arena.ofAuto().allocate(4L * (CHUNK * distance + 1));
      return new Rows(memory, 4, 4L * distance);
    }

    Rows rows(int columns) {
      Rows rows = emptyRows(columns);
      for (int i = 0; i < CHUNK; i++) {
        for (int j = 0; j < columns; j++) {
          rows.set(i, j, (float) random.nextGaussian());
        }
      }
      return rows;
    }

    /** Some beyond what a float holds. */
    double[] factors() {
      double[] factors = new double[CHUNK];
      for (int i = 0; i < CHUNK; i++) {
        factors[i] = random.nextGaussian();
      }
      factors[random.nextInt(CHUNK)] = 0x1p-140;
      factors[random.nextInt(CHUNK)] = 0;
      return factors;
    }
  }

  private static Panels copy(Panels panels) {
    Panels copy = new Panels(panels.rows, panels.columns);
    copy.set(panels);
    return copy;
  }

  private static float[] values(Rows rows, int count, int columns) {
    float[] values = new float[count * columns];
    for (int i = 0; i < values.length; i++) {
      values[i] = rows.get(i / columns, i % columns);
    }
    return values;
  }

  private static void assertClose(int rows, Panels actual, Panels expected) {
    for (int i = 0; i < rows; i++) {
      float[] actualRow = new float[actual.columns];
      float[] expectedRow = new float[actual.columns];
      actual.getRow(i, actualRow);
      expected.getRow(i, expectedRow);
      assertClose(actualRow, expectedRow);
    }
  }

  private static void assertClose(float[] actual, float[] expected) {
    for (int j = 0; j < expected.length; j++) {
      float bound = 1e-4f * Math.max(1, Math.abs(expected[j]));
      assertThat(actual[j]).as("element %d", j).isCloseTo(expected[j], within(bound));
    }
  }

  private static void assertClose(int rows, double[] actual, double[] expected) {
    for (int i = 0; i < rows; i++) {
      double bound = 1e-4 * Math.max(1, Math.abs(expected[i]));
      assertThat(actual[i]).as("row %d", i).isCloseTo(expected[i], within(bound));
    }
  }

  @ParameterizedTest
  @ValueSource(longs = {1, 2, 3, 4, 5, 6, 7, 8})
  void multiply(long seed) {
    Case c = new Case(seed);
    int rows = Tiles.roundUp(c.rows, MatrixKernel.ROW_STEP);
    Panels a = c.tile(c.width);
    Panels b = c.panels(c.width, c.other);
    Panels expected = c.tile(c.other);
    Panels actual = c.tile(c.other);
    plain.multiply(rows, a, b, expected);
    vectors.multiply(rows, a, b, actual);
    assertClose(rows, actual, expected);
  }

  @ParameterizedTest
  @ValueSource(longs = {1, 2, 3, 4, 5, 6, 7, 8})
  void addProduct(long seed) {
    Case c = new Case(seed);
    Panels a = c.tile(c.width);
    Panels b = c.tile(c.other);
    Panels expected = c.panels(c.width, c.other);
    Panels actual = copy(expected);
    plain.addProduct(c.rows, a, b, expected, new Panels(c.width, c.other));
    vectors.addProduct(c.rows, a, b, actual, new Panels(c.width, c.other));
    assertClose(c.width, actual, expected);
  }

  @ParameterizedTest
  @ValueSource(longs = {1, 2, 3, 4, 5, 6, 7, 8})
  void recur(long seed) {
    Case c = new Case(seed);
    Panels left = c.tile(c.width);
    Panels right = c.tile(c.other);
    Panels x = c.tile(c.width);
    Panels from = c.panels(c.width, c.other);
    Panels expectedState = new Panels(c.width, c.other);
    Panels expected = c.tile(c.other);
    Panels actual = copy(expected);
    plain.recur(c.rows, left, right, x, from, expectedState, expected, new Upcoming());
    vectors.recur(c.rows, left, right, x, from, from, actual, new Upcoming());
    assertClose(c.rows, actual, expected);
    assertClose(c.width, from, expectedState);
  }

  @ParameterizedTest
  @ValueSource(longs = {1, 2, 3, 4, 5, 6, 7, 8})
  void recurBoth(long seed) {
    Case c = new Case(seed);
    Panels left = c.tile(c.width);
    Panels right = c.tile(c.other);
    Panels x = c.tile(c.width);
    Panels w = c.tile(c.other);
    Panels expectedState = c.panels(c.width, c.other);
    Panels actualState = copy(expectedState);
    Panels expectedY = c.tile(c.other);
    Panels actualY = copy(expectedY);
    Panels expectedZ = c.tile(c.width);
    Panels actualZ = copy(expectedZ);
    plain.recurBoth(c.rows, left, right, x, w, expectedState, expectedY, expectedZ, new Upcoming());
    vectors.recurBoth(c.rows, left, right, x, w, actualState, actualY, actualZ, new Upcoming());
    assertClose(c.width, actualState, expectedState);
    assertClose(c.rows, actualY, expectedY);
    assertClose(c.rows, actualZ, expectedZ);
  }

  @ParameterizedTest
  @ValueSource(longs = {1, 2, 3, 4, 5, 6, 7, 8})
  void dots(long seed) {
    Case c = new Case(seed);
    Panels x = c.tile(c.width);
    Panels y = c.tile(c.width);
    Panels added = c.tile(c.width);
    float[] before = c.row(c.width);
    float[] one = c.row(c.width);
    Rows rows = c.rows(c.width);
    double[][] expected = new double[8][CHUNK];
    double[][] actual = new double[8][CHUNK];
    float[][] sums = new float[4][c.width];
    for (MatrixKernel kernel : new MatrixKernel[] {plain, vectors}) {
      double[][] to = kernel == plain ? expected : actual;
      int first = kernel == plain ? 0 : 2;
      kernel.squares(c.rows, c.width, rows, to[0]);
      kernel.dots(c.rows, x, y, to[1]);
      kernel.dots(c.rows, x, one, to[2]);
      kernel.dots(c.rows, x, before, added, sums[first], to[3]);
      kernel.dots(c.rows, x, y, before, added, sums[first + 1], one, to[4], to[5], to[6], to[7]);
    }
    for (int i = 0; i < expected.length; i++) {
      assertClose(c.rows, actual[i], expected[i]);
    }
    assertClose(sums[2], sums[0]);
    assertClose(sums[3], sums[1]);
  }

  @ParameterizedTest
  @ValueSource(longs = {1, 2, 3, 4, 5, 6, 7, 8})
  void dotsOfMoreRowsThanAChunk(long seed) {
    Case c = new Case(seed);
    int rows = 3 * CHUNK + c.width;
    Panels x = c.panels(rows, c.other);
    float[] one = c.row(c.other);
    double[] expected = new double[rows];
    double[] actual = new double[rows];
    plain.dots(rows, x, one, expected);
    vectors.dots(rows, x, one, actual);
    assertClose(rows, actual, expected);
  }

  @ParameterizedTest
  @ValueSource(longs = {1, 2, 3, 4, 5, 6, 7, 8})
  void packAndUnpack(long seed) {
    Case c = new Case(seed);
    Rows rows = c.rows(c.width);
    float[] less = c.row(c.width);
    double[] factors = c.factors();
    Panels expected = c.tile(c.width);
    Panels actual = c.tile(c.width);
    plain.pack(c.rows, c.order, factors, rows, less, expected);
    vectors.pack(c.rows, c.order, factors, rows, less, actual);
    assertClose(c.rows, actual, expected);
    vectors.pack(c.rows, c.order, rows, new float[c.width], actual);
    for (MatrixKernel kernel : new MatrixKernel[] {plain, vectors}) {
      Rows again = c.emptyRows(c.width);
      kernel.unpack(c.rows, c.order, actual, again);
      assertThat(values(again, c.rows, c.width)).isEqualTo(values(rows, c.rows, c.width));
    }
  }

  @ParameterizedTest
  @ValueSource(longs = {1, 2, 3, 4, 5, 6, 7, 8})
  void combine(long seed) {
    Case c = new Case(seed);
    Panels y = c.tile(c.width);
    Panels x = c.tile(c.width);
    Panels added = c.tile(c.width);
    float[] before = c.row(c.width);
    float[] one = c.row(c.width);
    double[] scales = c.factors();
    double[] ofX = c.factors();
    double[] ofZ = c.factors();
    float[][] expected = new float[3][];
    float[][] actual = new float[3][];
    float[][] sums = new float[2][c.width];
    for (MatrixKernel kernel : new MatrixKernel[] {plain, vectors}) {
      float[][] to = kernel == plain ? expected : actual;
      float[] sum = sums[kernel == plain ? 0 : 1];
      Rows target = c.emptyRows(c.width);
      kernel.combine(c.rows, c.order, scales, y, ofX, x, target);
      to[0] = values(target, c.rows, c.width);
      kernel.combine(c.rows, scales, y, ofZ, before, added, sum, target);
      to[1] = values(target, c.rows, c.width);
      kernel.combine(c.rows, scales, y, ofZ, before, added, ofX, one, ofX, x, target);
      to[2] = values(target, c.rows, c.width);
    }
    for (int i = 0; i < expected.length; i++) {
      assertClose(actual[i], expected[i]);
    }
    assertClose(sums[1], sums[0]);
  }

  @ParameterizedTest
  @ValueSource(longs = {1, 2, 3, 4, 5, 6, 7, 8})
  void sumsOverRows(long seed) {
    Case c = new Case(seed);
    Panels x = c.tile(c.width);
    float[] weights = c.row(CHUNK);
    float[] before = c.row(c.width);
    Panels expected = c.tile(c.width);
    Panels actual = c.tile(c.width);
    float[][] sums = new float[4][c.width];
    plain.accumulateRows(c.rows, weights, x, before, -1, expected, sums[0]);
    vectors.accumulateRows(c.rows, weights, x, before, -1, actual, sums[1]);
    plain.sumRows(c.rows, weights, x, sums[2]);
    vectors.sumRows(c.rows, weights, x, sums[3]);
    assertClose(c.rows, actual, expected);
    assertClose(sums[1], sums[0]);
    assertClose(sums[3], sums[2]);
    plain.addRow(c.rows, -1, before, expected);
    vectors.addRow(c.rows, -1, before, actual);
    assertClose(c.rows, actual, expected);
  }

  /** Every bf16 there is; and what lies between, halfway too, rounds as elsewhere. */
  @Test
  void widenAndNarrow() {
    int count = 1 << 16;
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment halves = arena.allocate(2L * count + 2);
      MemorySegment floats = arena.allocate(4L * count + 4);
      for (int i = 0; i < count; i++) {
        halves.set(JAVA_SHORT_UNALIGNED, 2 + 2L * i, (short) i);
      }
      float[] expected = new float[count];
      vectors.widen(count, halves, 2, floats, 4);
      DType.BF16.decode(halves, 1, expected, 0, count);
      assertBits(floats.asSlice(4).toArray(JAVA_INT), expected);
      MemorySegment actual = arena.allocate(2L * count);
      MemorySegment rounded = arena.allocate(2L * count);
      for (int low : new int[] {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff}) {
        for (int i = 0; i < count; i++) {
          floats.set(JAVA_INT, 4 + 4L * i, i << 16 | low);
        }
        vectors.narrow(count, floats, 4, actual, 0);
        DType.BF16.encode(floats.asSlice(4).toArray(JAVA_FLOAT), 0, rounded, 0, count);
        assertThat(actual.mismatch(rounded)).as("low bits %x", low).isEqualTo(-1);
      }
    }
  }

  private static void assertBits(int[] actual, float[] expected) {
    for (int i = 0; i < expected.length; i++) {
      assertThat(actual[i]).isEqualTo(Float.floatToRawIntBits(expected[i]));
    }
  }
}
