package io.github.linattn.internal;

import io.github.linattn.AttentionShape;
import io.github.linattn.Tensor;

/**
 * The states before the segments of a forward, from which its backward starts instead of summing
 * them again.
 *
 * @param memory fp32: S, then z, then u, each [batch, keyValueHeads, segments, ...]
 * @param segment tokens of a segment; the last one may be shorter
 */
public record Checkpoints(Tensor memory, int segment) {

  /** Segments of a sequence. */
  public static int segments(AttentionShape shape, int segment) {
    return Math.ceilDiv(shape.tokens(), segment);
  }

  /** Elements of the memory; 0 without segments. */
  public static long elements(AttentionShape shape, int segment) {
    if (segment == 0) {
      return 0;
    }
    long heads = (long) shape.batch() * shape.keyValueHeads();
    long state = (long) shape.keyDim() * shape.valueDim() + shape.keyDim() + shape.valueDim();
    return heads * segments(shape, segment) * state;
  }
}
