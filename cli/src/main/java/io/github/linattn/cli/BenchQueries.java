package io.github.linattn.cli;

import io.github.linattn.reference.Reference;

/**
 * Sums over the queries of one head whose rows repeat after {@link BenchData#PERIOD} P, in time
 * that does not grow with D² for each of them, for a = b = 1. With i = m P + r, the prefix state at
 * i is m times that of a period, and that at r:
 *
 * <pre>
 *   q_i·z_i = m q_r·z_P + q_r·z_r      and so for q_i·(S_i dO_i) and u_i·dO_i
 * </pre>
 *
 * <p>so g_i and δ_i take six numbers for each r, and Σ q⊗dO/g one weight for each r.
 */
final class BenchQueries {
  private static final int PERIOD = BenchData.PERIOD;

  private final int keyDim;
  private final int valueDim;
  private final boolean causal;
  private final int tokens;

  /** Rows of one period, those of q divided by their length where the problem says so. */
  private final double[][] q;

  private final double[][] dO;

  private final double[] keysOfPeriod = new double[PERIOD];
  private final double[] keysBefore = new double[PERIOD];
  private final double[] matrixOfPeriod = new double[PERIOD];
  private final double[] matrixBefore = new double[PERIOD];
  private final double[] valuesOfPeriod = new double[PERIOD];
  private final double[] valuesBefore = new double[PERIOD];

  private double da;
  private double db;
  private double daSquares;
  private double dbSquares;

  /**
   * One head.
   *
   * @param q rows of one period of the head
   * @param dO as many
   */
  BenchQueries(BenchCase problem, double[][] q, double[][] dO) {
    this.keyDim = problem.shape().keyDim();
    this.valueDim = problem.shape().valueDim();
    this.causal = problem.causal();
    this.tokens = problem.shape().tokens();
    this.q = q;
    this.dO = dO;
  }

  /** Each query sees the tokens up to its own, which repeat, too. */
  void seePrefixes(double[][] k, double[][] v) {
    var sums = new Sums();
    for (int r = 0; r < PERIOD; r++) {
      sums.take(k[r], v[r]);
      keysBefore[r] = sums.alongKeys(q[r]);
      matrixBefore[r] = sums.alongBoth(q[r], dO[r]);
      valuesBefore[r] = sums.alongValues(dO[r]);
    }
    for (int r = 0; r < PERIOD; r++) {
      keysOfPeriod[r] = sums.alongKeys(q[r]);
      matrixOfPeriod[r] = sums.alongBoth(q[r], dO[r]);
      valuesOfPeriod[r] = sums.alongValues(dO[r]);
    }
  }

  /** Each query sees all tokens. */
  void seeAll(Reference.State state, int index) {
    var sums = new Sums(state, index);
    for (int r = 0; r < PERIOD; r++) {
      keysBefore[r] = sums.alongKeys(q[r]);
      matrixBefore[r] = sums.alongBoth(q[r], dO[r]);
      valuesBefore[r] = sums.alongValues(dO[r]);
    }
  }

  /**
   * Finds da and db over all queries, and adds R = Σ q⊗dO/g, −Σ δ q and Σ dO/g over queries [from,
   * to) to the gradient of the state that they see.
   *
   * @param index of the gradient's key/value head
   */
  void sum(int from, int to, Reference.StateGradient gradient, int index) {
    double[] weights = new double[PERIOD];
    double[] deltas = new double[PERIOD];
    for (int i = 0; i < tokens; i++) {
      int r = i % PERIOD;
      int m = i / PERIOD;
      double count = causal ? i + 1.0 : tokens;
      double keys = m * keysOfPeriod[r] + keysBefore[r];
      double matrix = m * matrixOfPeriod[r] + matrixBefore[r];
      double values = m * valuesOfPeriod[r] + valuesBefore[r];
      double g = count + keys;
      double delta = (values + matrix) / (g * g);
      double termOfA = values / g - delta * count;
      double termOfB = matrix / g - delta * keys;
      da += termOfA;
      db += termOfB;
      daSquares += termOfA * termOfA;
      dbSquares += termOfB * termOfB;
      if (i >= from && i < to) {
        weights[r] += 1 / g;
        deltas[r] += delta;
      }
    }
    for (int r = 0; r < PERIOD; r++) {
      for (int j = 0; j < keyDim; j++) {
        double weighted = weights[r] * q[r][j];
        int row = (index * keyDim + j) * valueDim;
        for (int c = 0; c < valueDim; c++) {
          gradient.ds()[row + c] += weighted * dO[r][c];
        }
        gradient.dz()[index * keyDim + j] -= deltas[r] * q[r][j];
      }
      for (int c = 0; c < valueDim; c++) {
        gradient.du()[index * valueDim + c] += weights[r] * dO[r][c];
      }
    }
  }

  double da() {
    return da;
  }

  double db() {
    return db;
  }

  /** As that of a {@link Reference.Result}. */
  double daSpread() {
    return Math.sqrt(daSquares);
  }

  double dbSpread() {
    return Math.sqrt(dbSquares);
  }

  /** S, z and u. */
  private final class Sums {
    private final double[] s = new double[keyDim * valueDim];
    private final double[] z = new double[keyDim];
    private final double[] u = new double[valueDim];

    Sums() {}

    Sums(Reference.State state, int index) {
      System.arraycopy(state.s(), index * s.length, s, 0, s.length);
      System.arraycopy(state.z(), index * z.length, z, 0, z.length);
      System.arraycopy(state.u(), index * u.length, u, 0, u.length);
    }

    void take(double[] k, double[] v) {
      for (int j = 0; j < keyDim; j++) {
        for (int c = 0; c < valueDim; c++) {
          s[j * valueDim + c] += k[j] * v[c];
        }
        z[j] += k[j];
      }
      for (int c = 0; c < valueDim; c++) {
        u[c] += v[c];
      }
    }

    double alongKeys(double[] query) {
      return dot(query, z);
    }

    double alongValues(double[] gradient) {
      return dot(gradient, u);
    }

    double alongBoth(double[] query, double[] gradient) {
      double sum = 0;
      for (int j = 0; j < keyDim; j++) {
        double row = 0;
        for (int c = 0; c < valueDim; c++) {
          row += s[j * valueDim + c] * gradient[c];
        }
        sum += query[j] * row;
      }
      return sum;
    }

    private static double dot(double[] x, double[] y) {
      double sum = 0;
      for (int i = 0; i < x.length; i++) {
        sum += x[i] * y[i];
      }
      return sum;
    }
  }
}
