package io.github.linattn.internal.cpu;

import static io.github.linattn.internal.cpu.VectorMatrixKernel.WIDE;
import static io.github.linattn.internal.cpu.VectorRows.LANES;
import static io.github.linattn.internal.cpu.VectorRows.SECOND_HALF;
import static io.github.linattn.internal.cpu.VectorRows.SECOND_QUARTERS;
import static io.github.linattn.internal.cpu.VectorRows.SPECIES;
import static io.github.linattn.internal.cpu.VectorRows.SWAP_HALVES;
import static io.github.linattn.internal.cpu.VectorRows.SWAP_QUARTERS;

import io.github.linattn.bindings.host.HeapAddress;
import jdk.incubator.vector.FloatVector;
import jdk.incubator.vector.VectorMask;
import jdk.incubator.vector.VectorShuffle;

/**
 * The recurrence with the Vector API: sixteen vectors of S in registers for all tokens of a tile
 * (half as many where a vector has eight lanes), eight rows of two where rows of S go out alone, as
 * these load and store the columns of every token, and four rows of four where its columns do too,
 * whose lanes have to be summed.
 *
 * <p>Each method takes all indices before its vectors: behind them a call would not be inlined, and
 * save and load them all. Between blocks the rows that the sweep wants next are asked for.
 */
final class VectorRecurrence {
  /** Rows of S whose products with w are summed over lanes together. */
  private static final int GROUP = 4;

  /** Lanes of the second of every pair of eighths, and of every pair. */
  private static final VectorMask<Float> SECOND_EIGHTHS = VectorRows.everySecond(2);

  private static final VectorMask<Float> ODD = VectorRows.everySecond(1);
  private static final VectorShuffle<Float> SWAP_EIGHTHS = VectorRows.swap(2);
  private static final VectorShuffle<Float> SWAP_NEIGHBOURS = VectorRows.swap(1);

  /** From where their sums come to lie to the order of rows. */
  private static final VectorShuffle<Float> IN_ORDER =
      VectorShuffle.fromOp(SPECIES, VectorRecurrence::laneOf);

  /** Columns of {@link #parts}: a panel for each group of sixteen rows of S. */
  private static final int PARTS = Panels.WIDTH / GROUP * Panels.WIDTH;

  private final float[] block = new float[Panels.length(Tiles.CHUNK, PARTS) + Panels.WIDTH - 1];

  /** Each sum of two vectors puts lanes of its second one into the second half of a part. */
  private static int laneOf(int row) {
    int groups = LANES / GROUP;
    return row % 2 * (LANES / 2) + row / 2 % 2 * (LANES / 4) + laneOfGroup(row / GROUP, groups);
  }

  private static int laneOfGroup(int group, int groups) {
    return groups == 2 ? group : group % 2 * 2 + group / 2;
  }

  void recur(
      int rows,
      Panels left,
      Panels right,
      Panels x,
      Panels from,
      Panels into,
      Panels y,
      Upcoming upcoming) {
    int rowStep = WIDE ? 8 : 4;
    int column = 0;
    int vectors = right.columns / LANES;
    upcoming.divide(left.columns / rowStep * (vectors / 2) + left.columns / 16 * (vectors % 2));
    for (; column + 2 * LANES <= right.columns; column += 2 * LANES) {
      for (int row = 0; row < left.columns; row += rowStep) {
        upcoming.ask();
        if (WIDE) {
          recurWide(rows, left, row, right, column, x, from, into, y);
        } else {
          recurPair(rows, left, row, right, column, x, from, into, y);
        }
      }
    }
    for (; column < right.columns; column += LANES) {
      for (int row = 0; row < left.columns; row += 16) {
        upcoming.ask();
        recurStrip(rows, left, row, right, column, x, from, into, y);
      }
    }
  }

  void recurBoth(
      int rows,
      Panels left,
      Panels right,
      Panels x,
      Panels w,
      Panels matrix,
      Panels y,
      Panels z,
      Upcoming upcoming) {
    Panels parts = parts();
    int most = WIDE ? 4 : 2;
    int all = right.columns / LANES;
    int blocks = all / most + all % most / 2 + all % 2;
    upcoming.divide(left.columns / GROUP * blocks);
    for (int row = 0; row < left.columns; row += Panels.WIDTH) {
      for (int column = 0; column < right.columns; ) {
        int vectors = Math.min((right.columns - column) / LANES, most);
        for (int part = 0; part < Panels.WIDTH; part += GROUP) {
          upcoming.ask();
          int at = part / GROUP * Panels.WIDTH;
          if (vectors == 4) {
            recurBothWide(rows, left, row + part, right, column, x, w, matrix, y, parts, at);
          } else if (vectors >= 2) {
            recurBothPair(rows, left, row + part, right, column, x, w, matrix, y, parts, at);
          } else {
            recurBothStrip(rows, left, row + part, right, column, x, w, matrix, y, parts, at);
          }
        }
        addParts(rows, parts, z, row);
        column += (vectors == 3 ? 2 : vectors) * LANES;
      }
    }
  }

