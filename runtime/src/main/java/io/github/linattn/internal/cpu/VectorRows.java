package io.github.linattn.internal.cpu;

import io.github.linattn.bindings.host.HeapAddress;
import io.github.linattn.bindings.host.Prefetch;
import java.lang.foreign.MemorySegment;
import java.nio.ByteOrder;
import java.util.Arrays;
import jdk.incubator.vector.DoubleVector;
import jdk.incubator.vector.FloatVector;
import jdk.incubator.vector.VectorMask;
import jdk.incubator.vector.VectorOperators;
import jdk.incubator.vector.VectorShuffle;
import jdk.incubator.vector.VectorSpecies;

/**
 * Loops over rows with the Vector API, four vectors of each row at a time: a loop over the few
 * vectors of a row would be its beginning and end.
 *
 * <p>They call that API alone and nothing of this class: what the compiler may leave out of a large
 * caller would pass its vectors through the heap.
 */
abstract class VectorRows implements MatrixKernel {
  static final VectorSpecies<Float> SPECIES =
      FloatVector.SPECIES_PREFERRED.length() > Panels.WIDTH
          ? FloatVector.SPECIES_512
          : FloatVector.SPECIES_PREFERRED;
  static final int LANES = SPECIES.length();

  /** Of a vector. */
  private static final long BYTES = SPECIES.vectorByteSize();

  static final ByteOrder NATIVE = ByteOrder.nativeOrder();

  private static final VectorSpecies<Double> DOUBLES = SPECIES.withLanes(double.class);
  private static final int STEP = DOUBLES.length();

  /** Between these a factor and its remainder are floats of full precision. */
  private static final double LEAST_FACTOR = 0x1p-100;

  private static final double MOST_FACTOR = 0x1p100;

  /** Lanes of the second half, and of the second and last quarter. */
  static final VectorMask<Float> SECOND_HALF = everySecond(LANES / 2);

  static final VectorMask<Float> SECOND_QUARTERS = everySecond(LANES / 4);

  /** Exchange halves, and the quarters of each half. */
  static final VectorShuffle<Float> SWAP_HALVES = swap(LANES / 2);

  static final VectorShuffle<Float> SWAP_QUARTERS = swap(LANES / 4);

  private static final VectorShuffle<Double> ROTATE_2_OF_DOUBLES =
      VectorShuffle.iota(DOUBLES, 2 % STEP, 1, true);
  private static final VectorShuffle<Double> ROTATE_1_OF_DOUBLES =
      VectorShuffle.iota(DOUBLES, 1, 1, true);

  /** Lanes of one dot of all rows of a tile. */
  private static final int DOT = Tiles.CHUNK * LANES;

  /** Of up to four dots, which {@link #sumLanes} sums. */
  private final float[] lanes = new float[4 * DOT + Panels.WIDTH - 1];

  static VectorMask<Float> everySecond(int group) {
    boolean[] bits = new boolean[LANES];
    for (int i = 0; i < LANES; i++) {
      bits[i] = i / group % 2 != 0;
    }
    return VectorMask.fromArray(SPECIES, bits, 0);
  }

  static VectorShuffle<Float> swap(int group) {
    return VectorShuffle.fromOp(SPECIES, i -> i / group % 2 == 0 ? i + group : i - group);
  }

  /**
   * sums[sumsAt + i] = Σ_j lanes[i][j], rows of as many as a vector has lanes: of four rows at a
   * time, in fp32 until four lanes are left of each and then in double.
   *
   * @param sums as long as there are rows, those up to a multiple of four among them
   */
  private static void sumLanes(int rows, float[] lanes, int lanesAt, double[] sums, int sumsAt) {
    for (int i = 0; i < rows; i += 4) {
      int at = lanesAt + i * LANES;
      FloatVector a = FloatVector.fromArray(SPECIES, lanes, at);
      FloatVector b = FloatVector.fromArray(SPECIES, lanes, at + LANES);
      FloatVector c = FloatVector.fromArray(SPECIES, lanes, at + 2 * LANES);
      FloatVector d = FloatVector.fromArray(SPECIES, lanes, at + 3 * LANES);
      FloatVector ab = a.blend(b, SECOND_HALF).add(b.blend(a, SECOND_HALF).rearrange(SWAP_HALVES));
      FloatVector cd = c.blend(d, SECOND_HALF).add(d.blend(c, SECOND_HALF).rearrange(SWAP_HALVES));
      FloatVector all =
          ab.blend(cd, SECOND_QUARTERS)
              .add(cd.blend(ab, SECOND_QUARTERS).rearrange(SWAP_QUARTERS)); // of a, c, b, d
      DoubleVector ac = (DoubleVector) all.castShape(DOUBLES, 0);
      DoubleVector bd = (DoubleVector) all.rearrange(SWAP_HALVES).castShape(DOUBLES, 0);
      if (STEP > 4) {
        ac = ac.add(ac.rearrange(ROTATE_2_OF_DOUBLES));
        bd = bd.add(bd.rearrange(ROTATE_2_OF_DOUBLES));
      }
      if (STEP > 2) {
        ac = ac.add(ac.rearrange(ROTATE_1_OF_DOUBLES));
        bd = bd.add(bd.rearrange(ROTATE_1_OF_DOUBLES));
      }
      sums[sumsAt + i] = ac.lane(0);
      sums[sumsAt + i + 1] = bd.lane(0);
      sums[sumsAt + i + 2] = ac.lane(STEP / 2);
      sums[sumsAt + i + 3] = bd.lane(STEP / 2);
    }
  }

  /** To zeros; gives where the first begins, at a line of the cache. */
  private int clearLanes(int dots) {
    int start = HeapAddress.elementsToBoundary(lanes, Panels.WIDTH);
    Arrays.fill(lanes, start, start + dots * DOT, 0);
    return start;
  }

