package io.github.linattn.kernelgen;

/**
 * What a kernel computes. In the family {@code paper} shapes are row-major and contiguous: q, k, v,
 * o and their gradients [heads, tokens, D]; g and delta [heads, tokens]. Indices: token i, columns
 * j and m.
 */
public enum Operation {
  /** o_i = (a u_i + b S_i^T q_i) / g_i, g_i = a c_i + b q_i . z_i; state in, state out. */
  FORWARD("forward", Paper.SCAN),

  /**
   * dq_i = b (S_i dO_i / g_i - delta_i z_i) with S of v - vbar, and per (head, tile) the partial
   * sums of da and db in double; in the family {@code chunked} b (S_i dO_i - delta_i z_i) / g_i
   * with delta_i = o_i . dO_i and S of v.
   */
  QUERY_GRADIENT("query_gradient", Paper.SCAN),

  /**
   * dk_p = b (R_p (v_p - vbar) - r_p) with R_p = sum over i >= p of q_i dO_i^T / g_i, r_p of
   * delta_i q_i.
   */
  KEY_GRADIENT("key_gradient", Paper.SCAN),

  /** dv_p = a y_p + b R_p^T k_p with y_p = sum over i >= p of dO_i / g_i. */
  VALUE_GRADIENT("value_gradient", Paper.SCAN),

  /** vbar: the mean of a head's first rows of v, which the gradients of q and k take from all v. */
  VALUE_CENTER("value_center", Paper.ROWS),

  /** delta_i = ((o_i - vbar) . dO_i) / g_i. */
  ROW_DOT("row_dot", Paper.ROWS),

  /** x_i / |x_i|; a zero row stays zero. */
  NORMALIZE("normalize", Paper.ROWS),

  /** dx_i = (dy_i - y_i (y_i . dy_i)) / |x_i| with y_i = x_i / |x_i|; 0 where x_i = 0; in place. */
  NORMALIZE_GRADIENT("normalize_gradient", Paper.ROWS),

  /** da and db of each head: the partial sums of its tiles, added in tile order. */
  COEFFICIENT_GRADIENT("coefficient_gradient", Paper.ROWS),

  /** The forward with rows of q and k divided by their length first. */
  NORMALIZED_FORWARD("normalized_forward", Paper.NONE),

  /** S = sum of k v^T, z and u of each item. */
  STATE_SUMS("state_sums", Paper.NONE),

  /** The sums with rows of k divided by their length first. */
  NORMALIZED_STATE_SUMS("normalized_state_sums", Paper.NONE),

  /** The sums of items to the states before them, and the final state. */
  STATE_SCAN("state_scan", Paper.NONE),

  /** o and g of each item from one state, without causality. */
  STATE_OUTPUTS("state_outputs", Paper.NONE),

  /** o, g and the state of one token. */
  DECODE("decode", Paper.NONE),

  /** The forward token by token in fp32, where another forward met what is not finite. */
  RECURRENCE("recurrence", Paper.NONE),

  /** delta_i = o_i . dO_i, 1/|q_i| and 1/|k_n|: what the gradients read of single rows. */
  GRADIENT_ROWS("gradient_rows", Paper.NONE),

  /** dk or dv from the last token on, and the gradient of the state before. */
  KEY_VALUE_GRADIENT("key_value_gradient", Paper.NONE),

  /** The sums of b q dO^T / g, -b delta q / g and a dO / g of each item. */
  GRADIENT_SUMS("gradient_sums", Paper.NONE),

  /** The gradient of rows of q over their length, of k divided likewise; the lengths are given. */
  NORMALIZED_QUERY_GRADIENT("normalized_query_gradient", Paper.NONE),

  /** The gradient of rows of k over their length, or dv, of q and k divided likewise. */
  NORMALIZED_KEY_VALUE_GRADIENT("normalized_key_value_gradient", Paper.NONE),

  /** The sums for these, with rows of q divided by their length. */
  NORMALIZED_GRADIENT_SUMS("normalized_gradient_sums", Paper.NONE),

