package io.github.linattn.internal;

import io.github.linattn.AttentionShape;
import io.github.linattn.Tensor;

/**
 * What a forward keeps on its way for its backward, which need not compute it again: states before
 * segments of the tokens, and lengths of normalised rows.
 *
 * @param memory fp32. First the states: of segments that are computed at once S, then z, then u,
 *     each [batch, keyValueHeads, segments, ...]; of a chain those of one segment after the other,
 *     from the second on, S, then z, then u, each [batch, keyValueHeads, ...]. Then 1/|q| [batch,
 *     heads, tokens] and 1/|k| [batch, keyValueHeads, tokens], where it is 0 for a row that is to
 *     be measured with care
 */
public record Checkpoints(Tensor memory, Form form) {

  /**
   * What is kept.
   *
   * @param segment tokens of a segment, of which the last one may be shorter; 0 where no states are
   *     kept
   * @param chained whether each segment starts where the one before has ended, instead of all at
   *     once from sums
   * @param lengths whether those of the rows are kept
   */
  public record Form(int segment, boolean chained, boolean lengths) {
    /** States before the segments of a sequence that are computed at once. */
    public static Form ofSegments(int segment) {
      return new Form(segment, false, false);
    }

    /** States between the segments of a chain. */
    public static Form ofChain(int segment) {
      return new Form(segment, true, false);
    }

    /** The same with lengths of rows. */
    public Form withLengths() {
      return new Form(segment, chained, true);
    }

    /** Segments of a sequence; 0 where no states are kept. */
    public int segments(AttentionShape shape) {
      return segment == 0 ? 0 : Math.ceilDiv(shape.tokens(), segment);
    }

    /** Elements of the states, behind which the lengths are. */
    public long stateElements(AttentionShape shape) {
      long heads = (long) shape.batch() * shape.keyValueHeads();
      long state = (long) shape.keyDim() * shape.valueDim() + shape.keyDim() + shape.valueDim();
      return heads * (segments(shape) - (chained ? 1 : 0)) * state;
    }

    /** Elements of the memory. */
    public long elements(AttentionShape shape) {
      return stateElements(shape) + (lengths ? rows(shape) : 0);
    }

    private static long rows(AttentionShape shape) {
      return (long) shape.batch() * (shape.heads() + shape.keyValueHeads()) * shape.tokens();
    }
  }

  /** Whether states are among it. */
  public boolean hasStates() {
    return form.segment() > 0;
  }

  /**
   * Address of the lengths of the rows of q; 0 where they are not among it.
   *
   * @param shape of the forward
   */
  public long lengthsAddress(AttentionShape shape) {
    return form.lengths()
        ? memory.segment().address() + form.stateElements(shape) * Float.BYTES
        : 0;
  }

  /**
   * Address of those of the rows of k, likewise.
   *
   * @param shape of the forward
   */
  public long keyLengthsAddress(AttentionShape shape) {
    return form.lengths() ? lengthsAddress(shape) + shape.normalizer().elements() * Float.BYTES : 0;
  }
}
