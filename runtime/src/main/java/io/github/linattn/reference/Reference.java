package io.github.linattn.reference;

import io.github.linattn.AttentionShape;
import io.github.linattn.Sequences;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Linear attention token by token in double: the recurrence S_i = S_(i-1) + k_i⊗v_i and its
 * reverse, without chunks, tiles or anything else that the engines do.
 *
 * @see <a href="https://arxiv.org/abs/2510.21956">Gerami and Duraiswami, section 3; the backward
 *     with the corrections in docs/decisions/0001-paper-family.md</a>
 */
public final class Reference {

  /**
   * A problem in row-major arrays.
   *
   * @param a one value, or one for each query head
   * @param b as long as {@code a}
   * @param q [batch, heads, tokens, keyDim], already rounded to the type under test
   * @param k [batch, keyValueHeads, tokens, keyDim]
   * @param v [batch, keyValueHeads, tokens, valueDim]
   * @param dO [batch, heads, tokens, valueDim], or null for a forward alone
   * @param initial state to start from, or null
   * @param finalState gradient of the loss with respect to the state after the last token, or null
   *     for zeros
   */
  public record Problem(
      AttentionShape shape,
      Sequences sequences,
      float[] a,
      float[] b,
      boolean causal,
      boolean normalize,
      float[] q,
      float[] k,
      float[] v,
      float @Nullable [] dO,
      @Nullable State initial,
      @Nullable StateGradient finalState) {
    /** A problem whose loss does not see the final state. */
    public Problem(
        AttentionShape shape,
        Sequences sequences,
        float[] a,
        float[] b,
        boolean causal,
        boolean normalize,
        float[] q,
        float[] k,
        float[] v,
        float @Nullable [] dO,
        @Nullable State initial) {
      this(shape, sequences, a, b, causal, normalize, q, k, v, dO, initial, null);
    }
  }

  /**
   * Sums over tokens.
   *
   * @param s [batch, keyValueHeads, sequences, keyDim, valueDim]
   * @param z [batch, keyValueHeads, sequences, keyDim]
   * @param u [batch, keyValueHeads, sequences, valueDim]
   * @param counts tokens of each sequence
   */
  public record State(double[] s, double[] z, double[] u, long[] counts) {}

  /**
   * Gradient with respect to the sums of a state, of their shapes.
   *
   * @param ds gradient of s
   * @param dz gradient of z
   * @param du gradient of u
   */
  public record StateGradient(double[] ds, double[] dz, double[] du) {}

  /**
   * Everything the operator gives; gradients are zeros where the problem has no dO.
   *
   * @param daSpread of each head, the root of the sum of the squares of the tokens' terms of da: as
   *     large as da where these don't happen to cancel
   * @param dbSpread the same of db
   * @param state after the last token
   * @param initialState gradient of the state before the first token, also where that is empty
   */
  public record Result(
      double[] o,
      double[] g,
      double[] dq,
      double[] dk,
      double[] dv,
      double[] da,
      double[] db,
      double[] daSpread,
      double[] dbSpread,
      State state,
      StateGradient initialState) {}

  private final Problem problem;
  private final AttentionShape shape;
  private final Result result;

  private Reference(Problem problem) {
    this.problem = problem;
    this.shape = problem.shape();
    int lanes = shape.batch() * shape.keyValueHeads() * problem.sequences().count();
    this.result =
        new Result(
            zeros(shape.output().elements()),
            zeros(shape.normalizer().elements()),
            zeros(shape.q().elements()),
            zeros(shape.k().elements()),
            zeros(shape.v().elements()),
            zeros(shape.coefficients().elements()),
            zeros(shape.coefficients().elements()),
            zeros(shape.coefficients().elements()),
            zeros(shape.coefficients().elements()),
            new State(
                new double[lanes * shape.keyDim() * shape.valueDim()],
                new double[lanes * shape.keyDim()],
                new double[lanes * shape.valueDim()],
                new long[problem.sequences().count()]),
            new StateGradient(
                new double[lanes * shape.keyDim() * shape.valueDim()],
                new double[lanes * shape.keyDim()],
                new double[lanes * shape.valueDim()]));
  }

