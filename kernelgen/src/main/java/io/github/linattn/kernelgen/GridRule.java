package io.github.linattn.kernelgen;

import java.util.Arrays;
import java.util.Locale;

/**
 * How many blocks one launch takes; the grid is one-dimensional.
 *
 * @param per what a block, or a cluster of blocks, is for
 * @param size of what a block takes, in the unit of {@code per}
 */
public record GridRule(Per per, int size) {
  /** What a block is for. */
  public enum Per {
    /** {@code size} blocks for each head; head-major: block = head x size + tile. */
    HEAD,
    /** {@code size} rows. */
    ROWS,
    /** {@code size} value columns of each item of a head. */
    VALUE_TILE,
    /**
     * As {@link #VALUE_TILE}, and pairs of blocks of an item are a cluster: they share what they
     * read.
     */
    CLUSTER,
    /** As {@link #CLUSTER}; several clusters may take turns with the chunks of an item. */
    CLUSTER_IN_TURNS,
    /**
     * As {@link #VALUE_TILE}, or fewer blocks, which walk the tiles: for kernels that mostly find
     * nothing to do.
     */
    WALKED_TILES,
    /** A part of {@code size} x {@code size} of the state of each item of a key/value head. */
    STATE_TILE,
    /** {@code size} elements of S, z and u of each sequence of a key/value head. */
    STATE_ELEMENTS
  }

  /**
   * Of this size.
   *
   * @throws IllegalArgumentException if {@code size} is below 1
   */
  public GridRule {
    if (size < 1) {
      throw new IllegalArgumentException(id(per) + " must be >= 1: " + size);
    }
  }

  /**
   * Blocks of one launch.
   *
   * @param count heads (batch x heads) for {@link Per#HEAD}, rows for {@link Per#ROWS}; for {@link
   *     Operation#COEFFICIENT_GRADIENT} a row is a head; for the others heads x items, or heads x
   *     sequences
   * @param keyDim Dk; the rules of the family {@code paper} do not ask
   * @param valueDim Dv
   */
  public long blocks(long count, int keyDim, int valueDim) {
    if (per == Per.ROWS) {
      return Math.ceilDiv(count, (long) size);
    }
    long each =
        switch (per) {
          case HEAD, ROWS -> size;
          case VALUE_TILE, WALKED_TILES, CLUSTER, CLUSTER_IN_TURNS -> Math.ceilDiv(valueDim, size);
          case STATE_TILE -> (long) Math.ceilDiv(keyDim, size) * Math.ceilDiv(valueDim, size);
          case STATE_ELEMENTS ->
              Math.ceilDiv((long) keyDim * valueDim + keyDim + valueDim, (long) size);
        };
    return Math.multiplyExact(count, each);
  }

  /**
   * Blocks of a cluster; 1 for none. No more than two: a GPU with room for 33 clusters of four,
   * counted by multiprocessors, holds fewer, because a cluster stays within a part of it.
   */
  public int cluster(int valueDim) {
    return switch (per) {
      case CLUSTER, CLUSTER_IN_TURNS -> Math.ceilDiv(valueDim, size) % 2 == 0 ? 2 : 1;
      default -> 1;
    };
  }

  /** The form in the manifest, such as {@code per_head:4}. */
  public String text() {
    return id(per) + ":" + size;
  }

  private static String id(Per per) {
    String prefix = per == Per.WALKED_TILES ? "" : "per_";
    return prefix + per.name().toLowerCase(Locale.ROOT);
  }

  /**
   * Reads what {@link #text} wrote.
   *
   * @throws IllegalArgumentException if the text has another form
   */
  static GridRule parse(String text) {
    String[] parts = text.split(":", -1);
    return Arrays.stream(Per.values())
        .filter(per -> parts.length == 2 && id(per).equals(parts[0]))
        .findFirst()
        .map(per -> new GridRule(per, Integer.parseInt(parts[1])))
        .orElseThrow(
            () ->
                new IllegalArgumentException(
                    "a grid rule is <per what>:<number>, such as per_head:4 or per_value_tile:64,"
                        + " not \""
                        + text
                        + "\""));
  }
}
