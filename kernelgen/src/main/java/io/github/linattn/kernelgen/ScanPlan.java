package io.github.linattn.kernelgen;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * Plan of the four scans of the paper family. A block owns one tile of value columns of one head
 * with all slices of the key dimension: thread (j, l) keeps the D/L entries of slice l of column j
 * of the D x D state.
 *
 * @param valueColumns J, columns of a tile
 * @param chunkTokens T, tokens that are in shared memory together
 * @param threads J x L, rounded up to whole warps
 * @param splitSums whether a thread keeps the sums of the chunk apart from those before it, and
 *     what rounding lost of these: costs a third of the rate, keeps the error from growing with the
 *     tokens
 * @param stateRegisters D/L, twice that with split sums
 * @param shared the shared-memory map, in the order of offsets, without gaps
 * @param sharedBytes the end of the map
 * @param gridRule heads x (D/J) blocks
 */
public record ScanPlan(
    int valueColumns,
    int chunkTokens,
    int threads,
    boolean splitSums,
    int stateRegisters,
    List<SharedRegion> shared,
    int sharedBytes,
    GridRule gridRule)
    implements ResourcePlan {

  private static final int WARP = 32;

  /** More would leave fewer than 128 registers for each; at 64, 16 of them for state spill. */
  private static final int PREFERRED_THREADS = 512;

  /** With more, a thread has fewer than the 160 registers that split sums and 32 columns take. */
  private static final int MAX_SPLIT_THREADS = 384;

  private static final int STAGES = 2;
  private static final int MOST_TOKENS = 16;
  private static final int FEWEST_TOKENS = 4;

  public ScanPlan {
    shared = List.copyOf(shared);
  }

  static ScanPlan of(int headDim, int slices) {
    int columns = valueColumns(headDim, slices);
    int threads = Math.ceilDiv(columns * slices, WARP) * WARP;
    if (threads > MAX_THREADS) {
      throw new IllegalArgumentException(
          String.format(
              Locale.ROOT,
              "a block has at most %d threads: head dimension %d with %d slices needs %d x %d",
              MAX_THREADS,
              headDim,
              slices,
              columns,
              slices));
    }
    int tokens = chunkTokens(headDim, slices, columns);
    List<SharedRegion> map = sharedMap(headDim, slices, columns, tokens);
    boolean splitSums =
        2 * headDim / slices <= KernelSpec.MAX_STATE_REGISTERS && threads <= MAX_SPLIT_THREADS;
    return new ScanPlan(
        columns,
        tokens,
        threads,
        splitSums,
        splitSums ? 2 * headDim / slices : headDim / slices,
        map,
        end(map),
        new GridRule(GridRule.Per.HEAD, headDim / columns));
  }

  /** J: a warp wide where the head dimension and the preferred number of threads allow it. */
  static int valueColumns(int headDim, int slices) {
    return headDim % WARP == 0 && WARP * slices <= PREFERRED_THREADS ? WARP : 16;
  }

  /** The most tokens that fit the default budget, else the fewest if they fit with opting in. */
  private static int chunkTokens(int headDim, int slices, int columns) {
    for (int tokens = MOST_TOKENS; tokens >= FEWEST_TOKENS; tokens /= 2) {
      if (end(sharedMap(headDim, slices, columns, tokens)) <= DEFAULT_SHARED_BYTES) {
        return tokens;
      }
    }
    int bytes = end(sharedMap(headDim, slices, columns, FEWEST_TOKENS));
    if (bytes > MAX_SHARED_BYTES) {
      throw new IllegalArgumentException(
          String.format(
              Locale.ROOT,
              "a block may use at most %d bytes of shared memory: head dimension %d with %d slices"
                  + " needs %d",
              MAX_SHARED_BYTES,
              headDim,
              slices,
              bytes));
    }
    return FEWEST_TOKENS;
  }

  private static List<SharedRegion> sharedMap(int headDim, int slices, int columns, int tokens) {
    List<SharedRegion> map = new ArrayList<>();
    for (int stage = 0; stage < STAGES; stage++) {
      String prefix = "stage " + stage + ": ";
      add(map, prefix + "query rows", tokens, headDim);
      add(map, prefix + "key rows", tokens, headDim);
      add(map, prefix + "value tile", tokens, columns);
      add(map, prefix + "g", tokens, 1);
      add(map, prefix + "delta", tokens, 1);
    }
    add(map, "row-sum products, then partial dots", tokens, Math.max(headDim, slices * columns));
    add(map, "constant term", tokens, columns);
    add(map, "row factor (g, or 1/g)", tokens, 1);
    return map;
  }

  private static void add(List<SharedRegion> map, String name, int rows, int columns) {
    String shape = String.format(Locale.ROOT, " [%d x %d]", rows, columns);
    map.add(new SharedRegion(name + shape, end(map), rows * columns * Float.BYTES));
  }

  private static int end(List<SharedRegion> map) {
    return map.isEmpty() ? 0 : map.getLast().offset() + map.getLast().bytes();
  }
}