  private static double[] zeros(long count) {
    return new double[Math.toIntExact(count)];
  }

  /** Solves a problem, key/value heads in parallel. */
  public static Result of(Problem problem) {
    Reference reference = new Reference(problem);
    int heads = problem.shape().batch() * problem.shape().keyValueHeads();
    IntStream.range(0, heads).parallel().forEach(reference::solveKeyValueHead);
    for (int i = 0; i < problem.sequences().count(); i++) {
      State initial = problem.initial();
      reference.result.state.counts[i] =
          problem.sequences().length(i) + (initial == null ? 0 : initial.counts[i]);
    }
    return reference.result;
  }

  private void solveKeyValueHead(int keyValueHead) {
    for (int sequence = 0; sequence < problem.sequences().count(); sequence++) {
      new Lane(keyValueHead, sequence).solve();
    }
  }

  /** One sequence of one key/value head. */
  private final class Lane {
    private final int keyValueHead;
    private final int sequence;
    private final int index;
    private final int start;
    private final int length;
    private final int d = shape.keyDim();
    private final int dv = shape.valueDim();
    private final double[][] k;
    private final double[][] v;
    private final double[] keyNorms;
    private final double[][] dk;

    Lane(int keyValueHead, int sequence) {
      this.keyValueHead = keyValueHead;
      this.sequence = sequence;
      this.index = keyValueHead * problem.sequences().count() + sequence;
      this.start = problem.sequences().start(sequence);
      this.length = problem.sequences().length(sequence);
      this.k = rows(problem.k(), keyValueHead, d);
      this.v = rows(problem.v(), keyValueHead, dv);
      this.keyNorms = normalize(k);
      this.dk = new double[length][d];
    }

    private double[][] rows(float[] tensor, int head, int width) {
      double[][] rows = new double[length][width];
      for (int i = 0; i < length; i++) {
        for (int j = 0; j < width; j++) {
          rows[i][j] = tensor[rowAt(head, i) * width + j];
        }
      }
      return rows;
    }

    private int rowAt(int head, int token) {
      return head * shape.tokens() + start + token;
    }

    private double[] normalize(double[][] rows) {
      double[] norms = new double[rows.length];
      if (problem.normalize()) {
        for (int i = 0; i < rows.length; i++) {
          norms[i] = Math.sqrt(dot(rows[i], rows[i]));
          for (int j = 0; norms[i] != 0 && j < rows[i].length; j++) {
            rows[i][j] /= norms[i];
          }
        }
      }
      return norms;
    }

    void solve() {
      Sums sums = prefix();
      for (int i = 0; i < length; i++) {
        sums.take(k[i], 1, v[i]);
      }
      sums.store(index);
      if (problem.dO() != null && problem.finalState() != null) {
        startFromFinalState(problem.finalState());
      }
      int group = shape.headsPerKeyValueHead();
      for (int member = 0; member < group; member++) {
        solveHead(keyValueHead * group + member, sums);
      }
      for (int p = 0; p < length; p++) {
        storeGradient(result.dk, keyValueHead, p, dk[p], k[p], keyNorms[p]);
      }
    }

    private Sums prefix() {
      Sums sums = new Sums(d, dv);
      State initial = problem.initial();
      if (initial != null) {
        System.arraycopy(initial.s, index * d * dv, sums.matrix, 0, d * dv);
        System.arraycopy(initial.z, index * d, sums.left, 0, d);
        System.arraycopy(initial.u, index * dv, sums.right, 0, dv);
        sums.count = initial.counts[sequence];
      }
      return sums;
    }

