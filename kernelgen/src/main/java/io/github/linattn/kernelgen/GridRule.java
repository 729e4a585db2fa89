package io.github.linattn.kernelgen;

import java.util.Locale;

/** How many blocks one launch takes; the grid is one-dimensional. */
public sealed interface GridRule {

  /** A block per tile of value columns of a head; head-major: block = head x tiles + tile. */
  record PerHead(int tiles) implements GridRule {
    public PerHead {
      requirePositive("tiles", tiles);
    }

    @Override
    public long blocks(long heads) {
      return Math.multiplyExact(heads, (long) tiles);
    }

    @Override
    public String text() {
      return String.format(Locale.ROOT, "per_head:%d", tiles);
    }
  }

  /** A block per {@code rowsPerBlock} rows. */
  record PerRows(int rowsPerBlock) implements GridRule {
    public PerRows {
      requirePositive("rows per block", rowsPerBlock);
    }

    @Override
    public long blocks(long rows) {
      return Math.ceilDiv(rows, (long) rowsPerBlock);
    }

    @Override
    public String text() {
      return String.format(Locale.ROOT, "per_rows:%d", rowsPerBlock);
    }
  }

  /**
   * Blocks of one launch.
   *
   * @param count heads (batch x heads) for {@link PerHead}, rows for {@link PerRows}; for {@link
   *     Operation#COEFFICIENT_GRADIENT} a row is a head
   */
  long blocks(long count);

  /** The form in the manifest: {@code per_head:4} or {@code per_rows:8}. */
  String text();

  /**
   * Reads what {@link #text} wrote.
   *
   * @throws IllegalArgumentException if the text has another form
   */
  static GridRule parse(String text) {
    String[] parts = text.split(":", -1);
    if (parts.length == 2) {
      if (parts[0].equals("per_head")) {
        return new PerHead(Integer.parseInt(parts[1]));
      }
      if (parts[0].equals("per_rows")) {
        return new PerRows(Integer.parseInt(parts[1]));
      }
    }
    throw new IllegalArgumentException(
        "a grid rule is per_head:<tiles> or per_rows:<rows per block>, not \"" + text + "\"");
  }

  private static void requirePositive(String what, int value) {
    if (value < 1) {
      throw new IllegalArgumentException(what + " must be >= 1: " + value);
    }
  }
}
