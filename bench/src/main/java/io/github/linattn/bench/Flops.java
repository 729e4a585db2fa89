package io.github.linattn.bench;

import io.github.linattn.AttentionShape;
import org.openjdk.jmh.annotations.AuxCounters;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.State;

/**
 * Counts floating-point operations beside calls, so that JMH gives a rate of them: {@code gflop} of
 * a throughput in calls per second is GFLOP/s.
 */
@State(Scope.Thread)
@AuxCounters(AuxCounters.Type.OPERATIONS)
public class Flops {
  /** 10⁹ operations since the iteration began. */
  public double gflop;

  /** Of the product of two square matrices of this extent. */
  void addProduct(long extent) {
    gflop += 2e-9 * extent * extent * extent;
  }

  /**
   * Of a forward: each row updates a D×Dv state and reads it. What a kernel does within its chunks
   * is not counted.
   */
  void addForward(AttentionShape shape) {
    gflop += 4e-9 * stateElements(shape);
  }

  /**
   * Of a backward: the state once more, that of the gradients, and dq, dk and dv against them.
   * Chunks are not counted.
   */
  void addBackward(AttentionShape shape) {
    gflop += 10e-9 * stateElements(shape);
  }

  /** Elements of states that all rows of all query heads meet. */
  private static double stateElements(AttentionShape shape) {
    double rows = (double) shape.batch() * shape.heads() * shape.tokens();
    return rows * shape.keyDim() * shape.valueDim();
  }
}
