package io.github.linattn.kernelgen;

import java.util.Locale;

/** How many blocks one launch takes; the grid is one-dimensional. */
public sealed interface GridRule {
  /** What every GPU with clusters can run. */
  int MOST_CLUSTER_BLOCKS = 8;

  /** A block per tile of value columns of a head; head-major: block = head x tiles + tile. */
  record PerHead(int tiles) implements GridRule {
    public PerHead {
      requirePositive("tiles", tiles);
    }

    @Override
    public long blocks(long heads, int keyDim, int valueDim) {
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
    public long blocks(long rows, int keyDim, int valueDim) {
      return Math.ceilDiv(rows, (long) rowsPerBlock);
    }

    @Override
    public String text() {
      return String.format(Locale.ROOT, "per_rows:%d", rowsPerBlock);
    }
  }

  /** A block per {@code columns} value columns of each item of a head. */
  record PerValueTile(int columns) implements GridRule {
    public PerValueTile {
      requirePositive("columns", columns);
    }

    @Override
    public long blocks(long items, int keyDim, int valueDim) {
      return Math.multiplyExact(items, (long) Math.ceilDiv(valueDim, columns));
    }

    @Override
    public String text() {
      return String.format(Locale.ROOT, "per_value_tile:%d", columns);
    }
  }

  /**
   * As {@link PerValueTile}, and the blocks of an item are a cluster: they share what they read.
   */
  record PerCluster(int columns) implements GridRule {
    public PerCluster {
      requirePositive("columns", columns);
    }

    @Override
    public long blocks(long items, int keyDim, int valueDim) {
      return Math.multiplyExact(items, (long) cluster(valueDim));
    }

    @Override
    public int cluster(int valueDim) {
      return Math.ceilDiv(valueDim, columns);
    }

    @Override
    public String text() {
      return String.format(Locale.ROOT, "per_cluster:%d", columns);
    }
  }

  /**
   * As {@link PerValueTile}, or fewer blocks, which walk the tiles: for kernels that mostly find
   * nothing to do.
   */
  record WalkedTiles(int columns) implements GridRule {
    public WalkedTiles {
      requirePositive("columns", columns);
    }

    @Override
    public long blocks(long items, int keyDim, int valueDim) {
      return new PerValueTile(columns).blocks(items, keyDim, valueDim);
    }

    @Override
    public String text() {
      return String.format(Locale.ROOT, "walked_tiles:%d", columns);
    }
  }

  /**
   * A cluster per item of a head, whose blocks take tiles of {@code columns} value columns in turn;
   * one block that takes them all where there are no clusters.
   */
  record PerSharedTiles(int columns) implements GridRule {
    public PerSharedTiles {
      requirePositive("columns", columns);
    }

    @Override
    public long blocks(long items, int keyDim, int valueDim) {
      return Math.multiplyExact(items, (long) cluster(valueDim));
    }

    @Override
    public int cluster(int valueDim) {
      return Math.min(Math.ceilDiv(valueDim, columns), MOST_CLUSTER_BLOCKS);
    }

    @Override
    public GridRule withoutClusters() {
      return new PerHead(1);
    }

    @Override
    public String text() {
      return String.format(Locale.ROOT, "per_shared_tiles:%d", columns);
    }
  }

  /** A block per {@code size} x {@code size} part of the state of each item of a key/value head. */
  record PerStateTile(int size) implements GridRule {
    public PerStateTile {
      requirePositive("size", size);
    }

    @Override
    public long blocks(long items, int keyDim, int valueDim) {
      long tiles = (long) Math.ceilDiv(keyDim, size) * Math.ceilDiv(valueDim, size);
      return Math.multiplyExact(items, tiles);
    }

    @Override
    public String text() {
      return String.format(Locale.ROOT, "per_state_tile:%d", size);
    }
  }

  /** A block per {@code elements} of S, z and u of each sequence of a key/value head. */
  record PerStateElements(int elements) implements GridRule {
    public PerStateElements {
      requirePositive("elements", elements);
    }

    @Override
    public long blocks(long sequences, int keyDim, int valueDim) {
      long all = (long) keyDim * valueDim + keyDim + valueDim;
      return Math.multiplyExact(sequences, Math.ceilDiv(all, (long) elements));
    }

    @Override
    public String text() {
      return String.format(Locale.ROOT, "per_state_elements:%d", elements);
    }
  }

  /**
   * Blocks of one launch.
   *
   * @param count heads (batch x heads) for {@link PerHead}, rows for {@link PerRows}; for {@link
   *     Operation#COEFFICIENT_GRADIENT} a row is a head; for the others heads x items, or heads x
   *     sequences
   * @param keyDim Dk; the rules of the family {@code paper} do not ask
   * @param valueDim Dv
   */
  long blocks(long count, int keyDim, int valueDim);

  /** Blocks of a cluster; 1 for none. */
  default int cluster(int valueDim) {
    return 1;
  }

  /** The rule of a launch on a GPU, or with code, that has no clusters. */
  default GridRule withoutClusters() {
    return this;
  }

  /** The form in the manifest, such as {@code per_head:4}. */
  String text();

  /**
   * Reads what {@link #text} wrote.
   *
   * @throws IllegalArgumentException if the text has another form
   */
  static GridRule parse(String text) {
    String[] parts = text.split(":", -1);
    if (parts.length == 2) {
      switch (parts[0]) {
        case "per_head":
          return new PerHead(Integer.parseInt(parts[1]));
        case "per_rows":
          return new PerRows(Integer.parseInt(parts[1]));
        case "per_value_tile":
          return new PerValueTile(Integer.parseInt(parts[1]));
        case "per_cluster":
          return new PerCluster(Integer.parseInt(parts[1]));
        case "walked_tiles":
          return new WalkedTiles(Integer.parseInt(parts[1]));
        case "per_shared_tiles":
          return new PerSharedTiles(Integer.parseInt(parts[1]));
        case "per_state_tile":
          return new PerStateTile(Integer.parseInt(parts[1]));
        case "per_state_elements":
          return new PerStateElements(Integer.parseInt(parts[1]));
        default:
          break;
      }
    }
    throw new IllegalArgumentException(
        "a grid rule is <per what>:<number>, such as per_head:4 or per_value_tile:64, not \""
            + text
            + "\"");
  }

  private static void requirePositive(String what, int value) {
    if (value < 1) {
      throw new IllegalArgumentException(what + " must be >= 1: " + value);
    }
  }
}