  @Override
  public void squares(int rows, int width, Rows x, double[] sums) {
    int lanesAt = clearLanes(1);
    int j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) {
      for (int i = 0; i < rows; i++) {
        long at = x.start + i * x.distance + j * (long) Float.BYTES;
        FloatVector x0 = FloatVector.fromMemorySegment(SPECIES, x.memory, at, NATIVE);
        FloatVector x1 = FloatVector.fromMemorySegment(SPECIES, x.memory, at + BYTES, NATIVE);
        FloatVector x2 = FloatVector.fromMemorySegment(SPECIES, x.memory, at + 2 * BYTES, NATIVE);
        FloatVector x3 = FloatVector.fromMemorySegment(SPECIES, x.memory, at + 3 * BYTES, NATIVE);
        FloatVector dot = x0.fma(x0, FloatVector.fromArray(SPECIES, lanes, lanesAt + i * LANES));
        dot = x1.fma(x1, dot);
        dot = x2.fma(x2, dot);
        dot = x3.fma(x3, dot);
        dot.intoArray(lanes, lanesAt + i * LANES);
      }
    }
    for (; j < width; j += LANES) {
      for (int i = 0; i < rows; i++) {
        long at = x.start + i * x.distance + j * (long) Float.BYTES;
        FloatVector x0 = FloatVector.fromMemorySegment(SPECIES, x.memory, at, NATIVE);
        FloatVector dot = x0.fma(x0, FloatVector.fromArray(SPECIES, lanes, lanesAt + i * LANES));
        dot.intoArray(lanes, lanesAt + i * LANES);
      }
    }
    sumLanes(rows, lanes, lanesAt, sums, 0);
  }

  @Override
  public void dots(int rows, Panels x, Panels y, double[] sums) {
    for (int first = 0; first < rows; first += Tiles.CHUNK) {
      dots(first, Math.min(Tiles.CHUNK, rows - first), x, y, sums);
    }
  }

  private void dots(int first, int rows, Panels x, Panels y, double[] sums) {
    int width = x.columns;
    int lanesAt = clearLanes(1);
    int j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) {
      int x0 = x.at(first, j);
      int x1 = x.at(first, j + LANES);
      int x2 = x.at(first, j + 2 * LANES);
      int x3 = x.at(first, j + 3 * LANES);
      int y0 = y.at(first, j);
      int y1 = y.at(first, j + LANES);
      int y2 = y.at(first, j + 2 * LANES);
      int y3 = y.at(first, j + 3 * LANES);
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        FloatVector x0s = FloatVector.fromArray(SPECIES, x.data, x0 + line);
        FloatVector x1s = FloatVector.fromArray(SPECIES, x.data, x1 + line);
        FloatVector x2s = FloatVector.fromArray(SPECIES, x.data, x2 + line);
        FloatVector x3s = FloatVector.fromArray(SPECIES, x.data, x3 + line);
        FloatVector y0s = FloatVector.fromArray(SPECIES, y.data, y0 + line);
        FloatVector y1s = FloatVector.fromArray(SPECIES, y.data, y1 + line);
        FloatVector y2s = FloatVector.fromArray(SPECIES, y.data, y2 + line);
        FloatVector y3s = FloatVector.fromArray(SPECIES, y.data, y3 + line);
        FloatVector dot = x0s.fma(y0s, FloatVector.fromArray(SPECIES, lanes, lanesAt + i * LANES));
        dot = x1s.fma(y1s, dot);
        dot = x2s.fma(y2s, dot);
        dot = x3s.fma(y3s, dot);
        dot.intoArray(lanes, lanesAt + i * LANES);
      }
    }
    for (; j < width; j += LANES) {
      int xAt = x.at(first, j);
      int yAt = y.at(first, j);
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        FloatVector xs = FloatVector.fromArray(SPECIES, x.data, xAt + line);
        FloatVector ys = FloatVector.fromArray(SPECIES, y.data, yAt + line);
        FloatVector dot = xs.fma(ys, FloatVector.fromArray(SPECIES, lanes, lanesAt + i * LANES));
        dot.intoArray(lanes, lanesAt + i * LANES);
      }
    }
    sumLanes(rows, lanes, lanesAt, sums, first);
  }

  @Override
  public void dots(int rows, Panels x, float[] before, Panels added, float[] sum, double[] sums) {
    int width = x.columns;
    int lanesAt = clearLanes(1);
    int j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) {
      int x0 = x.at(0, j);
      int x1 = x.at(0, j + LANES);
      int x2 = x.at(0, j + 2 * LANES);
      int x3 = x.at(0, j + 3 * LANES);
      int added0 = added.at(0, j);
      int added1 = added.at(0, j + LANES);
      int added2 = added.at(0, j + 2 * LANES);
      int added3 = added.at(0, j + 3 * LANES);
      FloatVector start0 = FloatVector.fromArray(SPECIES, before, j);
      FloatVector start1 = FloatVector.fromArray(SPECIES, before, j + LANES);
      FloatVector start2 = FloatVector.fromArray(SPECIES, before, j + 2 * LANES);
      FloatVector start3 = FloatVector.fromArray(SPECIES, before, j + 3 * LANES);
      FloatVector all0 = FloatVector.zero(SPECIES);
      FloatVector all1 = all0;
      FloatVector all2 = all0;
      FloatVector all3 = all0;
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        all0 = all0.add(FloatVector.fromArray(SPECIES, added.data, added0 + line));
        FloatVector x0s = FloatVector.fromArray(SPECIES, x.data, x0 + line);
        FloatVector dot =
            x0s.fma(start0.add(all0), FloatVector.fromArray(SPECIES, lanes, lanesAt + i * LANES));
        all1 = all1.add(FloatVector.fromArray(SPECIES, added.data, added1 + line));
        FloatVector x1s = FloatVector.fromArray(SPECIES, x.data, x1 + line);
        dot = x1s.fma(start1.add(all1), dot);
        all2 = all2.add(FloatVector.fromArray(SPECIES, added.data, added2 + line));
        FloatVector x2s = FloatVector.fromArray(SPECIES, x.data, x2 + line);
        dot = x2s.fma(start2.add(all2), dot);
        all3 = all3.add(FloatVector.fromArray(SPECIES, added.data, added3 + line));
        FloatVector x3s = FloatVector.fromArray(SPECIES, x.data, x3 + line);
        dot = x3s.fma(start3.add(all3), dot);
        dot.intoArray(lanes, lanesAt + i * LANES);
      }
      all0.intoArray(sum, j);
      all1.intoArray(sum, j + LANES);
      all2.intoArray(sum, j + 2 * LANES);
      all3.intoArray(sum, j + 3 * LANES);
    }
    for (; j < width; j += LANES) {
      int xAt = x.at(0, j);
      int addedAt = added.at(0, j);
      FloatVector start = FloatVector.fromArray(SPECIES, before, j);
      FloatVector all = FloatVector.zero(SPECIES);
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        all = all.add(FloatVector.fromArray(SPECIES, added.data, addedAt + line));
        FloatVector dot =
            FloatVector.fromArray(SPECIES, x.data, xAt + line)
                .fma(start.add(all), FloatVector.fromArray(SPECIES, lanes, lanesAt + i * LANES));
        dot.intoArray(lanes, lanesAt + i * LANES);
      }
      all.intoArray(sum, j);
    }
    sumLanes(rows, lanes, lanesAt, sums, 0);
  }

  @Override
  public void dots(int rows, Panels x, float[] c, double[] sums) {
    for (int first = 0; first < rows; first += Tiles.CHUNK) {
      dots(first, Math.min(Tiles.CHUNK, rows - first), x, c, sums);
    }
  }

  private void dots(int first, int rows, Panels x, float[] c, double[] sums) {
    int width = x.columns;
    int lanesAt = clearLanes(1);
    int j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) {
      int x0 = x.at(first, j);
      int x1 = x.at(first, j + LANES);
      int x2 = x.at(first, j + 2 * LANES);
      int x3 = x.at(first, j + 3 * LANES);
      FloatVector c0 = FloatVector.fromArray(SPECIES, c, j);
      FloatVector c1 = FloatVector.fromArray(SPECIES, c, j + LANES);
      FloatVector c2 = FloatVector.fromArray(SPECIES, c, j + 2 * LANES);
      FloatVector c3 = FloatVector.fromArray(SPECIES, c, j + 3 * LANES);
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        FloatVector x0s = FloatVector.fromArray(SPECIES, x.data, x0 + line);
        FloatVector x1s = FloatVector.fromArray(SPECIES, x.data, x1 + line);
        FloatVector x2s = FloatVector.fromArray(SPECIES, x.data, x2 + line);
        FloatVector x3s = FloatVector.fromArray(SPECIES, x.data, x3 + line);
        FloatVector dot = x0s.fma(c0, FloatVector.fromArray(SPECIES, lanes, lanesAt + i * LANES));
        dot = x1s.fma(c1, dot);
        dot = x2s.fma(c2, dot);
        dot = x3s.fma(c3, dot);
        dot.intoArray(lanes, lanesAt + i * LANES);
      }
    }
    for (; j < width; j += LANES) {
      int xAt = x.at(first, j);
      FloatVector cs = FloatVector.fromArray(SPECIES, c, j);
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        FloatVector dot =
            FloatVector.fromArray(SPECIES, x.data, xAt + line)
                .fma(cs, FloatVector.fromArray(SPECIES, lanes, lanesAt + i * LANES));
        dot.intoArray(lanes, lanesAt + i * LANES);
      }
    }
    sumLanes(rows, lanes, lanesAt, sums, first);
  }

  @Override
  public void dots(
      int rows,
      Panels x,
      Panels y,
      float[] before,
      Panels added,
      float[] sum,
      float[] c,
      double[] alongX,
      double[] alongY,
      double[] alongZ,
      double[] alongC) {
    int width = x.columns;
    int lanesAt = clearLanes(4);
    int j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) {
      int x0 = x.at(0, j);
      int x1 = x.at(0, j + LANES);
      int x2 = x.at(0, j + 2 * LANES);
      int x3 = x.at(0, j + 3 * LANES);
      int y0 = y.at(0, j);
      int y1 = y.at(0, j + LANES);
      int y2 = y.at(0, j + 2 * LANES);
      int y3 = y.at(0, j + 3 * LANES);
      int added0 = added.at(0, j);
      int added1 = added.at(0, j + LANES);
      int added2 = added.at(0, j + 2 * LANES);
      int added3 = added.at(0, j + 3 * LANES);
      FloatVector start0 = FloatVector.fromArray(SPECIES, before, j);
      FloatVector start1 = FloatVector.fromArray(SPECIES, before, j + LANES);
      FloatVector start2 = FloatVector.fromArray(SPECIES, before, j + 2 * LANES);
      FloatVector start3 = FloatVector.fromArray(SPECIES, before, j + 3 * LANES);
      FloatVector all0 = FloatVector.zero(SPECIES);
      FloatVector all1 = all0;
      FloatVector all2 = all0;
      FloatVector all3 = all0;
      FloatVector c0 = FloatVector.fromArray(SPECIES, c, j);
      FloatVector c1 = FloatVector.fromArray(SPECIES, c, j + LANES);
      FloatVector c2 = FloatVector.fromArray(SPECIES, c, j + 2 * LANES);
      FloatVector c3 = FloatVector.fromArray(SPECIES, c, j + 3 * LANES);
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        FloatVector x0s = FloatVector.fromArray(SPECIES, x.data, x0 + line);
        FloatVector sumX = x0s.fma(x0s, FloatVector.fromArray(SPECIES, lanes, lanesAt + i * LANES));
        FloatVector y0s = FloatVector.fromArray(SPECIES, y.data, y0 + line);
        FloatVector sumY =
            x0s.fma(y0s, FloatVector.fromArray(SPECIES, lanes, lanesAt + DOT + i * LANES));
        all0 = all0.add(FloatVector.fromArray(SPECIES, added.data, added0 + line));
        FloatVector sumZ =
            x0s.fma(
                start0.add(all0),
                FloatVector.fromArray(SPECIES, lanes, lanesAt + 2 * DOT + i * LANES));
        FloatVector sumC =
            x0s.fma(c0, FloatVector.fromArray(SPECIES, lanes, lanesAt + 3 * DOT + i * LANES));
        FloatVector x1s = FloatVector.fromArray(SPECIES, x.data, x1 + line);
        sumX = x1s.fma(x1s, sumX);
        FloatVector y1s = FloatVector.fromArray(SPECIES, y.data, y1 + line);
        sumY = x1s.fma(y1s, sumY);
        all1 = all1.add(FloatVector.fromArray(SPECIES, added.data, added1 + line));
        sumZ = x1s.fma(start1.add(all1), sumZ);
        sumC = x1s.fma(c1, sumC);
        FloatVector x2s = FloatVector.fromArray(SPECIES, x.data, x2 + line);
        sumX = x2s.fma(x2s, sumX);
        FloatVector y2s = FloatVector.fromArray(SPECIES, y.data, y2 + line);
        sumY = x2s.fma(y2s, sumY);
        all2 = all2.add(FloatVector.fromArray(SPECIES, added.data, added2 + line));
        sumZ = x2s.fma(start2.add(all2), sumZ);
        sumC = x2s.fma(c2, sumC);
        FloatVector x3s = FloatVector.fromArray(SPECIES, x.data, x3 + line);
        sumX = x3s.fma(x3s, sumX);
        FloatVector y3s = FloatVector.fromArray(SPECIES, y.data, y3 + line);
        sumY = x3s.fma(y3s, sumY);
        all3 = all3.add(FloatVector.fromArray(SPECIES, added.data, added3 + line));
        sumZ = x3s.fma(start3.add(all3), sumZ);
        sumC = x3s.fma(c3, sumC);
        sumX.intoArray(lanes, lanesAt + i * LANES);
        sumY.intoArray(lanes, lanesAt + DOT + i * LANES);
        sumZ.intoArray(lanes, lanesAt + 2 * DOT + i * LANES);
        sumC.intoArray(lanes, lanesAt + 3 * DOT + i * LANES);
      }
      all0.intoArray(sum, j);
      all1.intoArray(sum, j + LANES);
      all2.intoArray(sum, j + 2 * LANES);
      all3.intoArray(sum, j + 3 * LANES);
    }
    for (; j < width; j += LANES) {
      int xAt = x.at(0, j);
      int yAt = y.at(0, j);
      int addedAt = added.at(0, j);
      FloatVector cs = FloatVector.fromArray(SPECIES, c, j);
      FloatVector start = FloatVector.fromArray(SPECIES, before, j);
      FloatVector all = FloatVector.zero(SPECIES);
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        all = all.add(FloatVector.fromArray(SPECIES, added.data, addedAt + line));
        FloatVector xs = FloatVector.fromArray(SPECIES, x.data, xAt + line);
        FloatVector sumX = xs.fma(xs, FloatVector.fromArray(SPECIES, lanes, lanesAt + i * LANES));
        FloatVector sumY =
            xs.fma(
                FloatVector.fromArray(SPECIES, y.data, yAt + line),
                FloatVector.fromArray(SPECIES, lanes, lanesAt + DOT + i * LANES));
        FloatVector sumZ =
            xs.fma(
                start.add(all),
                FloatVector.fromArray(SPECIES, lanes, lanesAt + 2 * DOT + i * LANES));
        FloatVector sumC =
            xs.fma(cs, FloatVector.fromArray(SPECIES, lanes, lanesAt + 3 * DOT + i * LANES));
        sumX.intoArray(lanes, lanesAt + i * LANES);
        sumY.intoArray(lanes, lanesAt + DOT + i * LANES);
        sumZ.intoArray(lanes, lanesAt + 2 * DOT + i * LANES);
        sumC.intoArray(lanes, lanesAt + 3 * DOT + i * LANES);
      }
      all.intoArray(sum, j);
    }
    sumLanes(rows, lanes, lanesAt, alongX, 0);
    sumLanes(rows, lanes, lanesAt + DOT, alongY, 0);
    sumLanes(rows, lanes, lanesAt + 2 * DOT, alongZ, 0);
    sumLanes(rows, lanes, lanesAt + 3 * DOT, alongC, 0);
  }

  @Override
  public void pack(int rows, Order order, Rows x, float[] less, Panels y) {
    int width = y.columns;
    long first = x.at(order.row(0, rows), 0);
    long step = order == Order.FORWARD ? x.distance : -x.distance;
    int j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) {
      int y0 = y.at(0, j);
      int y1 = y.at(0, j + LANES);
      int y2 = y.at(0, j + 2 * LANES);
      int y3 = y.at(0, j + 3 * LANES);
      FloatVector less0 = FloatVector.fromArray(SPECIES, less, j);
      FloatVector less1 = FloatVector.fromArray(SPECIES, less, j + LANES);
      FloatVector less2 = FloatVector.fromArray(SPECIES, less, j + 2 * LANES);
      FloatVector less3 = FloatVector.fromArray(SPECIES, less, j + 3 * LANES);
      for (int i = 0; i < rows; i++) {
        long at = first + i * step + j * (long) Float.BYTES;
        int line = i * Panels.WIDTH;
        FloatVector x0 = FloatVector.fromMemorySegment(SPECIES, x.memory, at, NATIVE);
        FloatVector x1 = FloatVector.fromMemorySegment(SPECIES, x.memory, at + BYTES, NATIVE);
        FloatVector x2 = FloatVector.fromMemorySegment(SPECIES, x.memory, at + 2 * BYTES, NATIVE);
        FloatVector x3 = FloatVector.fromMemorySegment(SPECIES, x.memory, at + 3 * BYTES, NATIVE);
        x0.sub(less0).intoArray(y.data, y0 + line);
        x1.sub(less1).intoArray(y.data, y1 + line);
        x2.sub(less2).intoArray(y.data, y2 + line);
        x3.sub(less3).intoArray(y.data, y3 + line);
      }
    }
    for (; j < width; j += LANES) {
      int yAt = y.at(0, j);
      FloatVector lesses = FloatVector.fromArray(SPECIES, less, j);
      for (int i = 0; i < rows; i++) {
        long at = first + i * step + j * (long) Float.BYTES;
        FloatVector xs = FloatVector.fromMemorySegment(SPECIES, x.memory, at, NATIVE);
        xs.sub(lesses).intoArray(y.data, yAt + i * Panels.WIDTH);
      }
    }
  }

  @Override
  public void pack(int rows, Order order, double[] factors, Rows x, float[] less, Panels y) {
    int width = y.columns;
    long first = x.at(order.row(0, rows), 0);
    long step = order == Order.FORWARD ? x.distance : -x.distance;
    boolean allFit = allFit(rows, factors);
    int j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) {
      int y0 = y.at(0, j);
      int y1 = y.at(0, j + LANES);
      int y2 = y.at(0, j + 2 * LANES);
      int y3 = y.at(0, j + 3 * LANES);
      FloatVector less0 = FloatVector.fromArray(SPECIES, less, j);
      FloatVector less1 = FloatVector.fromArray(SPECIES, less, j + LANES);
      FloatVector less2 = FloatVector.fromArray(SPECIES, less, j + 2 * LANES);
      FloatVector less3 = FloatVector.fromArray(SPECIES, less, j + 3 * LANES);
      for (int i = 0; i < rows; i++) {
        long at = first + i * step + j * (long) Float.BYTES;
        int line = i * Panels.WIDTH;
        float rounded = (float) factors[i];
        FloatVector high = FloatVector.broadcast(SPECIES, rounded);
        FloatVector low = FloatVector.broadcast(SPECIES, (float) (factors[i] - rounded));
        FloatVector x0 = FloatVector.fromMemorySegment(SPECIES, x.memory, at, NATIVE);
        FloatVector x1 = FloatVector.fromMemorySegment(SPECIES, x.memory, at + BYTES, NATIVE);
        FloatVector x2 = FloatVector.fromMemorySegment(SPECIES, x.memory, at + 2 * BYTES, NATIVE);
        FloatVector x3 = FloatVector.fromMemorySegment(SPECIES, x.memory, at + 3 * BYTES, NATIVE);
        x0.fma(high, x0.mul(low).sub(less0)).intoArray(y.data, y0 + line);
        x1.fma(high, x1.mul(low).sub(less1)).intoArray(y.data, y1 + line);
        x2.fma(high, x2.mul(low).sub(less2)).intoArray(y.data, y2 + line);
        x3.fma(high, x3.mul(low).sub(less3)).intoArray(y.data, y3 + line);
      }
    }
    for (; j < width; j += LANES) {
      int yAt = y.at(0, j);
      FloatVector lesses = FloatVector.fromArray(SPECIES, less, j);
      for (int i = 0; i < rows; i++) {
        long at = first + i * step + j * (long) Float.BYTES;
        FloatVector xs = FloatVector.fromMemorySegment(SPECIES, x.memory, at, NATIVE);
        float rounded = (float) factors[i];
        FloatVector low = FloatVector.broadcast(SPECIES, (float) (factors[i] - rounded));
        low = xs.mul(low).sub(lesses);
        xs.fma(FloatVector.broadcast(SPECIES, rounded), low)
            .intoArray(y.data, yAt + i * Panels.WIDTH);
      }
    }
    for (int i = 0; !allFit && i < rows; i++) {
      if (!fits(factors[i])) {
        ScalarMatrixKernel.packRow(i, factors[i], x, order.row(i, rows), less, y);
      }
    }
  }

  /** Whether each factor can be had as a float, or as the sum of two, as well as in double. */
  private static boolean allFit(int rows, double[] factors) {
    VectorMask<Double> all = DOUBLES.maskAll(true);
    int i = 0;
    for (; i + STEP <= rows; i += STEP) {
      DoubleVector size = DoubleVector.fromArray(DOUBLES, factors, i).abs();
      VectorMask<Double> fit = size.compare(VectorOperators.GT, LEAST_FACTOR);
      fit = fit.and(size.compare(VectorOperators.LT, MOST_FACTOR));
      all = all.and(fit.or(size.compare(VectorOperators.EQ, 0)));
    }
    boolean allFit = all.allTrue();
    for (; i < rows; i++) {
      allFit &= fits(factors[i]);
    }
    return allFit;
  }

  private static boolean fits(double factor) {
    double size = Math.abs(factor);
    return size == 0 || (size > LEAST_FACTOR && size < MOST_FACTOR);
  }

  @Override
  public void unpack(int rows, Order order, Panels x, Rows y) {
    int width = x.columns;
    long first = y.at(order.row(0, rows), 0);
    long step = order == Order.FORWARD ? y.distance : -y.distance;
    int j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) {
      int x0 = x.at(0, j);
      int x1 = x.at(0, j + LANES);
      int x2 = x.at(0, j + 2 * LANES);
      int x3 = x.at(0, j + 3 * LANES);
      for (int i = 0; i < rows; i++) {
        long at = first + i * step + j * (long) Float.BYTES;
        int line = i * Panels.WIDTH;
        FloatVector x0s = FloatVector.fromArray(SPECIES, x.data, x0 + line);
        FloatVector x1s = FloatVector.fromArray(SPECIES, x.data, x1 + line);
        FloatVector x2s = FloatVector.fromArray(SPECIES, x.data, x2 + line);
        FloatVector x3s = FloatVector.fromArray(SPECIES, x.data, x3 + line);
        x0s.intoMemorySegment(y.memory, at, NATIVE);
        x1s.intoMemorySegment(y.memory, at + BYTES, NATIVE);
        x2s.intoMemorySegment(y.memory, at + 2 * BYTES, NATIVE);
        x3s.intoMemorySegment(y.memory, at + 3 * BYTES, NATIVE);
      }
    }
    for (; j < width; j += LANES) {
      int xAt = x.at(0, j);
      for (int i = 0; i < rows; i++) {
        FloatVector xs = FloatVector.fromArray(SPECIES, x.data, xAt + i * Panels.WIDTH);
        xs.intoMemorySegment(y.memory, first + i * step + j * (long) Float.BYTES, NATIVE);
      }
    }
  }

  @Override
  public void combine(
      int rows, Order order, double[] scales, Panels y, double[] factors, Panels x, Rows target) {
    int width = y.columns;
    long first = target.at(order.row(0, rows), 0);
    long step = order == Order.FORWARD ? target.distance : -target.distance;
    boolean allFit = allFit(rows, scales) && allFit(rows, factors);
    int j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) {
      int y0 = y.at(0, j);
      int y1 = y.at(0, j + LANES);
      int y2 = y.at(0, j + 2 * LANES);
      int y3 = y.at(0, j + 3 * LANES);
      int x0 = x.at(0, j);
      int x1 = x.at(0, j + LANES);
      int x2 = x.at(0, j + 2 * LANES);
      int x3 = x.at(0, j + 3 * LANES);
      for (int i = 0; i < rows; i++) {
        long at = first + i * step + j * (long) Float.BYTES;
        int line = i * Panels.WIDTH;
        FloatVector factor = FloatVector.broadcast(SPECIES, (float) factors[i]);
        FloatVector scale = FloatVector.broadcast(SPECIES, (float) scales[i]);
        FloatVector sum0 = FloatVector.fromArray(SPECIES, y.data, y0 + line);
        sum0 = factor.fma(FloatVector.fromArray(SPECIES, x.data, x0 + line), sum0);
        sum0.mul(scale).intoMemorySegment(target.memory, at, NATIVE);
        FloatVector sum1 = FloatVector.fromArray(SPECIES, y.data, y1 + line);
        sum1 = factor.fma(FloatVector.fromArray(SPECIES, x.data, x1 + line), sum1);
        sum1.mul(scale).intoMemorySegment(target.memory, at + BYTES, NATIVE);
        FloatVector sum2 = FloatVector.fromArray(SPECIES, y.data, y2 + line);
        sum2 = factor.fma(FloatVector.fromArray(SPECIES, x.data, x2 + line), sum2);
        sum2.mul(scale).intoMemorySegment(target.memory, at + 2 * BYTES, NATIVE);
        FloatVector sum3 = FloatVector.fromArray(SPECIES, y.data, y3 + line);
        sum3 = factor.fma(FloatVector.fromArray(SPECIES, x.data, x3 + line), sum3);
        sum3.mul(scale).intoMemorySegment(target.memory, at + 3 * BYTES, NATIVE);
      }
    }
    for (; j < width; j += LANES) {
      int yAt = y.at(0, j);
      int xAt = x.at(0, j);
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        FloatVector factor = FloatVector.broadcast(SPECIES, (float) factors[i]);
        FloatVector scale = FloatVector.broadcast(SPECIES, (float) scales[i]);
        FloatVector sum = FloatVector.fromArray(SPECIES, y.data, yAt + line);
        sum = factor.fma(FloatVector.fromArray(SPECIES, x.data, xAt + line), sum);
        long at = first + i * step + j * (long) Float.BYTES;
        sum.mul(scale).intoMemorySegment(target.memory, at, NATIVE);
      }
    }
    for (int i = 0; !allFit && i < rows; i++) {
      if (!fits(scales[i]) || !fits(factors[i])) {
        int row = order.row(i, rows);
        ScalarMatrixKernel.combineRow(i, scales[i], y, factors[i], x, row, target);
      }
    }
  }

  @Override
  public void combine(
      int rows,
      double[] scales,
      Panels y,
      double[] factors,
      float[] before,
      Panels added,
      float[] sum,
      Rows target) {
    int width = y.columns;
    boolean allFit = allFit(rows, scales) && allFit(rows, factors);
    int j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) {
      int y0 = y.at(0, j);
      int y1 = y.at(0, j + LANES);
      int y2 = y.at(0, j + 2 * LANES);
      int y3 = y.at(0, j + 3 * LANES);
      int added0 = added.at(0, j);
      int added1 = added.at(0, j + LANES);
      int added2 = added.at(0, j + 2 * LANES);
      int added3 = added.at(0, j + 3 * LANES);
      FloatVector start0 = FloatVector.fromArray(SPECIES, before, j);
      FloatVector start1 = FloatVector.fromArray(SPECIES, before, j + LANES);
      FloatVector start2 = FloatVector.fromArray(SPECIES, before, j + 2 * LANES);
      FloatVector start3 = FloatVector.fromArray(SPECIES, before, j + 3 * LANES);
      FloatVector all0 = FloatVector.zero(SPECIES);
      FloatVector all1 = all0;
      FloatVector all2 = all0;
      FloatVector all3 = all0;
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        long at = target.start + i * target.distance + j * (long) Float.BYTES;
        FloatVector factor = FloatVector.broadcast(SPECIES, (float) factors[i]);
        FloatVector scale = FloatVector.broadcast(SPECIES, (float) scales[i]);
        all0 = all0.add(FloatVector.fromArray(SPECIES, added.data, added0 + line));
        FloatVector y0s = FloatVector.fromArray(SPECIES, y.data, y0 + line);
        y0s = factor.fma(start0.add(all0), y0s);
        y0s.mul(scale).intoMemorySegment(target.memory, at, NATIVE);
        all1 = all1.add(FloatVector.fromArray(SPECIES, added.data, added1 + line));
        FloatVector y1s = FloatVector.fromArray(SPECIES, y.data, y1 + line);
        y1s = factor.fma(start1.add(all1), y1s);
        y1s.mul(scale).intoMemorySegment(target.memory, at + BYTES, NATIVE);
        all2 = all2.add(FloatVector.fromArray(SPECIES, added.data, added2 + line));
        FloatVector y2s = FloatVector.fromArray(SPECIES, y.data, y2 + line);
        y2s = factor.fma(start2.add(all2), y2s);
        y2s.mul(scale).intoMemorySegment(target.memory, at + 2 * BYTES, NATIVE);
        all3 = all3.add(FloatVector.fromArray(SPECIES, added.data, added3 + line));
        FloatVector y3s = FloatVector.fromArray(SPECIES, y.data, y3 + line);
        y3s = factor.fma(start3.add(all3), y3s);
        y3s.mul(scale).intoMemorySegment(target.memory, at + 3 * BYTES, NATIVE);
      }
      all0.intoArray(sum, j);
      all1.intoArray(sum, j + LANES);
      all2.intoArray(sum, j + 2 * LANES);
      all3.intoArray(sum, j + 3 * LANES);
    }
    for (; j < width; j += LANES) {
      int yAt = y.at(0, j);
      int addedAt = added.at(0, j);
      FloatVector start = FloatVector.fromArray(SPECIES, before, j);
      FloatVector all = FloatVector.zero(SPECIES);
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        all = all.add(FloatVector.fromArray(SPECIES, added.data, addedAt + line));
        FloatVector factor = FloatVector.broadcast(SPECIES, (float) factors[i]);
        FloatVector scale = FloatVector.broadcast(SPECIES, (float) scales[i]);
        FloatVector ys = FloatVector.fromArray(SPECIES, y.data, yAt + line);
        long at = target.start + i * target.distance + j * (long) Float.BYTES;
        factor.fma(start.add(all), ys).mul(scale).intoMemorySegment(target.memory, at, NATIVE);
      }
      all.intoArray(sum, j);
    }
    for (int i = 0; !allFit && i < rows; i++) {
      if (!fits(scales[i]) || !fits(factors[i])) {
        ScalarMatrixKernel.combineRow(i, scales[i], y, factors[i], before, added, target);
      }
    }
  }

  @Override
  public void combine(
      int rows,
      double[] scales,
      Panels y,
      double[] zFactors,
      float[] before,
      Panels added,
      double[] cFactors,
      float[] c,
      double[] xFactors,
      Panels x,
      Rows target) {
    int width = y.columns;
    boolean allFit =
        allFit(rows, scales)
            && allFit(rows, zFactors)
            && allFit(rows, cFactors)
            && allFit(rows, xFactors);
    int j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) {
      int y0 = y.at(0, j);
      int y1 = y.at(0, j + LANES);
      int y2 = y.at(0, j + 2 * LANES);
      int y3 = y.at(0, j + 3 * LANES);
      int added0 = added.at(0, j);
      int added1 = added.at(0, j + LANES);
      int added2 = added.at(0, j + 2 * LANES);
      int added3 = added.at(0, j + 3 * LANES);
      int x0 = x.at(0, j);
      int x1 = x.at(0, j + LANES);
      int x2 = x.at(0, j + 2 * LANES);
      int x3 = x.at(0, j + 3 * LANES);
      FloatVector start0 = FloatVector.fromArray(SPECIES, before, j);
      FloatVector start1 = FloatVector.fromArray(SPECIES, before, j + LANES);
      FloatVector start2 = FloatVector.fromArray(SPECIES, before, j + 2 * LANES);
      FloatVector start3 = FloatVector.fromArray(SPECIES, before, j + 3 * LANES);
      FloatVector all0 = FloatVector.zero(SPECIES);
      FloatVector all1 = all0;
      FloatVector all2 = all0;
      FloatVector all3 = all0;
      FloatVector c0 = FloatVector.fromArray(SPECIES, c, j);
      FloatVector c1 = FloatVector.fromArray(SPECIES, c, j + LANES);
      FloatVector c2 = FloatVector.fromArray(SPECIES, c, j + 2 * LANES);
      FloatVector c3 = FloatVector.fromArray(SPECIES, c, j + 3 * LANES);
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        long at = target.start + i * target.distance + j * (long) Float.BYTES;
        FloatVector scale = FloatVector.broadcast(SPECIES, (float) scales[i]);
        FloatVector ofZ = FloatVector.broadcast(SPECIES, (float) zFactors[i]);
        FloatVector ofC = FloatVector.broadcast(SPECIES, (float) cFactors[i]);
        FloatVector ofX = FloatVector.broadcast(SPECIES, (float) xFactors[i]);
        all0 = all0.add(FloatVector.fromArray(SPECIES, added.data, added0 + line));
        FloatVector sum0 = FloatVector.fromArray(SPECIES, y.data, y0 + line);
        sum0 = ofZ.fma(start0.add(all0), sum0);
        sum0 = ofC.fma(c0, sum0);
        sum0 = ofX.fma(FloatVector.fromArray(SPECIES, x.data, x0 + line), sum0);
        sum0.mul(scale).intoMemorySegment(target.memory, at, NATIVE);
        all1 = all1.add(FloatVector.fromArray(SPECIES, added.data, added1 + line));
        FloatVector sum1 = FloatVector.fromArray(SPECIES, y.data, y1 + line);
        sum1 = ofZ.fma(start1.add(all1), sum1);
        sum1 = ofC.fma(c1, sum1);
        sum1 = ofX.fma(FloatVector.fromArray(SPECIES, x.data, x1 + line), sum1);
        sum1.mul(scale).intoMemorySegment(target.memory, at + BYTES, NATIVE);
        all2 = all2.add(FloatVector.fromArray(SPECIES, added.data, added2 + line));
        FloatVector sum2 = FloatVector.fromArray(SPECIES, y.data, y2 + line);
        sum2 = ofZ.fma(start2.add(all2), sum2);
        sum2 = ofC.fma(c2, sum2);
        sum2 = ofX.fma(FloatVector.fromArray(SPECIES, x.data, x2 + line), sum2);
        sum2.mul(scale).intoMemorySegment(target.memory, at + 2 * BYTES, NATIVE);
        all3 = all3.add(FloatVector.fromArray(SPECIES, added.data, added3 + line));
        FloatVector sum3 = FloatVector.fromArray(SPECIES, y.data, y3 + line);
        sum3 = ofZ.fma(start3.add(all3), sum3);
        sum3 = ofC.fma(c3, sum3);
        sum3 = ofX.fma(FloatVector.fromArray(SPECIES, x.data, x3 + line), sum3);
        sum3.mul(scale).intoMemorySegment(target.memory, at + 3 * BYTES, NATIVE);
      }
    }
    for (; j < width; j += LANES) {
      int yAt = y.at(0, j);
      int addedAt = added.at(0, j);
      int xAt = x.at(0, j);
      FloatVector cs = FloatVector.fromArray(SPECIES, c, j);
      FloatVector start = FloatVector.fromArray(SPECIES, before, j);
      FloatVector all = FloatVector.zero(SPECIES);
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        all = all.add(FloatVector.fromArray(SPECIES, added.data, addedAt + line));
        FloatVector sum = FloatVector.fromArray(SPECIES, y.data, yAt + line);
        FloatVector ofZ = FloatVector.broadcast(SPECIES, (float) zFactors[i]);
        sum = ofZ.fma(start.add(all), sum);
        sum = cs.fma(FloatVector.broadcast(SPECIES, (float) cFactors[i]), sum);
        FloatVector ofX = FloatVector.broadcast(SPECIES, (float) xFactors[i]);
        sum = ofX.fma(FloatVector.fromArray(SPECIES, x.data, xAt + line), sum);
        FloatVector scale = FloatVector.broadcast(SPECIES, (float) scales[i]);
        long at = target.start + i * target.distance + j * (long) Float.BYTES;
        sum.mul(scale).intoMemorySegment(target.memory, at, NATIVE);
      }
    }
    for (int i = 0; !allFit && i < rows; i++) {
      if (!fits(scales[i]) || !fits(zFactors[i]) || !fits(cFactors[i]) || !fits(xFactors[i])) {
        ScalarMatrixKernel.combineRow(
            i, scales, y, zFactors, before, added, cFactors, c, xFactors, x, target);
      }
    }
  }

  @Override
  public void addRow(int rows, float factor, float[] row, Panels y) {
    for (int j = 0; j < y.columns; j += LANES) {
      FloatVector added = FloatVector.fromArray(SPECIES, row, j).mul(factor);
      int yAt = y.at(0, j);
      for (int i = 0; i < rows; i++) {
        int at = yAt + i * Panels.WIDTH;
        FloatVector.fromArray(SPECIES, y.data, at).add(added).intoArray(y.data, at);
      }
    }
  }

  @Override
  public void sumRows(int rows, float[] weights, Panels x, float[] sum) {
    int width = x.columns;
    int j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) { // as a sum waits for the one before
      int x0 = x.at(0, j);
      int x1 = x.at(0, j + LANES);
      int x2 = x.at(0, j + 2 * LANES);
      int x3 = x.at(0, j + 3 * LANES);
      FloatVector all0 = FloatVector.zero(SPECIES);
      FloatVector all1 = all0;
      FloatVector all2 = all0;
      FloatVector all3 = all0;
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        FloatVector weight = FloatVector.broadcast(SPECIES, weights[i]);
        all0 = weight.fma(FloatVector.fromArray(SPECIES, x.data, x0 + line), all0);
        all1 = weight.fma(FloatVector.fromArray(SPECIES, x.data, x1 + line), all1);
        all2 = weight.fma(FloatVector.fromArray(SPECIES, x.data, x2 + line), all2);
        all3 = weight.fma(FloatVector.fromArray(SPECIES, x.data, x3 + line), all3);
      }
      all0.intoArray(sum, j);
      all1.intoArray(sum, j + LANES);
      all2.intoArray(sum, j + 2 * LANES);
      all3.intoArray(sum, j + 3 * LANES);
    }
    for (; j < width; j += LANES) {
      int xAt = x.at(0, j);
      FloatVector all = FloatVector.zero(SPECIES);
      for (int i = 0; i < rows; i++) {
        FloatVector weight = FloatVector.broadcast(SPECIES, weights[i]);
        all = weight.fma(FloatVector.fromArray(SPECIES, x.data, xAt + i * Panels.WIDTH), all);
      }
      all.intoArray(sum, j);
    }
  }

  @Override
  public void accumulateRows(
      int rows, float[] weights, Panels x, float[] before, float factor, Panels y, float[] sum) {
    int width = x.columns;
    int j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) { // as a sum waits for the one before
      int x0 = x.at(0, j);
      int x1 = x.at(0, j + LANES);
      int x2 = x.at(0, j + 2 * LANES);
      int x3 = x.at(0, j + 3 * LANES);
      int y0 = y.at(0, j);
      int y1 = y.at(0, j + LANES);
      int y2 = y.at(0, j + 2 * LANES);
      int y3 = y.at(0, j + 3 * LANES);
      FloatVector start0 = FloatVector.fromArray(SPECIES, before, j);
      FloatVector start1 = FloatVector.fromArray(SPECIES, before, j + LANES);
      FloatVector start2 = FloatVector.fromArray(SPECIES, before, j + 2 * LANES);
      FloatVector start3 = FloatVector.fromArray(SPECIES, before, j + 3 * LANES);
      FloatVector all0 = FloatVector.zero(SPECIES);
      FloatVector all1 = all0;
      FloatVector all2 = all0;
      FloatVector all3 = all0;
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        FloatVector weight = FloatVector.broadcast(SPECIES, weights[i]);
        all0 = weight.fma(FloatVector.fromArray(SPECIES, x.data, x0 + line), all0);
        all1 = weight.fma(FloatVector.fromArray(SPECIES, x.data, x1 + line), all1);
        all2 = weight.fma(FloatVector.fromArray(SPECIES, x.data, x2 + line), all2);
        all3 = weight.fma(FloatVector.fromArray(SPECIES, x.data, x3 + line), all3);
        start0.add(all0).mul(factor).intoArray(y.data, y0 + line);
        start1.add(all1).mul(factor).intoArray(y.data, y1 + line);
        start2.add(all2).mul(factor).intoArray(y.data, y2 + line);
        start3.add(all3).mul(factor).intoArray(y.data, y3 + line);
      }
      all0.intoArray(sum, j);
      all1.intoArray(sum, j + LANES);
      all2.intoArray(sum, j + 2 * LANES);
      all3.intoArray(sum, j + 3 * LANES);
    }
    for (; j < width; j += LANES) {
      int xAt = x.at(0, j);
      int yAt = y.at(0, j);
      FloatVector start = FloatVector.fromArray(SPECIES, before, j);
      FloatVector all = FloatVector.zero(SPECIES);
      for (int i = 0; i < rows; i++) {
        int line = i * Panels.WIDTH;
        FloatVector weight = FloatVector.broadcast(SPECIES, weights[i]);
        all = weight.fma(FloatVector.fromArray(SPECIES, x.data, xAt + line), all);
        start.add(all).mul(factor).intoArray(y.data, yAt + line);
      }
      all.intoArray(sum, j);
    }
  }

  @Override
  public void widen(int count, MemorySegment source, long from, MemorySegment target, long to) {
    VectorConversions.widen(count, source, from, target, to);
  }

  @Override
  public void narrow(int count, MemorySegment source, long from, MemorySegment target, long to) {
    VectorConversions.narrow(count, source, from, target, to);
  }

  @Override
  public String name() {
    String prefetch = Prefetch.isAvailable() ? ", prefetch" : "";
    return "Vector API, " + SPECIES.vectorBitSize() + " bits" + prefetch;
  }
}
