package io.github.linattn;

/**
 * One problem's extents: q is [batch, heads, tokens, keyDim], k is [batch, keyValueHeads, tokens,
 * keyDim], v is [batch, keyValueHeads, tokens, valueDim]. Query head {@code h} reads key/value head
 * {@code h * keyValueHeads / heads}.
 *
 * @param batch B, number of independent rows
 * @param heads H, query heads
 * @param keyValueHeads K, a divisor of H
 * @param tokens N; packed sequences lie one after the other along it
 * @param keyDim D, a multiple of 16 from 16 to 512
 * @param valueDim Dv, a multiple of 16 from 16 to 512
 */
public record AttentionShape(
    int batch, int heads, int keyValueHeads, int tokens, int keyDim, int valueDim) {

  /** Head dimensions are multiples of this. */
  public static final int DIM_STEP = 16;

  /** Largest head dimension. */
  public static final int MAX_DIM = 512;

  /** Most heads of all batch rows, or of all packed sequences: each has several blocks of a GPU. */
  static final int MOST_HEADS = 1 << 26;

  /**
   * Checks the extents.
   *
   * @throws IllegalArgumentException if one is out of its range, keyValueHeads does not divide
   *     heads, batch times heads is above 2^26, or a tensor would have more than 2^56 elements
   */
  public AttentionShape {
    requirePositive("batch", batch);
    requirePositive("heads", heads);
    requirePositive("keyValueHeads", keyValueHeads);
    requirePositive("tokens", tokens);
    requireDim("keyDim", keyDim);
    requireDim("valueDim", valueDim);
    if (heads % keyValueHeads != 0) {
      throw new IllegalArgumentException(
          "%d query heads can't share %d key/value heads evenly: keyValueHeads must divide heads"
              .formatted(heads, keyValueHeads));
    }
    if ((long) batch * heads > MOST_HEADS) {
      throw new IllegalArgumentException(
          "batch times heads must be at most 2^26, got %d times %d".formatted(batch, heads));
    }
    if ((double) batch * heads * tokens * Math.max(keyDim, valueDim) > 0x1p56) {
      throw new IllegalArgumentException(
          "%d batch rows of %d heads and %d tokens would have more than 2^56 elements"
              .formatted(batch, heads, tokens));
    }
  }

  private static void requirePositive(String name, int value) {
    if (value < 1) {
      throw new IllegalArgumentException(name + " must be at least 1, got " + value);
    }
  }

  private static void requireDim(String name, int value) {
    if (value < DIM_STEP || value > MAX_DIM || value % DIM_STEP != 0) {
      throw new IllegalArgumentException(
          "%s must be a multiple of %d from %d to %d, got %d"
              .formatted(name, DIM_STEP, DIM_STEP, MAX_DIM, value));
    }
  }

  /** As many key/value heads as query heads, and values as wide as keys. */
  public static AttentionShape of(int batch, int heads, int tokens, int dim) {
    return new AttentionShape(batch, heads, heads, tokens, dim, dim);
  }

  /** This shape with fewer key/value heads than query heads. */
  public AttentionShape withKeyValueHeads(int count) {
    return new AttentionShape(batch, heads, count, tokens, keyDim, valueDim);
  }

  /** This shape with values of another width than keys. */
  public AttentionShape withValueDim(int dim) {
    return new AttentionShape(batch, heads, keyValueHeads, tokens, keyDim, dim);
  }

  /** [batch, heads, tokens, keyDim], also the shape of dq. */
  public TensorShape q() {
    return TensorShape.of(batch, heads, tokens, keyDim);
  }

  /** [batch, keyValueHeads, tokens, keyDim], also the shape of dk. */
  public TensorShape k() {
    return TensorShape.of(batch, keyValueHeads, tokens, keyDim);
  }

  /** [batch, keyValueHeads, tokens, valueDim], also the shape of dv. */
  public TensorShape v() {
    return TensorShape.of(batch, keyValueHeads, tokens, valueDim);
  }

  /** [batch, heads, tokens, valueDim], also the shape of dO. */
  public TensorShape output() {
    return TensorShape.of(batch, heads, tokens, valueDim);
  }

  /** [batch, heads, tokens]. */
  public TensorShape normalizer() {
    return TensorShape.of(batch, heads, tokens);
  }

  /** [batch, heads]: one gradient of a and of b for each query head and batch row. */
  public TensorShape coefficients() {
    return TensorShape.of(batch, heads);
  }

  /** Query heads that share one key/value head. */
  public int headsPerKeyValueHead() {
    return heads / keyValueHeads;
  }
}
