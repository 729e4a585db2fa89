package io.github.linattn.internal.cpu;

import java.util.Arrays;

/** Plain loops, for a JVM without the Vector API. */
final class ScalarMatrixKernel implements MatrixKernel {

  @Override
  public void multiply(
      int m,
      int n,
      int k,
      float[] a,
      int aRow,
      int aColumn,
      float[] b,
      int bRow,
      float[] c,
      int cRow,
      boolean add) {
    float[] sums = new float[n];
    for (int i = 0; i < m; i++) {
      Arrays.fill(sums, 0);
      for (int p = 0; p < k; p++) {
        float factor = a[i * aRow + p * aColumn];
        for (int j = 0; j < n; j++) {
          sums[j] += factor * b[p * bRow + j];
        }
      }
      for (int j = 0; j < n; j++) {
        c[i * cRow + j] = add ? c[i * cRow + j] + sums[j] : sums[j];
      }
    }
  }

  @Override
  public float dot(int n, float[] a, int aStart, float[] b) {
    float[] lanes = new float[COLUMN_STEP];
    for (int p = 0; p < n; p += COLUMN_STEP) {
      for (int lane = 0; lane < COLUMN_STEP; lane++) {
        lanes[lane] += a[aStart + p + lane] * b[p + lane];
      }
    }
    float sum = 0;
    for (float lane : lanes) {
      sum += lane;
    }
    return sum;
  }

  @Override
  public String name() {
    return "scalar";
  }
}
