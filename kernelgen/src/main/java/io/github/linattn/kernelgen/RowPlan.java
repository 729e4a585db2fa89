package io.github.linattn.kernelgen;

/**
 * Plan of the kernels whose rows are independent: a group of lanes of one warp per row, 16 bytes
 * per lane and step, no shared memory. {@link Operation#COEFFICIENT_GRADIENT} takes one thread per
 * head.
 *
 * @param lanesPerRow the largest power of two up to 32 that divides D/4; 1 for the coefficients
 * @param tiles partial sums per head that {@link Operation#COEFFICIENT_GRADIENT} adds; 1 otherwise
 * @param gridRule rows per block = threads / lanesPerRow
 */
public record RowPlan(int lanesPerRow, int tiles, GridRule gridRule) implements ResourcePlan {

  private static final int THREADS = 256;
  private static final int WARP = 32;
  private static final int VECTOR = 4;

  static RowPlan of(Operation operation, int headDim, int slices) {
    boolean coefficients = operation == Operation.COEFFICIENT_GRADIENT;
    int lanes = coefficients ? 1 : Math.min(WARP, Integer.lowestOneBit(headDim / VECTOR));
    int tiles = coefficients ? headDim / ScanPlan.valueColumns(headDim, slices) : 1;
    return new RowPlan(lanes, tiles, new GridRule(GridRule.Per.ROWS, THREADS / lanes));
  }

  @Override
  public int threads() {
    return THREADS;
  }

  @Override
  public int sharedBytes() {
    return 0;
  }

  @Override
  public int stateRegisters() {
    return 0;
  }
}