  /**
   * dq, dk and dv from the last token on, with the state after it, of which chunk after chunk is
   * taken out; and the gradient of the state before.
   */
  ONE_SWEEP("one_sweep_gradient", Paper.NONE),

  /** dq, dk or dv of each item from one state, without causality. */
  GRADIENT_OUTPUTS("gradient_outputs", Paper.NONE),

  /** dq or dk likewise, of rows that were divided by their length; the lengths are given. */
  NORMALIZED_GRADIENT_OUTPUTS("normalized_gradient_outputs", Paper.NONE),

  /**
   * dq, dk and dv token by token in fp32, where a sweep met what is not finite; then da and db of
   * each head, the partial sums of its items and tiles.
   */
  GRADIENT_RECURRENCE("gradient_recurrence", Paper.NONE),

  /** dx from the gradient of x / |x|, in place. */
  NORMALIZE_ROWS_GRADIENT("normalize_rows_gradient", Paper.NONE);

  /** What the family {@code paper} has for it. */
  private enum Paper {
    /** No kernel. */
    NONE,
    /** A kernel that walks the tokens of a head in order. */
    SCAN,
    /** A kernel of single rows, or of their sums. */
    ROWS
  }

  private final String id;
  private final Paper paper;

  Operation(String id, Paper paper) {
    this.id = id;
    this.paper = paper;
  }

  /** The name in symbols and manifests. */
  public String id() {
    return id;
  }

  /** Whether its kernel normalises always; other kernels of the family chunked ask at run time. */
  boolean normalizes() {
    return this != plain();
  }

  /**
   * The operation of a kernel that divides rows of q and k by their length and does what this one
   * does.
   *
   * @throws IllegalArgumentException if there is none
   */
  public Operation normalized() {
    return switch (this) {
      case FORWARD -> NORMALIZED_FORWARD;
      case STATE_SUMS -> NORMALIZED_STATE_SUMS;
      case QUERY_GRADIENT -> NORMALIZED_QUERY_GRADIENT;
      case KEY_VALUE_GRADIENT -> NORMALIZED_KEY_VALUE_GRADIENT;
      case GRADIENT_SUMS -> NORMALIZED_GRADIENT_SUMS;
      case GRADIENT_OUTPUTS -> NORMALIZED_GRADIENT_OUTPUTS;
      default -> throw new IllegalArgumentException("no kernel always normalises for " + id);
    };
  }

  /** What it does once rows are divided. */
  Operation plain() {
    return switch (this) {
      case NORMALIZED_FORWARD -> FORWARD;
      case NORMALIZED_STATE_SUMS -> STATE_SUMS;
      case NORMALIZED_QUERY_GRADIENT -> QUERY_GRADIENT;
      case NORMALIZED_KEY_VALUE_GRADIENT -> KEY_VALUE_GRADIENT;
      case NORMALIZED_GRADIENT_SUMS -> GRADIENT_SUMS;
      case NORMALIZED_GRADIENT_OUTPUTS -> GRADIENT_OUTPUTS;
      default -> this;
    };
  }

  /** Whether it computes gradients of the family {@code chunked} in tiles of its tensors. */
  boolean isChunkedGradient() {
    return this == QUERY_GRADIENT
        || this == KEY_VALUE_GRADIENT
        || this == GRADIENT_SUMS
        || plain() == GRADIENT_OUTPUTS;
  }

  /** Whether its kernel is one of D: the state stays in registers across the tokens of an item. */
  boolean keepsState() {
    return this == FORWARD || this == QUERY_GRADIENT || this == KEY_VALUE_GRADIENT;
  }

  /** Whether the family {@code paper} has a kernel for it. */
  boolean isOfPaper() {
    return paper != Paper.NONE;
  }

  /** Whether that kernel walks the tokens of a head in order. */
  boolean isScan() {
    return paper == Paper.SCAN;
  }

  /**
   * The operation with this id.
   *
   * @throws IllegalArgumentException if there is none; the message lists those there are
   */
  public static Operation parse(String id) {
    return Ids.find(Operation.class, Operation::id, id);
  }
}
