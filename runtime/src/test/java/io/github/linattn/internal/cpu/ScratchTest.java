package io.github.linattn.internal.cpu;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Breaks when matrices of one task share an element, or one shares its own. */
final class ScratchTest {
  private static final int[][] EXTENTS = {{64, 16}, {64, 80}, {80, 48}, {16, 16}, {64, 128}};

  @Test
  void matricesOfOneTaskShareNothing() {
    Scratch scratch = new Scratch();
    for (int task = 0; task < 3; task++) {
      scratch.clear();
      List<Panels> all = new ArrayList<>();
      for (int[] extent : EXTENTS) {
        all.add(scratch.panels(extent[0], extent[1]));
      }
      for (int k = 0; k < all.size(); k++) {
        fill(all.get(k), k);
      }
      for (int k = 0; k < all.size(); k++) {
        assertFilled(all.get(k), k);
      }
    }
  }

  @Test
  void theSecondTaskFindsTheFirstOnesMemory() {
    Scratch scratch = new Scratch();
    for (int task = 0; task < 2; task++) {
      scratch.clear();
      scratch.panels(64, 64);
      scratch.panels(64, 32);
    }
    scratch.clear();
    assertThat(scratch.panels(64, 64).data).isSameAs(scratch.panels(64, 32).data);
  }

  @Test
  void clearsItselfAlone() {
    Scratch scratch = new Scratch();
    scratch.clear();
    scratch.panels(64, 64);
    scratch.panels(64, 64);
    scratch.clear();
    Panels first = scratch.panels(64, 64);
    Panels second = scratch.panels(64, 64);
    fill(first, 1);
    fill(second, 2);
    first.clear();
    assertFilled(second, 2);
    float[] row = new float[64];
    first.getRow(63, row);
    assertThat(row).containsOnly(0);
  }

  @Test
  void transposes() {
    Panels from = new Panels(32, 48);
    fill(from, 3);
    Panels to = new Panels(48, 32);
    to.setTransposed(from);
    for (int i = 0; i < 32; i++) {
      for (int j = 0; j < 48; j++) {
        assertThat(to.data[to.at(j, i)]).isEqualTo(value(3, i, j));
      }
    }
  }

  private static float value(int k, int row, int column) {
    return (k * 1000 + row) * 1000 + column;
  }

  private static void fill(Panels panels, int k) {
    for (int i = 0; i < panels.rows; i++) {
      float[] row = new float[panels.columns];
      for (int j = 0; j < row.length; j++) {
        row[j] = value(k, i, j);
      }
      panels.setRow(i, row);
    }
  }

  private static void assertFilled(Panels panels, int k) {
    for (int i = 0; i < panels.rows; i++) {
      float[] row = new float[panels.columns];
      Arrays.fill(row, -1);
      panels.getRow(i, row);
      for (int j = 0; j < row.length; j++) {
        assertThat(row[j]).isEqualTo(value(k, i, j));
        assertThat(panels.data[panels.at(i, j)]).isEqualTo(row[j]);
      }
    }
  }
}
