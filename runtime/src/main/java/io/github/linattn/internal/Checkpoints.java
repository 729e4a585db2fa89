package io.github.linattn.internal;

import io.github.linattn.AttentionShape;
import io.github.linattn.Tensor;

/**
 * The states before the segments of a forward, from which its backward starts instead of summing
 * them again.
 *
 * @param memory fp32. Of segments that are computed at once S, then z, then u, each [batch,
 *     keyValueHeads, segments, ...]; of a chain those of one segment after the other, from the
 *     second on, S, then z, then u, each [batch, keyValueHeads, ...]
 */
public record Checkpoints(Tensor memory, Form form) {

  /**
   * How a sequence is cut.
   *
   * @param segment tokens of a segment; the last one may be shorter
   * @param chained whether each segment starts where the one before has ended, instead of all at
   *     once from sums
   */
  public record Form(int segment, boolean chained) {
    /** Segments of a sequence. */
    public int segments(AttentionShape shape) {
      return Math.ceilDiv(shape.tokens(), segment);
    }

    /** Elements of the memory. */
    public long elements(AttentionShape shape) {
      long heads = (long) shape.batch() * shape.keyValueHeads();
      long state = (long) shape.keyDim() * shape.valueDim() + shape.keyDim() + shape.valueDim();
      return heads * (segments(shape) - (chained ? 1 : 0)) * state;
    }
  }
}
