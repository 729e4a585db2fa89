package io.github.linattn;

/**
 * Gradients of a loss with respect to q, k, v and the coefficients. Owns its tensors if a backend
 * made them.
 */
public final class Gradients implements AutoCloseable {
  private final Tensor dq;
  private final Tensor dk;
  private final Tensor dv;
  private final Tensor da;
  private final Tensor db;
  private final boolean owner;

  private Gradients(Tensor dq, Tensor dk, Tensor dv, Tensor da, Tensor db, boolean owner) {
    this.dq = dq;
    this.dk = dk;
    this.dv = dv;
    this.da = da;
    this.db = db;
    this.owner = owner;
  }

  static Gradients owning(Tensor dq, Tensor dk, Tensor dv, Tensor da, Tensor db) {
    return new Gradients(dq, dk, dv, da, db, true);
  }

  /** Gradients to be written into the caller's tensors, which stay the caller's. */
  public static Gradients over(Tensor dq, Tensor dk, Tensor dv, Tensor da, Tensor db) {
    return new Gradients(dq, dk, dv, da, db, false);
  }

  /** Shape and type of q. */
  public Tensor dq() {
    return dq;
  }

  /** Shape and type of k; summed over the query heads that share a key/value head. */
  public Tensor dk() {
    return dk;
  }

  /** Shape and type of v; summed over the query heads that share a key/value head. */
  public Tensor dv() {
    return dv;
  }

  /** [batch, heads], fp32: gradient of the constant a, summed over tokens only. */
  public Tensor da() {
    return da;
  }

  /** [batch, heads], fp32: gradient of the slope b, summed over tokens only. */
  public Tensor db() {
    return db;
  }

  @Override
  public void close() {
    if (owner) {
      TensorGroup.closeAll(dq, dk, dv, da, db);
    }
  }
}
