package io.github.linattn.bench;

import com.sun.management.OperatingSystemMXBean;
import io.github.linattn.AttentionShape;
import java.lang.management.ManagementFactory;
import org.openjdk.jmh.annotations.AuxCounters;
import org.openjdk.jmh.annotations.Level;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;

/**
 * Counts floating-point operations and processor time beside calls, so that JMH gives rates of
 * them: {@code gflop} of a throughput in calls per second is GFLOP/s, and {@code processors} says
 * how many processors worked for it. The quotient is what one of them does, which neighbours on the
 * same machine disturb less than the rate by the clock.
 */
@State(Scope.Thread)
@AuxCounters(AuxCounters.Type.OPERATIONS)
public class Flops {
  /** 10⁹ operations since the iteration began. */
  public double gflop;

  /** Seconds of processor time of this process since the iteration began. */
  public double processors;

  private final OperatingSystemMXBean system =
      ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class);
  private long start;

  /** Notes the processor time at the beginning of an iteration. */
  @Setup(Level.Iteration)
  public void begin() {
    start = system.getProcessCpuTime();
  }

  private void count(double operations) {
    gflop += 1e-9 * operations;
    processors = 1e-9 * (system.getProcessCpuTime() - start);
  }

  /** Of the product of two square matrices of this extent. */
  void addProduct(long extent) {
    count(2.0 * extent * extent * extent);
  }

  /** Of a forward: each row updates a D×Dv state and reads it. */
  void addForward(AttentionShape shape) {
    count(4 * stateElements(shape));
  }

  /**
   * Of a backward: the state once more, that of the gradients, and dq, dk and dv against them. A
   * second copy of a state is not counted.
   */
  void addBackward(AttentionShape shape) {
    count(10 * stateElements(shape));
  }

  /** Elements of states that all rows of all query heads meet. */
  private static double stateElements(AttentionShape shape) {
    double rows = (double) shape.batch() * shape.heads() * shape.tokens();
    return rows * shape.keyDim() * shape.valueDim();
  }
}
