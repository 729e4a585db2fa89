package io.github.linattn;

import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * Gradients of a loss with respect to q, k, v, the coefficients and, where it is wanted, the
 * initial state. With i over the queries and n over the tokens that query i sees:
 *
 * <pre>
 *   w_i = dO_i / g_i               e_in = w_i·v_n - w_i·o_i
 *   dq_i = b Σ_n e_in k_n          dk_n = b Σ_i e_in q_i          dv_n = Σ_i (a + b q_i·k_n) w_i
 *   da = Σ_i Σ_n e_in              db = Σ_i Σ_n e_in q_i·k_n
 * </pre>
 *
 * <p>n also stands for the tokens before, which an initial state sums up, and i for those after,
 * whose part the gradient of the final state holds. Where the operator normalises rows, q and k
 * here are the normalised ones, and dq and dk go on to the raw rows that the caller gave.
 *
 * <p>Each query has a Σ_n e_in + b Σ_n e_in q_i·k_n = 0, so that a·da + b·db = 0: o depends on a :
 * b alone. Where |b q·k| is far below |a|, o hardly depends on them and the first sum nearly
 * cancels; then da follows from db, else db from da. A GPU tells by a few tokens of each head, and
 * may have to read q and dq once more for it.
 *
 * <p>Owns its tensors if a backend made them. Written by one call at a time.
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
   *
   * @param dq of the shape and type of q, and so dk and dv
   * @param da [batch, heads], fp32, and so db
   */
  public static Gradients over(Tensor dq, Tensor dk, Tensor dv, Tensor da, Tensor db) {
    return new Gradients(dq, dk, dv, da, db, null, false);
  }

  /**
   * {@link #over(Tensor, Tensor, Tensor, Tensor, Tensor)} with that of the initial state; where the
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

  /**
   * [batch, heads], fp32: gradient of the constant a, summed over tokens only. What a batch shares
   * has the sum over batch rows as its gradient, and one a for all heads that over heads as well.
   */
  public Tensor da() {
    return da;
  }

  /** [batch, heads], fp32: gradient of the slope b, summed over tokens only, as {@link #da} is. */
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
