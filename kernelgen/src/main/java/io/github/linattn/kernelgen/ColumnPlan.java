package io.github.linattn.kernelgen;

/**
 * Plan of {@link Operation#VALUE_CENTER}: a block per head, a thread per column, no shared memory.
 *
 * @param threads D, rounded up to whole warps
 * @param gridRule heads
 */
public record ColumnPlan(int threads, GridRule gridRule) implements ResourcePlan {
  private static final int WARP = 32;

  static ColumnPlan of(int headDim) {
    return new ColumnPlan(Math.ceilDiv(headDim, WARP) * WARP, new GridRule(GridRule.Per.HEAD, 1));
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
