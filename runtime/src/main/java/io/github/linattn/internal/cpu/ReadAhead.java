package io.github.linattn.internal.cpu;

/**
 * Brings the rows of several chunks into the cache at once: memory is fast in long runs, and the
 * start of each is waited for. One sweep's own.
 */
final class ReadAhead {
  /** Bytes of a run over all tensors, about half of a second-level cache. */
  private static final int BYTES = 1 << 19;

  /** All rows that a sweep reads or writes. */
  interface Rows {
    /** Touches tokens [start, end) and returns what {@link TensorRows#touch} does. */
    int touch(int start, int end);
  }

  private final Rows rows;
  private final Segments.Segment segment;
  private final int run;
  private int start;
  private int end;
  private int touched;

  /**
   * @param tokenBytes bytes of a token in all these rows
   */
  ReadAhead(Segments.Segment segment, long tokenBytes, Rows rows) {
    this.rows = rows;
    this.segment = segment;
    this.run = (int) Math.max(Tiles.CHUNK, BYTES / tokenBytes);
    this.start = segment.end();
    this.end = segment.start();
  }

  /** Before tokens [from, to) of a sweep in token order. */
  void forward(int from, int to) {
    if (to > end) {
      end = Math.min(from + run, segment.end());
      touched += rows.touch(from, end);
    }
  }

  /** Before tokens [from, to) of a sweep against it. */
  void backward(int from, int to) {
    if (from < start) {
      start = Math.max(to - run, segment.start());
      touched += rows.touch(start, to);
    }
  }
}