  /** What sixteen rows of S give z, for every token some lanes of each row. */
  private Panels parts() {
    int start = HeapAddress.elementsToBoundary(block, Panels.WIDTH);
    return new Panels(Tiles.CHUNK, PARTS, block, start);
  }

  /** Adds parts to sixteen columns of z. */
  private static void addParts(int rows, Panels parts, Panels z, int column) {
    for (int lane = 0; lane < Panels.WIDTH; lane += LANES) {
      int part = lane / GROUP * Panels.WIDTH;
      switch (LANES / GROUP) {
        case 4 -> addFourParts(rows, parts, part, z, column + lane);
        case 2 -> addTwoParts(rows, parts, part, z, column + lane);
        default -> addOnePart(rows, parts, part, z, column + lane);
      }
    }
  }

  /** Sixteen elements of S for each lane in registers: eight rows of two vectors. */
  private static void recurWide(
      int rows,
      Panels left,
      int row,
      Panels right,
      int column,
      Panels x,
      Panels from,
      Panels into,
      Panels y) {
    int from0At = from.at(row, column);
    int from1At = from.at(row, column + LANES);
    int into0At = into.at(row, column);
    int into1At = into.at(row, column + LANES);
    int leftAt = left.at(0, row);
    int xAt = x.at(0, row);
    int right0At = right.at(0, column);
    int right1At = right.at(0, column + LANES);
    int y0At = y.at(0, column);
    int y1At = y.at(0, column + LANES);
    FloatVector s00 = FloatVector.fromArray(SPECIES, from.data, from0At);
    FloatVector s01 = FloatVector.fromArray(SPECIES, from.data, from1At);
    FloatVector s10 = FloatVector.fromArray(SPECIES, from.data, from0At + Panels.WIDTH);
    FloatVector s11 = FloatVector.fromArray(SPECIES, from.data, from1At + Panels.WIDTH);
    FloatVector s20 = FloatVector.fromArray(SPECIES, from.data, from0At + 2 * Panels.WIDTH);
    FloatVector s21 = FloatVector.fromArray(SPECIES, from.data, from1At + 2 * Panels.WIDTH);
    FloatVector s30 = FloatVector.fromArray(SPECIES, from.data, from0At + 3 * Panels.WIDTH);
    FloatVector s31 = FloatVector.fromArray(SPECIES, from.data, from1At + 3 * Panels.WIDTH);
    FloatVector s40 = FloatVector.fromArray(SPECIES, from.data, from0At + 4 * Panels.WIDTH);
    FloatVector s41 = FloatVector.fromArray(SPECIES, from.data, from1At + 4 * Panels.WIDTH);
    FloatVector s50 = FloatVector.fromArray(SPECIES, from.data, from0At + 5 * Panels.WIDTH);
    FloatVector s51 = FloatVector.fromArray(SPECIES, from.data, from1At + 5 * Panels.WIDTH);
    FloatVector s60 = FloatVector.fromArray(SPECIES, from.data, from0At + 6 * Panels.WIDTH);
    FloatVector s61 = FloatVector.fromArray(SPECIES, from.data, from1At + 6 * Panels.WIDTH);
    FloatVector s70 = FloatVector.fromArray(SPECIES, from.data, from0At + 7 * Panels.WIDTH);
    FloatVector s71 = FloatVector.fromArray(SPECIES, from.data, from1At + 7 * Panels.WIDTH);
    float[] lefts = left.data;
    float[] rights = right.data;
    float[] xs = x.data;
    float[] ys = y.data;
    for (int t = 0; t < rows; t++) {
      int at = t * Panels.WIDTH;
      FloatVector right0 = FloatVector.fromArray(SPECIES, rights, right0At + at);
      FloatVector right1 = FloatVector.fromArray(SPECIES, rights, right1At + at);
      FloatVector y0 = FloatVector.fromArray(SPECIES, ys, y0At + at);
      FloatVector y1 = FloatVector.fromArray(SPECIES, ys, y1At + at);
      FloatVector factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at]);
      s00 = factor.fma(right0, s00);
      s01 = factor.fma(right1, s01);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at]);
      y0 = factor.fma(s00, y0);
      y1 = factor.fma(s01, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 1]);
      s10 = factor.fma(right0, s10);
      s11 = factor.fma(right1, s11);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 1]);
      y0 = factor.fma(s10, y0);
      y1 = factor.fma(s11, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 2]);
      s20 = factor.fma(right0, s20);
      s21 = factor.fma(right1, s21);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 2]);
      y0 = factor.fma(s20, y0);
      y1 = factor.fma(s21, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 3]);
      s30 = factor.fma(right0, s30);
      s31 = factor.fma(right1, s31);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 3]);
      y0 = factor.fma(s30, y0);
      y1 = factor.fma(s31, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 4]);
      s40 = factor.fma(right0, s40);
      s41 = factor.fma(right1, s41);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 4]);
      y0 = factor.fma(s40, y0);
      y1 = factor.fma(s41, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 5]);
      s50 = factor.fma(right0, s50);
      s51 = factor.fma(right1, s51);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 5]);
      y0 = factor.fma(s50, y0);
      y1 = factor.fma(s51, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 6]);
      s60 = factor.fma(right0, s60);
      s61 = factor.fma(right1, s61);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 6]);
      y0 = factor.fma(s60, y0);
      y1 = factor.fma(s61, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 7]);
      s70 = factor.fma(right0, s70);
      s71 = factor.fma(right1, s71);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 7]);
      y0 = factor.fma(s70, y0);
      y1 = factor.fma(s71, y1);
      y0.intoArray(ys, y0At + at);
      y1.intoArray(ys, y1At + at);
    }
    s00.intoArray(into.data, into0At);
    s01.intoArray(into.data, into1At);
    s10.intoArray(into.data, into0At + Panels.WIDTH);
    s11.intoArray(into.data, into1At + Panels.WIDTH);
    s20.intoArray(into.data, into0At + 2 * Panels.WIDTH);
    s21.intoArray(into.data, into1At + 2 * Panels.WIDTH);
    s30.intoArray(into.data, into0At + 3 * Panels.WIDTH);
    s31.intoArray(into.data, into1At + 3 * Panels.WIDTH);
    s40.intoArray(into.data, into0At + 4 * Panels.WIDTH);
    s41.intoArray(into.data, into1At + 4 * Panels.WIDTH);
    s50.intoArray(into.data, into0At + 5 * Panels.WIDTH);
    s51.intoArray(into.data, into1At + 5 * Panels.WIDTH);
    s60.intoArray(into.data, into0At + 6 * Panels.WIDTH);
    s61.intoArray(into.data, into1At + 6 * Panels.WIDTH);
    s70.intoArray(into.data, into0At + 7 * Panels.WIDTH);
    s71.intoArray(into.data, into1At + 7 * Panels.WIDTH);
  }

  /** Four rows of two vectors of S. */
  private static void recurPair(
      int rows,
      Panels left,
      int row,
      Panels right,
      int column,
      Panels x,
      Panels from,
      Panels into,
      Panels y) {
    int from0At = from.at(row, column);
    int from1At = from.at(row, column + LANES);
    int into0At = into.at(row, column);
    int into1At = into.at(row, column + LANES);
    int leftAt = left.at(0, row);
    int xAt = x.at(0, row);
    int right0At = right.at(0, column);
    int right1At = right.at(0, column + LANES);
    int y0At = y.at(0, column);
    int y1At = y.at(0, column + LANES);
    FloatVector s00 = FloatVector.fromArray(SPECIES, from.data, from0At);
    FloatVector s01 = FloatVector.fromArray(SPECIES, from.data, from1At);
    FloatVector s10 = FloatVector.fromArray(SPECIES, from.data, from0At + Panels.WIDTH);
    FloatVector s11 = FloatVector.fromArray(SPECIES, from.data, from1At + Panels.WIDTH);
    FloatVector s20 = FloatVector.fromArray(SPECIES, from.data, from0At + 2 * Panels.WIDTH);
    FloatVector s21 = FloatVector.fromArray(SPECIES, from.data, from1At + 2 * Panels.WIDTH);
    FloatVector s30 = FloatVector.fromArray(SPECIES, from.data, from0At + 3 * Panels.WIDTH);
    FloatVector s31 = FloatVector.fromArray(SPECIES, from.data, from1At + 3 * Panels.WIDTH);
    float[] lefts = left.data;
    float[] rights = right.data;
    float[] xs = x.data;
    float[] ys = y.data;
    for (int t = 0; t < rows; t++) {
      int at = t * Panels.WIDTH;
      FloatVector right0 = FloatVector.fromArray(SPECIES, rights, right0At + at);
      FloatVector right1 = FloatVector.fromArray(SPECIES, rights, right1At + at);
      FloatVector y0 = FloatVector.fromArray(SPECIES, ys, y0At + at);
      FloatVector y1 = FloatVector.fromArray(SPECIES, ys, y1At + at);
      FloatVector factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at]);
      s00 = factor.fma(right0, s00);
      s01 = factor.fma(right1, s01);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at]);
      y0 = factor.fma(s00, y0);
      y1 = factor.fma(s01, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 1]);
      s10 = factor.fma(right0, s10);
      s11 = factor.fma(right1, s11);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 1]);
      y0 = factor.fma(s10, y0);
      y1 = factor.fma(s11, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 2]);
      s20 = factor.fma(right0, s20);
      s21 = factor.fma(right1, s21);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 2]);
      y0 = factor.fma(s20, y0);
      y1 = factor.fma(s21, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 3]);
      s30 = factor.fma(right0, s30);
      s31 = factor.fma(right1, s31);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 3]);
      y0 = factor.fma(s30, y0);
      y1 = factor.fma(s31, y1);
      y0.intoArray(ys, y0At + at);
      y1.intoArray(ys, y1At + at);
    }
    s00.intoArray(into.data, into0At);
    s01.intoArray(into.data, into1At);
    s10.intoArray(into.data, into0At + Panels.WIDTH);
    s11.intoArray(into.data, into1At + Panels.WIDTH);
    s20.intoArray(into.data, into0At + 2 * Panels.WIDTH);
    s21.intoArray(into.data, into1At + 2 * Panels.WIDTH);
    s30.intoArray(into.data, into0At + 3 * Panels.WIDTH);
    s31.intoArray(into.data, into1At + 3 * Panels.WIDTH);
  }

  /** Sixteen rows of one vector of S. */
  private static void recurStrip(
      int rows,
      Panels left,
      int row,
      Panels right,
      int column,
      Panels x,
      Panels from,
      Panels into,
      Panels y) {
    int from0At = from.at(row, column);
    int into0At = into.at(row, column);
    int leftAt = left.at(0, row);
    int xAt = x.at(0, row);
    int right0At = right.at(0, column);
    int y0At = y.at(0, column);
    FloatVector s00 = FloatVector.fromArray(SPECIES, from.data, from0At);
    FloatVector s10 = FloatVector.fromArray(SPECIES, from.data, from0At + Panels.WIDTH);
    FloatVector s20 = FloatVector.fromArray(SPECIES, from.data, from0At + 2 * Panels.WIDTH);
    FloatVector s30 = FloatVector.fromArray(SPECIES, from.data, from0At + 3 * Panels.WIDTH);
    FloatVector s40 = FloatVector.fromArray(SPECIES, from.data, from0At + 4 * Panels.WIDTH);
    FloatVector s50 = FloatVector.fromArray(SPECIES, from.data, from0At + 5 * Panels.WIDTH);
    FloatVector s60 = FloatVector.fromArray(SPECIES, from.data, from0At + 6 * Panels.WIDTH);
    FloatVector s70 = FloatVector.fromArray(SPECIES, from.data, from0At + 7 * Panels.WIDTH);
    FloatVector s80 = FloatVector.fromArray(SPECIES, from.data, from0At + 8 * Panels.WIDTH);
    FloatVector s90 = FloatVector.fromArray(SPECIES, from.data, from0At + 9 * Panels.WIDTH);
    FloatVector s100 = FloatVector.fromArray(SPECIES, from.data, from0At + 10 * Panels.WIDTH);
    FloatVector s110 = FloatVector.fromArray(SPECIES, from.data, from0At + 11 * Panels.WIDTH);
    FloatVector s120 = FloatVector.fromArray(SPECIES, from.data, from0At + 12 * Panels.WIDTH);
    FloatVector s130 = FloatVector.fromArray(SPECIES, from.data, from0At + 13 * Panels.WIDTH);
    FloatVector s140 = FloatVector.fromArray(SPECIES, from.data, from0At + 14 * Panels.WIDTH);
    FloatVector s150 = FloatVector.fromArray(SPECIES, from.data, from0At + 15 * Panels.WIDTH);
    float[] lefts = left.data;
    float[] rights = right.data;
    float[] xs = x.data;
    float[] ys = y.data;
    for (int t = 0; t < rows; t++) {
      int at = t * Panels.WIDTH;
      FloatVector right0 = FloatVector.fromArray(SPECIES, rights, right0At + at);
      FloatVector y0 = FloatVector.fromArray(SPECIES, ys, y0At + at);
      FloatVector factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at]);
      s00 = factor.fma(right0, s00);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at]);
      y0 = factor.fma(s00, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 1]);
      s10 = factor.fma(right0, s10);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 1]);
      y0 = factor.fma(s10, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 2]);
      s20 = factor.fma(right0, s20);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 2]);
      y0 = factor.fma(s20, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 3]);
      s30 = factor.fma(right0, s30);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 3]);
      y0 = factor.fma(s30, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 4]);
      s40 = factor.fma(right0, s40);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 4]);
      y0 = factor.fma(s40, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 5]);
      s50 = factor.fma(right0, s50);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 5]);
      y0 = factor.fma(s50, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 6]);
      s60 = factor.fma(right0, s60);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 6]);
      y0 = factor.fma(s60, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 7]);
      s70 = factor.fma(right0, s70);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 7]);
      y0 = factor.fma(s70, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 8]);
      s80 = factor.fma(right0, s80);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 8]);
      y0 = factor.fma(s80, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 9]);
      s90 = factor.fma(right0, s90);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 9]);
      y0 = factor.fma(s90, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 10]);
      s100 = factor.fma(right0, s100);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 10]);
      y0 = factor.fma(s100, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 11]);
      s110 = factor.fma(right0, s110);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 11]);
      y0 = factor.fma(s110, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 12]);
      s120 = factor.fma(right0, s120);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 12]);
      y0 = factor.fma(s120, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 13]);
      s130 = factor.fma(right0, s130);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 13]);
      y0 = factor.fma(s130, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 14]);
      s140 = factor.fma(right0, s140);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 14]);
      y0 = factor.fma(s140, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 15]);
      s150 = factor.fma(right0, s150);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 15]);
      y0 = factor.fma(s150, y0);
      y0.intoArray(ys, y0At + at);
    }
    s00.intoArray(into.data, into0At);
    s10.intoArray(into.data, into0At + Panels.WIDTH);
    s20.intoArray(into.data, into0At + 2 * Panels.WIDTH);
    s30.intoArray(into.data, into0At + 3 * Panels.WIDTH);
    s40.intoArray(into.data, into0At + 4 * Panels.WIDTH);
    s50.intoArray(into.data, into0At + 5 * Panels.WIDTH);
    s60.intoArray(into.data, into0At + 6 * Panels.WIDTH);
    s70.intoArray(into.data, into0At + 7 * Panels.WIDTH);
    s80.intoArray(into.data, into0At + 8 * Panels.WIDTH);
    s90.intoArray(into.data, into0At + 9 * Panels.WIDTH);
    s100.intoArray(into.data, into0At + 10 * Panels.WIDTH);
    s110.intoArray(into.data, into0At + 11 * Panels.WIDTH);
    s120.intoArray(into.data, into0At + 12 * Panels.WIDTH);
    s130.intoArray(into.data, into0At + 13 * Panels.WIDTH);
    s140.intoArray(into.data, into0At + 14 * Panels.WIDTH);
    s150.intoArray(into.data, into0At + 15 * Panels.WIDTH);
  }

  /**
   * Four rows of four vectors of S; parts take what each row gives z, a quarter of the lanes each.
   */
  private static void recurBothWide(
      int rows,
      Panels left,
      int row,
      Panels right,
      int column,
      Panels x,
      Panels w,
      Panels matrix,
      Panels y,
      Panels parts,
      int part) {
    int s0At = matrix.at(row, column);
    int s1At = matrix.at(row, column + LANES);
    int s2At = matrix.at(row, column + 2 * LANES);
    int s3At = matrix.at(row, column + 3 * LANES);
    int right0At = right.at(0, column);
    int right1At = right.at(0, column + LANES);
    int right2At = right.at(0, column + 2 * LANES);
    int right3At = right.at(0, column + 3 * LANES);
    int y0At = y.at(0, column);
    int y1At = y.at(0, column + LANES);
    int y2At = y.at(0, column + 2 * LANES);
    int y3At = y.at(0, column + 3 * LANES);
    int w0At = w.at(0, column);
    int w1At = w.at(0, column + LANES);
    int w2At = w.at(0, column + 2 * LANES);
    int w3At = w.at(0, column + 3 * LANES);
    int leftAt = left.at(0, row);
    int xAt = x.at(0, row);
    int partAt = parts.at(0, part);
    FloatVector s00 = FloatVector.fromArray(SPECIES, matrix.data, s0At);
    FloatVector s01 = FloatVector.fromArray(SPECIES, matrix.data, s1At);
    FloatVector s02 = FloatVector.fromArray(SPECIES, matrix.data, s2At);
    FloatVector s03 = FloatVector.fromArray(SPECIES, matrix.data, s3At);
    FloatVector s10 = FloatVector.fromArray(SPECIES, matrix.data, s0At + Panels.WIDTH);
    FloatVector s11 = FloatVector.fromArray(SPECIES, matrix.data, s1At + Panels.WIDTH);
    FloatVector s12 = FloatVector.fromArray(SPECIES, matrix.data, s2At + Panels.WIDTH);
    FloatVector s13 = FloatVector.fromArray(SPECIES, matrix.data, s3At + Panels.WIDTH);
    FloatVector s20 = FloatVector.fromArray(SPECIES, matrix.data, s0At + 2 * Panels.WIDTH);
    FloatVector s21 = FloatVector.fromArray(SPECIES, matrix.data, s1At + 2 * Panels.WIDTH);
    FloatVector s22 = FloatVector.fromArray(SPECIES, matrix.data, s2At + 2 * Panels.WIDTH);
    FloatVector s23 = FloatVector.fromArray(SPECIES, matrix.data, s3At + 2 * Panels.WIDTH);
    FloatVector s30 = FloatVector.fromArray(SPECIES, matrix.data, s0At + 3 * Panels.WIDTH);
    FloatVector s31 = FloatVector.fromArray(SPECIES, matrix.data, s1At + 3 * Panels.WIDTH);
    FloatVector s32 = FloatVector.fromArray(SPECIES, matrix.data, s2At + 3 * Panels.WIDTH);
    FloatVector s33 = FloatVector.fromArray(SPECIES, matrix.data, s3At + 3 * Panels.WIDTH);
    float[] lefts = left.data;
    float[] rights = right.data;
    float[] xs = x.data;
    float[] ws = w.data;
    float[] ys = y.data;
    for (int t = 0; t < rows; t++) {
      int at = t * Panels.WIDTH;
      FloatVector right0 = FloatVector.fromArray(SPECIES, rights, right0At + at);
      FloatVector right1 = FloatVector.fromArray(SPECIES, rights, right1At + at);
      FloatVector right2 = FloatVector.fromArray(SPECIES, rights, right2At + at);
      FloatVector right3 = FloatVector.fromArray(SPECIES, rights, right3At + at);
      FloatVector y0 = FloatVector.fromArray(SPECIES, ys, y0At + at);
      FloatVector y1 = FloatVector.fromArray(SPECIES, ys, y1At + at);
      FloatVector y2 = FloatVector.fromArray(SPECIES, ys, y2At + at);
      FloatVector y3 = FloatVector.fromArray(SPECIES, ys, y3At + at);
      FloatVector w0 = FloatVector.fromArray(SPECIES, ws, w0At + at);
      FloatVector w1 = FloatVector.fromArray(SPECIES, ws, w1At + at);
      FloatVector w2 = FloatVector.fromArray(SPECIES, ws, w2At + at);
      FloatVector w3 = FloatVector.fromArray(SPECIES, ws, w3At + at);
      FloatVector factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at]);
      s00 = factor.fma(right0, s00);
      s01 = factor.fma(right1, s01);
      s02 = factor.fma(right2, s02);
      s03 = factor.fma(right3, s03);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at]);
      y0 = factor.fma(s00, y0);
      y1 = factor.fma(s01, y1);
      y2 = factor.fma(s02, y2);
      y3 = factor.fma(s03, y3);
      FloatVector z0 = s00.mul(w0);
      z0 = s01.fma(w1, z0);
      z0 = s02.fma(w2, z0);
      z0 = s03.fma(w3, z0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 1]);
      s10 = factor.fma(right0, s10);
      s11 = factor.fma(right1, s11);
      s12 = factor.fma(right2, s12);
      s13 = factor.fma(right3, s13);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 1]);
      y0 = factor.fma(s10, y0);
      y1 = factor.fma(s11, y1);
      y2 = factor.fma(s12, y2);
      y3 = factor.fma(s13, y3);
      FloatVector z1 = s10.mul(w0);
      z1 = s11.fma(w1, z1);
      z1 = s12.fma(w2, z1);
      z1 = s13.fma(w3, z1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 2]);
      s20 = factor.fma(right0, s20);
      s21 = factor.fma(right1, s21);
      s22 = factor.fma(right2, s22);
      s23 = factor.fma(right3, s23);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 2]);
      y0 = factor.fma(s20, y0);
      y1 = factor.fma(s21, y1);
      y2 = factor.fma(s22, y2);
      y3 = factor.fma(s23, y3);
      FloatVector z2 = s20.mul(w0);
      z2 = s21.fma(w1, z2);
      z2 = s22.fma(w2, z2);
      z2 = s23.fma(w3, z2);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 3]);
      s30 = factor.fma(right0, s30);
      s31 = factor.fma(right1, s31);
      s32 = factor.fma(right2, s32);
      s33 = factor.fma(right3, s33);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 3]);
      y0 = factor.fma(s30, y0);
      y1 = factor.fma(s31, y1);
      y2 = factor.fma(s32, y2);
      y3 = factor.fma(s33, y3);
      FloatVector z3 = s30.mul(w0);
      z3 = s31.fma(w1, z3);
      z3 = s32.fma(w2, z3);
      z3 = s33.fma(w3, z3);
      y0.intoArray(ys, y0At + at);
      y1.intoArray(ys, y1At + at);
      y2.intoArray(ys, y2At + at);
      y3.intoArray(ys, y3At + at);
      FloatVector z01 =
          z0.blend(z1, SECOND_HALF).add(z1.blend(z0, SECOND_HALF).rearrange(SWAP_HALVES));
      FloatVector z23 =
          z2.blend(z3, SECOND_HALF).add(z3.blend(z2, SECOND_HALF).rearrange(SWAP_HALVES));
      z01.blend(z23, SECOND_QUARTERS)
          .add(z23.blend(z01, SECOND_QUARTERS).rearrange(SWAP_QUARTERS))
          .intoArray(parts.data, partAt + at);
    }
    s00.intoArray(matrix.data, s0At);
    s01.intoArray(matrix.data, s1At);
    s02.intoArray(matrix.data, s2At);
    s03.intoArray(matrix.data, s3At);
    s10.intoArray(matrix.data, s0At + Panels.WIDTH);
    s11.intoArray(matrix.data, s1At + Panels.WIDTH);
    s12.intoArray(matrix.data, s2At + Panels.WIDTH);
    s13.intoArray(matrix.data, s3At + Panels.WIDTH);
    s20.intoArray(matrix.data, s0At + 2 * Panels.WIDTH);
    s21.intoArray(matrix.data, s1At + 2 * Panels.WIDTH);
    s22.intoArray(matrix.data, s2At + 2 * Panels.WIDTH);
    s23.intoArray(matrix.data, s3At + 2 * Panels.WIDTH);
    s30.intoArray(matrix.data, s0At + 3 * Panels.WIDTH);
    s31.intoArray(matrix.data, s1At + 3 * Panels.WIDTH);
    s32.intoArray(matrix.data, s2At + 3 * Panels.WIDTH);
    s33.intoArray(matrix.data, s3At + 3 * Panels.WIDTH);
  }

  /** Four rows of two vectors. */
  private static void recurBothPair(
      int rows,
      Panels left,
      int row,
      Panels right,
      int column,
      Panels x,
      Panels w,
      Panels matrix,
      Panels y,
      Panels parts,
      int part) {
    int s0At = matrix.at(row, column);
    int s1At = matrix.at(row, column + LANES);
    int right0At = right.at(0, column);
    int right1At = right.at(0, column + LANES);
    int y0At = y.at(0, column);
    int y1At = y.at(0, column + LANES);
    int w0At = w.at(0, column);
    int w1At = w.at(0, column + LANES);
    int leftAt = left.at(0, row);
    int xAt = x.at(0, row);
    int partAt = parts.at(0, part);
    FloatVector s00 = FloatVector.fromArray(SPECIES, matrix.data, s0At);
    FloatVector s01 = FloatVector.fromArray(SPECIES, matrix.data, s1At);
    FloatVector s10 = FloatVector.fromArray(SPECIES, matrix.data, s0At + Panels.WIDTH);
    FloatVector s11 = FloatVector.fromArray(SPECIES, matrix.data, s1At + Panels.WIDTH);
    FloatVector s20 = FloatVector.fromArray(SPECIES, matrix.data, s0At + 2 * Panels.WIDTH);
    FloatVector s21 = FloatVector.fromArray(SPECIES, matrix.data, s1At + 2 * Panels.WIDTH);
    FloatVector s30 = FloatVector.fromArray(SPECIES, matrix.data, s0At + 3 * Panels.WIDTH);
    FloatVector s31 = FloatVector.fromArray(SPECIES, matrix.data, s1At + 3 * Panels.WIDTH);
    float[] lefts = left.data;
    float[] rights = right.data;
    float[] xs = x.data;
    float[] ws = w.data;
    float[] ys = y.data;
    for (int t = 0; t < rows; t++) {
      int at = t * Panels.WIDTH;
      FloatVector right0 = FloatVector.fromArray(SPECIES, rights, right0At + at);
      FloatVector right1 = FloatVector.fromArray(SPECIES, rights, right1At + at);
      FloatVector y0 = FloatVector.fromArray(SPECIES, ys, y0At + at);
      FloatVector y1 = FloatVector.fromArray(SPECIES, ys, y1At + at);
      FloatVector w0 = FloatVector.fromArray(SPECIES, ws, w0At + at);
      FloatVector w1 = FloatVector.fromArray(SPECIES, ws, w1At + at);
      FloatVector factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at]);
      s00 = factor.fma(right0, s00);
      s01 = factor.fma(right1, s01);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at]);
      y0 = factor.fma(s00, y0);
      y1 = factor.fma(s01, y1);
      FloatVector z0 = s00.mul(w0);
      z0 = s01.fma(w1, z0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 1]);
      s10 = factor.fma(right0, s10);
      s11 = factor.fma(right1, s11);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 1]);
      y0 = factor.fma(s10, y0);
      y1 = factor.fma(s11, y1);
      FloatVector z1 = s10.mul(w0);
      z1 = s11.fma(w1, z1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 2]);
      s20 = factor.fma(right0, s20);
      s21 = factor.fma(right1, s21);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 2]);
      y0 = factor.fma(s20, y0);
      y1 = factor.fma(s21, y1);
      FloatVector z2 = s20.mul(w0);
      z2 = s21.fma(w1, z2);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 3]);
      s30 = factor.fma(right0, s30);
      s31 = factor.fma(right1, s31);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 3]);
      y0 = factor.fma(s30, y0);
      y1 = factor.fma(s31, y1);
      FloatVector z3 = s30.mul(w0);
      z3 = s31.fma(w1, z3);
      y0.intoArray(ys, y0At + at);
      y1.intoArray(ys, y1At + at);
      FloatVector z01 =
          z0.blend(z1, SECOND_HALF).add(z1.blend(z0, SECOND_HALF).rearrange(SWAP_HALVES));
      FloatVector z23 =
          z2.blend(z3, SECOND_HALF).add(z3.blend(z2, SECOND_HALF).rearrange(SWAP_HALVES));
      z01.blend(z23, SECOND_QUARTERS)
          .add(z23.blend(z01, SECOND_QUARTERS).rearrange(SWAP_QUARTERS))
          .intoArray(parts.data, partAt + at);
    }
    s00.intoArray(matrix.data, s0At);
    s01.intoArray(matrix.data, s1At);
    s10.intoArray(matrix.data, s0At + Panels.WIDTH);
    s11.intoArray(matrix.data, s1At + Panels.WIDTH);
    s20.intoArray(matrix.data, s0At + 2 * Panels.WIDTH);
    s21.intoArray(matrix.data, s1At + 2 * Panels.WIDTH);
    s30.intoArray(matrix.data, s0At + 3 * Panels.WIDTH);
    s31.intoArray(matrix.data, s1At + 3 * Panels.WIDTH);
  }

  /** Four rows of one vector. */
  private static void recurBothStrip(
      int rows,
      Panels left,
      int row,
      Panels right,
      int column,
      Panels x,
      Panels w,
      Panels matrix,
      Panels y,
      Panels parts,
      int part) {
    int s0At = matrix.at(row, column);
    int right0At = right.at(0, column);
    int y0At = y.at(0, column);
    int w0At = w.at(0, column);
    int leftAt = left.at(0, row);
    int xAt = x.at(0, row);
    int partAt = parts.at(0, part);
    FloatVector s00 = FloatVector.fromArray(SPECIES, matrix.data, s0At);
    FloatVector s10 = FloatVector.fromArray(SPECIES, matrix.data, s0At + Panels.WIDTH);
    FloatVector s20 = FloatVector.fromArray(SPECIES, matrix.data, s0At + 2 * Panels.WIDTH);
    FloatVector s30 = FloatVector.fromArray(SPECIES, matrix.data, s0At + 3 * Panels.WIDTH);
    float[] lefts = left.data;
    float[] rights = right.data;
    float[] xs = x.data;
    float[] ws = w.data;
    float[] ys = y.data;
    for (int t = 0; t < rows; t++) {
      int at = t * Panels.WIDTH;
      FloatVector right0 = FloatVector.fromArray(SPECIES, rights, right0At + at);
      FloatVector y0 = FloatVector.fromArray(SPECIES, ys, y0At + at);
      FloatVector w0 = FloatVector.fromArray(SPECIES, ws, w0At + at);
      FloatVector factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at]);
      s00 = factor.fma(right0, s00);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at]);
      y0 = factor.fma(s00, y0);
      FloatVector z0 = s00.mul(w0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 1]);
      s10 = factor.fma(right0, s10);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 1]);
      y0 = factor.fma(s10, y0);
      FloatVector z1 = s10.mul(w0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 2]);
      s20 = factor.fma(right0, s20);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 2]);
      y0 = factor.fma(s20, y0);
      FloatVector z2 = s20.mul(w0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 3]);
      s30 = factor.fma(right0, s30);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 3]);
      y0 = factor.fma(s30, y0);
      FloatVector z3 = s30.mul(w0);
      y0.intoArray(ys, y0At + at);
      FloatVector z01 =
          z0.blend(z1, SECOND_HALF).add(z1.blend(z0, SECOND_HALF).rearrange(SWAP_HALVES));
      FloatVector z23 =
          z2.blend(z3, SECOND_HALF).add(z3.blend(z2, SECOND_HALF).rearrange(SWAP_HALVES));
      z01.blend(z23, SECOND_QUARTERS)
          .add(z23.blend(z01, SECOND_QUARTERS).rearrange(SWAP_QUARTERS))
          .intoArray(parts.data, partAt + at);
    }
    s00.intoArray(matrix.data, s0At);
    s10.intoArray(matrix.data, s0At + Panels.WIDTH);
    s20.intoArray(matrix.data, s0At + 2 * Panels.WIDTH);
    s30.intoArray(matrix.data, s0At + 3 * Panels.WIDTH);
  }

  /** Adds sums over four lanes of each row of four groups. */
  private static void addFourParts(int rows, Panels parts, int part, Panels z, int column) {
    int part0At = parts.at(0, part);
    int part1At = parts.at(0, part + Panels.WIDTH);
    int part2At = parts.at(0, part + 2 * Panels.WIDTH);
    int part3At = parts.at(0, part + 3 * Panels.WIDTH);
    int zAt = z.at(0, column);
    float[] from = parts.data;
    float[] zs = z.data;
    for (int t = 0; t < rows; t++) {
      int at = t * Panels.WIDTH;
      FloatVector a = FloatVector.fromArray(SPECIES, from, part0At + at);
      FloatVector b = FloatVector.fromArray(SPECIES, from, part1At + at);
      FloatVector c = FloatVector.fromArray(SPECIES, from, part2At + at);
      FloatVector d = FloatVector.fromArray(SPECIES, from, part3At + at);
      FloatVector ab =
          a.blend(b, SECOND_EIGHTHS).add(b.blend(a, SECOND_EIGHTHS).rearrange(SWAP_EIGHTHS));
      FloatVector cd =
          c.blend(d, SECOND_EIGHTHS).add(d.blend(c, SECOND_EIGHTHS).rearrange(SWAP_EIGHTHS));
      FloatVector sum = ab.blend(cd, ODD).add(cd.blend(ab, ODD).rearrange(SWAP_NEIGHBOURS));
      sum.rearrange(IN_ORDER)
          .add(FloatVector.fromArray(SPECIES, zs, zAt + at))
          .intoArray(zs, zAt + at);
    }
  }

  /** Over two lanes of each row of two groups. */
  private static void addTwoParts(int rows, Panels parts, int part, Panels z, int column) {
    int part0At = parts.at(0, part);
    int part1At = parts.at(0, part + Panels.WIDTH);
    int zAt = z.at(0, column);
    float[] from = parts.data;
    float[] zs = z.data;
    for (int t = 0; t < rows; t++) {
      int at = t * Panels.WIDTH;
      FloatVector a = FloatVector.fromArray(SPECIES, from, part0At + at);
      FloatVector b = FloatVector.fromArray(SPECIES, from, part1At + at);
      FloatVector sum = a.blend(b, ODD).add(b.blend(a, ODD).rearrange(SWAP_NEIGHBOURS));
      sum.rearrange(IN_ORDER)
          .add(FloatVector.fromArray(SPECIES, zs, zAt + at))
          .intoArray(zs, zAt + at);
    }
  }

  /** One lane of each row of a group. */
  private static void addOnePart(int rows, Panels parts, int part, Panels z, int column) {
    int partAt = parts.at(0, part);
    int zAt = z.at(0, column);
    for (int t = 0; t < rows; t++) {
      int at = t * Panels.WIDTH;
      FloatVector sum = FloatVector.fromArray(SPECIES, parts.data, partAt + at);
      sum.rearrange(IN_ORDER)
          .add(FloatVector.fromArray(SPECIES, z.data, zAt + at))
          .intoArray(z.data, zAt + at);
    }
  }
}
