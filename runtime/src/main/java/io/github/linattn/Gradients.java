package io.github.linattn;

import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * Gradients of a loss with respect to q, k, v, the coefficients and, where it is wanted, the
 * initial state. Owns its tensors if a backend made them.
 */
public final class Gradients implements AutoCloseable {
  private final Tensor dq;
  private final Tensor dk;
  private final Tensor dv;
  private final Tensor da;
  private final Tensor db;
  private final @Nullable StateGradient initialState;
  private final boolean owner;

  private Gradients(
      Tensor dq,
      Tensor dk,
      Tensor dv,
      Tensor da,
      Tensor db,
      @Nullable StateGradient initialState,
      boolean owner) {
    this.dq = dq;
    this.dk = dk;
    this.dv = dv;
    this.da = da;
    this.db = db;
    this.initialState = initialState;
    this.owner = owner;
  }

  static Gradients owning(
      Tensor dq, Tensor dk, Tensor dv, Tensor da, Tensor db, @Nullable StateGradient initialState) {
    return new Gradients(dq, dk, dv, da, db, initialState, true);
  }

  /**
   * Gradients to be written into the caller's tensors, which stay the caller's. An initial state
   * counts as constant.
   */
  public static Gradients over(Tensor dq, Tensor dk, Tensor dv, Tensor da, Tensor db) {
    return new Gradients(dq, dk, dv, da, db, null, false);
  }

  /**
   * Gradients to be written into the caller's tensors, with that of the initial state; where the
   * input has none, of the state of zeros that it starts from.
   */
  public static Gradients over(
      Tensor dq, Tensor dk, Tensor dv, Tensor da, Tensor db, StateGradient initialState) {
    return new Gradients(dq, dk, dv, da, db, Checks.present("initialState", initialState), false);
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

  /**
   * Gradient of the state that the input started from: what {@link LinearAttention#backward} gives
   * where there was one, or where the caller gave tensors for it.
   */
  public Optional<StateGradient> initialState() {
    return Optional.ofNullable(initialState);
  }

  @Override
  public void close() {
    if (!owner) {
      return;
    }
    if (initialState == null) {
      TensorGroup.closeAll(dq, dk, dv, da, db);
    } else {
      TensorGroup.closeAll(dq, dk, dv, da, db, initialState);
    }
  }
}