    /**
     * S_N = S_0 + Σ k⊗v, z_N = z_0 + Σ k and u_N = u_0 + Σ v pass their gradients on as they are.
     */
    private void startFromFinalState(StateGradient last) {
      StateGradient first = result.initialState;
      System.arraycopy(last.ds, index * d * dv, first.ds, index * d * dv, d * dv);
      System.arraycopy(last.dz, index * d, first.dz, index * d, d);
      System.arraycopy(last.du, index * dv, first.du, index * dv, dv);
      for (int p = 0; p < length; p++) {
        for (int i = 0; i < d; i++) {
          dk[p][i] += last.dz[index * d + i];
          for (int j = 0; j < dv; j++) {
            double ds = last.ds[(index * d + i) * dv + j];
            dk[p][i] += ds * v[p][j];
            result.dv[rowAt(keyValueHead, p) * dv + j] += ds * k[p][i];
          }
        }
        for (int j = 0; j < dv; j++) {
          result.dv[rowAt(keyValueHead, p) * dv + j] += last.du[index * dv + j];
        }
      }
    }

    private void solveHead(int head, Sums whole) {
      double a = coefficient(problem.a(), head);
      double b = coefficient(problem.b(), head);
      double[][] q = rows(problem.q(), head, d);
      double[] queryNorms = normalize(q);
      double[][] omega = new double[length][dv];
      double[] delta = new double[length];
      Sums sums = problem.causal() ? prefix() : whole;
      for (int i = 0; i < length; i++) {
        if (problem.causal()) {
          sums.take(k[i], 1, v[i]);
        }
        double g = a * sums.count + b * dot(q[i], sums.left);
        double[] o = sums.leftTimesMatrix(q[i]);
        for (int j = 0; j < dv; j++) {
          o[j] = (a * sums.right[j] + b * o[j]) / g;
          result.o[rowAt(head, i) * dv + j] = o[j];
        }
        result.g[rowAt(head, i)] = g;
        if (problem.dO() != null) {
          for (int j = 0; j < dv; j++) {
            omega[i][j] = problem.dO()[rowAt(head, i) * dv + j] / g;
          }
          delta[i] = dot(o, omega[i]);
          differentiateQuery(head, i, b, q[i], queryNorms[i], omega[i], delta[i], sums);
        }
      }
      if (problem.dO() != null) {
        differentiateKeysAndValues(a, b, q, omega, delta);
      }
    }

    private void differentiateQuery(
        int head,
        int i,
        double b,
        double[] q,
        double norm,
        double[] omega,
        double delta,
        Sums sums) {
      double[] dq = sums.matrixTimesRight(omega);
      for (int j = 0; j < d; j++) {
        dq[j] -= delta * sums.left[j];
      }
      double ofA = dot(omega, sums.right) - delta * sums.count;
      double ofB = dot(q, dq);
      result.da[head] += ofA;
      result.db[head] += ofB;
      result.daSpread[head] = Math.hypot(result.daSpread[head], ofA);
      result.dbSpread[head] = Math.hypot(result.dbSpread[head], ofB);
      for (int j = 0; j < d; j++) {
        dq[j] *= b;
      }
      storeGradient(result.dq, head, i, dq, q, norm);
    }

    private void differentiateKeysAndValues(
        double a, double b, double[][] q, double[][] omega, double[] delta) {
      Sums later = new Sums(d, dv); // R = Σ q⊗Ω, r = Σ δ q, y = Σ Ω over i ≥ p
      if (!problem.causal()) {
        for (int i = 0; i < length; i++) {
          later.take(q[i], delta[i], omega[i]);
        }
      }
      for (int p = length - 1; p >= 0; p--) {
        if (problem.causal()) {
          later.take(q[p], delta[p], omega[p]);
        }
        double[] alongValues = later.matrixTimesRight(v[p]);
        double[] alongKeys = later.leftTimesMatrix(k[p]);
        for (int j = 0; j < d; j++) {
          dk[p][j] += b * (alongValues[j] - later.left[j]);
        }
        for (int j = 0; j < dv; j++) {
          result.dv[rowAt(keyValueHead, p) * dv + j] += a * later.right[j] + b * alongKeys[j];
        }
      }
      addToInitialState(a, b, later);
    }

