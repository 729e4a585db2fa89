package io.github.linattn;

/**
 * Gradient of a loss with respect to an {@link AttentionState}: dS, dz and du, each of the shape of
 * what it belongs to, all fp32. Counts have no gradient. With normalised keys it is the gradient
 * with respect to sums over k/|k|.
 *
 * <p>A sequence cut in two has one state where it is cut: the backward of the second part gives the
 * gradient of the state that it started from, and the backward of the first part takes it as that
 * of the state where it ended.
 *
 * <p>Written by one call at a time; closing frees the tensors if a backend made them.
 */
public final class StateGradient implements AutoCloseable {
  private final Tensor ds;
  private final Tensor dz;
  private final Tensor du;
  private final boolean owner;

  private StateGradient(Tensor ds, Tensor dz, Tensor du, boolean owner) {
    this.ds = ds;
    this.dz = dz;
    this.du = du;
    this.owner = owner;
  }

  static StateGradient owning(Tensor ds, Tensor dz, Tensor du) {
    return new StateGradient(ds, dz, du, true);
  }

  /**
   * A gradient in the caller's tensors, which stay the caller's.
   *
   * @param ds [batch, keyValueHeads, sequences, keyDim, valueDim], fp32
   * @param dz [batch, keyValueHeads, sequences, keyDim], fp32
   * @param du [batch, keyValueHeads, sequences, valueDim], fp32
   * @throws IllegalArgumentException if shapes or types don't fit together
   */
  public static StateGradient over(Tensor ds, Tensor dz, Tensor du) {
    Checks.stateTensors("state gradient ", "d", ds, dz, du);
    return new StateGradient(ds, dz, du, false);
  }

  /** Gradient of S = Σ k⊗v, [batch, keyValueHeads, sequences, keyDim, valueDim]. */
  public Tensor ds() {
    return ds;
  }

  /** Gradient of z = Σ k, [batch, keyValueHeads, sequences, keyDim]. */
  public Tensor dz() {
    return dz;
  }

  /** Gradient of u = Σ v, [batch, keyValueHeads, sequences, valueDim]. */
  public Tensor du() {
    return du;
  }

  @Override
  public void close() {
    if (owner) {
      TensorGroup.closeAll(ds, dz, du);
    }
  }

  @Override
  public String toString() {
    return "state gradient dS " + ds;
  }
}
