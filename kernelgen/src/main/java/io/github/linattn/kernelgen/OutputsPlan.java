package io.github.linattn.kernelgen;

/**
 * Plan of what is read from a state alone by products of warpgroups, of which a launch has one in a
 * block or two: {@link Operation#STATE_OUTPUTS}, {@link Operation#GRADIENT_OUTPUTS} and {@link
 * Operation#NORMALIZED_GRADIENT_OUTPUTS} on sm_90a, one kernel for every head dimension. The header
 * {@code linattn/hopper_state_outputs.cuh} derives the same numbers.
 *
 * @param parts 16-bit numbers that an element of a row, or of a state, is the sum of
 * @param columns value columns of a block
 * @param stages boxes of 64 columns of the rows of a warpgroup that are on their way
 * @param shared dynamic shared memory of a block
 * @param per what a block is for: two tiles of rows that are finished are a cluster
 */
public record OutputsPlan(int parts, int columns, int stages, SharedRule shared, GridRule.Per per)
    implements ResourcePlan {
  private static final int WARPGROUP = 128;

  /** Of a block. */
  private static final int MOST_WARPGROUPS = 2;

  private static final int ALIGNMENT = 1024;

  /** Rows of the operand beside those of the columns. */
  static final int EXTRA = 8;

  private static final int ROW_BYTES = 128;

  /** Floats: what takes off a scale, and the rest of a unit of shared memory. */
  private static final int SCALE = 4;

  /** Warps of a warpgroup. */
  private static final int WARPS = 4;

  /** Bytes in which a warp takes what another tile has of its rows: of two chunks, 16 rows each. */
  private static final int EXCHANGED = 2 * (16 / 2 * 16 + Long.BYTES);

  /** Whether there is such a kernel: TF32 is served by the precision default. */
  static boolean exists(Operation operation, Precision precision) {
    return isOutputs(operation) && precision != Precision.TF32;
  }

  static boolean isOutputs(Operation operation) {
    return operation == Operation.STATE_OUTPUTS || operation.plain() == Operation.GRADIENT_OUTPUTS;
  }

  /** Whether its outputs become gradients of rows, from those of the rows over their length. */
  static boolean finishes(Operation operation) {
    return operation == Operation.NORMALIZED_GRADIENT_OUTPUTS;
  }

  static OutputsPlan of(KernelSpec spec) {
    boolean wide = spec.elementType() == ElementType.F32;
    int parts = wide ? 2 : 1;
    int columns = 2 * KernelSpec.BOX_COLUMNS;
    boolean finishes = finishes(spec.operation());
    int stages = wide ? 2 : finishes ? 8 : 4;
    int stage = KernelSpec.CHUNK * KernelSpec.BOX_COLUMNS * spec.elementType().bytes();
    int rows = rowFloats(spec.operation()) * KernelSpec.CHUNK * Float.BYTES;
    int exchanged = finishes ? WARPS * EXCHANGED : 0;
    return new OutputsPlan(
        parts,
        columns,
        stages,
        new SharedRule.PerWarpgroup(
            ALIGNMENT + (columns + SCALE) * Float.BYTES,
            stages * stage + exchanged + rows,
            parts * (columns + EXTRA) * ROW_BYTES),
        finishes ? GridRule.Per.CLUSTER : GridRule.Per.VALUE_TILE);
  }

  /**
   * Blocks of one warpgroup for which a multiprocessor has registers; its shared memory may hold
   * fewer.
   */
  static int together(Operation operation, ElementType element) {
    return operation == Operation.STATE_OUTPUTS && element != ElementType.F32 ? 3 : 2;
  }

  /** Threads of a multiprocessor among whom its registers are shared out. */
  static int threadsTogether(KernelSpec spec) {
    return together(spec.operation(), spec.elementType()) * WARPGROUP;
  }

  /** What a row of a chunk has beside its elements. */
  static int rowFloats(Operation operation) {
    return operation == Operation.STATE_OUTPUTS ? 2 : 3;
  }

  @Override
  public int threads() {
    return MOST_WARPGROUPS * WARPGROUP;
  }

  @Override
  public int sharedBytes() {
    return shared.bytes(KernelSpec.MAX_CHUNKED_HEAD_DIM, MOST_WARPGROUPS);
  }

  @Override
  public SharedRule sharedRule() {
    return shared;
  }

  @Override
  public int stateRegisters() {
    return 0;
  }

  @Override
  public GridRule gridRule() {
    return new GridRule(per, columns);
  }
}