    private void addToInitialState(double a, double b, Sums queries) {
      StateGradient first = result.initialState;
      for (int i = 0; i < d * dv; i++) {
        first.ds[index * d * dv + i] += b * queries.matrix[i];
      }
      for (int i = 0; i < d; i++) {
        first.dz[index * d + i] -= b * queries.left[i];
      }
      for (int j = 0; j < dv; j++) {
        first.du[index * dv + j] += a * queries.right[j];
      }
    }

    private double coefficient(float[] values, int head) {
      return values.length == 1 ? values[0] : values[head % shape.heads()];
    }

    /** Stores a gradient of a raw row, given that of its unit row: dx = (dx̂ − x̂(x̂·dx̂))/|x|. */
    private void storeGradient(
        double[] target, int head, int token, double[] gradient, double[] row, double norm) {
      double along = problem.normalize() ? dot(row, gradient) : 0;
      for (int j = 0; j < d; j++) {
        double value = gradient[j];
        if (problem.normalize()) {
          value = norm == 0 ? 0 : (value - row[j] * along) / norm;
        }
        target[rowAt(head, token) * d + j] = value;
      }
    }
  }

  private static double dot(double[] x, double[] y) {
    double sum = 0;
    for (int i = 0; i < x.length; i++) {
      sum += x[i] * y[i];
    }
    return sum;
  }

  /** Σ left⊗right, Σ left, Σ right and how many. */
  private final class Sums {
    private final double[] matrix;
    private final double[] left;
    private final double[] right;
    private long count;

    Sums(int leftWidth, int rightWidth) {
      this.matrix = new double[leftWidth * rightWidth];
      this.left = new double[leftWidth];
      this.right = new double[rightWidth];
    }

    void take(double[] l, double leftWeight, double[] r) {
      for (int i = 0; i < left.length; i++) {
        double factor = l[i];
        for (int j = 0; j < right.length; j++) {
          matrix[i * right.length + j] += factor * r[j];
        }
        left[i] += leftWeight * l[i];
      }
      for (int j = 0; j < right.length; j++) {
        right[j] += r[j];
      }
      count++;
    }

    double[] leftTimesMatrix(double[] l) {
      double[] product = new double[right.length];
      for (int i = 0; i < left.length; i++) {
        for (int j = 0; j < right.length; j++) {
          product[j] += l[i] * matrix[i * right.length + j];
        }
      }
      return product;
    }

    double[] matrixTimesRight(double[] r) {
      double[] product = new double[left.length];
      for (int i = 0; i < left.length; i++) {
        double sum = 0;
        for (int j = 0; j < right.length; j++) {
          sum += matrix[i * right.length + j] * r[j];
        }
        product[i] = sum;
      }
      return product;
    }

    void store(int lane) {
      System.arraycopy(matrix, 0, result.state.s, lane * matrix.length, matrix.length);
      System.arraycopy(left, 0, result.state.z, lane * left.length, left.length);
      System.arraycopy(right, 0, result.state.u, lane * right.length, right.length);
    }
  }

  /**
   * Relative Frobenius error |got − expected| / |expected|. NaN if either holds one, so that a
   * comparison with a bound fails.
   */
  public static double error(double[] expected, float[] got) {
    return error(expected, got, 0);
  }

  /**
   * The same of sums that may vanish by chance: |got − expected| / max(|expected|, |terms|).
   *
   * @param terms norm of what is summed
   */
  public static double error(double[] expected, float[] got, double terms) {
    if (expected.length != got.length) {
      throw new IllegalArgumentException(
          "expected %d elements, got %d".formatted(expected.length, got.length));
    }
    double difference = 0;
    double squares = 0;
    for (int i = 0; i < expected.length; i++) {
      difference += (got[i] - expected[i]) * (got[i] - expected[i]);
      squares += expected[i] * expected[i];
    }
    double norm = Math.max(squares, terms * terms);
    if (norm == 0) {
      return Math.sqrt(difference);
    }
    return Math.sqrt(difference / norm);
  }

  /** Frobenius norm. */
  public static double norm(double[] values) {
    double squares = 0;
    for (double value : values) {
      squares += value * value;
    }
    return Math.sqrt(squares);
  }
}
