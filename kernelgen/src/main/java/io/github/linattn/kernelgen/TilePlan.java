package io.github.linattn.kernelgen;

import java.util.Locale;

/**
 * Plan of the kernels of the family {@code chunked} that every architecture runs. The headers in
 * {@code linattn/}, {@code mma_forward.cuh} and those named as the operations, derive the same
 * numbers.
 *
 * @param threads of a block
 * @param minBlocks that a multiprocessor should hold: bounds the registers
 * @param shared dynamic shared memory of a block
 * @param stateRegisters of each thread
 * @param gridRule tiles of values, of states, or elements of states
 */
public record TilePlan(
    int threads, int minBlocks, SharedRule shared, int stateRegisters, GridRule gridRule)
    implements ResourcePlan {
  /** Edge of the part of a state that a block sums. */
  private static final int SUMS_TILE = 64;

  private static final int MOST_SUMS_STAGES = 5;

  private static final int THREADS = 256;
  private static final int COLUMNS = 64;

  /** Half of a block forms weights, half keeps the state. */
  private static final int FORWARD_ROLE_THREADS = 128;

  /** Words of columns that a thread sums. */
  private static final int SUM_WORDS = 1;

  private static final int SCAN_THREADS = 128;

  /** That a thread has. */
  private static final int SCAN_ELEMENTS = 2;

  /** Of a tile of a state. */
  static final int DECODE_COLUMNS = 32;

  static final int DECODE_THREADS = 256;

  private static final int RECURRENCE_COLUMNS = 32;
  private static final int RECURRENCE_THREADS = 128;
  private static final int RECURRENCE_TOKENS = 4;
  private static final int WARP = 32;

  /** Rows of one tensor that a block of a kernel of rows has. */
  private static final int ROWS = 128;

  private static final int GRADIENT_SUMS_STAGES_BYTES = 96 * 1024;

  /** Floats of a token behind the stages. */
  private static final int GRADIENT_SUMS_FACTORS = 3;

  /** Floats that a token has in each stage, and beside the stages. */
  private record TokenFloats(int inStage, int beside) {}

  private static final TokenFloats FORWARD_FLOATS = new TokenFloats(0, 6);
  private static final TokenFloats GRADIENT_FLOATS = new TokenFloats(4, 7);

  /** Columns that a row of a tile in shared memory is longer than the tile. */
  private static final int PADDING = 8;

  static TilePlan of(KernelSpec spec) {
    boolean accurate = isAccurate(spec);
    return switch (spec.operation()) {
      case FORWARD, QUERY_GRADIENT, KEY_VALUE_GRADIENT ->
          sweep(spec.operation(), spec.headDim(), spec.elementType(), spec.precision());
      case STATE_SUMS ->
          new TilePlan(
              THREADS,
              accurate ? 1 : 2,
              new SharedRule.Fixed(sumsBytes(spec.elementType(), MAX_SHARED_BYTES, 0)),
              SUMS_TILE * SUMS_TILE / THREADS,
              new GridRule(GridRule.Per.STATE_TILE, SUMS_TILE));
      case GRADIENT_SUMS ->
          new TilePlan(
              THREADS,
              accurate ? 1 : 2,
              new SharedRule.Fixed(gradientSumsBytes(spec.elementType())),
              SUMS_TILE * SUMS_TILE / THREADS,
              new GridRule(GridRule.Per.STATE_TILE, SUMS_TILE));
      case GRADIENT_ROWS, NORMALIZE_ROWS_GRADIENT ->
          new TilePlan(
              THREADS, 5, new SharedRule.Fixed(0), 0, new GridRule(GridRule.Per.ROWS, ROWS));
      case STATE_OUTPUTS, GRADIENT_OUTPUTS ->
          new TilePlan(
              THREADS,
              accurate ? 1 : 2,
              outputs(spec),
              0,
              new GridRule(GridRule.Per.VALUE_TILE, COLUMNS));
      case STATE_SCAN ->
          new TilePlan(
              SCAN_THREADS,
              8,
              new SharedRule.Fixed(0),
              SCAN_ELEMENTS,
              new GridRule(GridRule.Per.STATE_ELEMENTS, SCAN_THREADS * SCAN_ELEMENTS));
      case DECODE ->
          new TilePlan(
              DECODE_THREADS,
              2,
              new SharedRule.PerGroup(DECODE_THREADS / WARP * (DECODE_COLUMNS + 4)),
              0,
              new GridRule(GridRule.Per.VALUE_TILE, DECODE_COLUMNS));
      case RECURRENCE, GRADIENT_RECURRENCE ->
          new TilePlan(
              RECURRENCE_THREADS,
              2,
              new SharedRule.PerState(
                  RECURRENCE_COLUMNS,
                  RECURRENCE_TOKENS,
                  RECURRENCE_THREADS / RECURRENCE_COLUMNS,
                  MAX_SHARED_BYTES),
              0,
              new GridRule(
                  GridRule.Per.WALKED_TILES,
                  spec.operation() == Operation.RECURRENCE ? RECURRENCE_COLUMNS : COLUMNS));
      default -> throw new IllegalArgumentException("no tiles for " + spec.operation());
    };
  }

  /** Whether fp32 operands are split in two, with three products. */
  static boolean isAccurate(KernelSpec spec) {
    return spec.technique() == Technique.MMA && spec.precision() == Precision.ACCURATE;
  }

  /** A forward, or a gradient that is causal. */
  static TilePlan sweep(
      Operation operation, int headDim, ElementType element, Precision precision) {
    boolean forward = operation == Operation.FORWARD;
    TokenFloats floats = forward ? FORWARD_FLOATS : GRADIENT_FLOATS;
    int tokens = 16;
    for (int candidate = 64; candidate > 16; candidate /= 2) {
      if (sweepBytes(headDim, element, candidate, 3, floats) <= MAX_SHARED_BYTES) {
        tokens = candidate;
        break;
      }
    }
    int stages = 4;
    while (stages > 2 && sweepBytes(headDim, element, tokens, stages, floats) > MAX_SHARED_BYTES) {
      stages--;
    }
    int bytes = sweepBytes(headDim, element, tokens, stages, floats);
    if (bytes > MAX_SHARED_BYTES) {
      throw new IllegalArgumentException(
          String.format(
              Locale.ROOT,
              "a block may use at most %d bytes of shared memory: a %s by mma of head dimension"
                  + " %d, %s %s needs %d",
              MAX_SHARED_BYTES,
              operation.id(),
              headDim,
              element.id(),
              precision.id(),
              bytes));
    }
    // 16 bits: two would spill
    boolean small = forward && precision == Precision.TF32 && headDim <= 32;
    return new TilePlan(
        THREADS,
        small ? 2 : 1,
        new SharedRule.Fixed(bytes),
        headDim * COLUMNS / FORWARD_ROLE_THREADS,
        new GridRule(GridRule.Per.VALUE_TILE, COLUMNS));
  }

  /** Stages of q, k and v, two of weights, sums of keys and factors of rows. */
  private static int sweepBytes(
      int headDim, ElementType element, int tokens, int stages, TokenFloats floats) {
    int bytes = element.bytes();
    int token = (2 * (headDim + PADDING) + COLUMNS + PADDING) * bytes;
    int stage = tokens * (token + floats.inStage() * Float.BYTES);
    int weight = element == ElementType.BF16 ? Short.BYTES : Float.BYTES;
    int columns = headDim / (Integer.BYTES / bytes * SUM_WORDS);
    int parts = 1;
    while (parts * 2 * columns <= FORWARD_ROLE_THREADS && parts * 4 <= tokens) {
      parts *= 2;
    }
    int groups = tokens == 32 ? 2 : 1;
    return stages * stage
        + 2 * tokens * (tokens + PADDING) * weight
        + Float.BYTES * ((2 + parts) * headDim + (floats.beside() + groups) * tokens);
  }

  /** Stages of k and v, and of floats of their rows, and floats of the tokens of one chunk. */
  private static int sumsBytes(ElementType element, int limit, int floats) {
    int tokens = sumsTokens(element, limit, floats);
    int stage = sumsStage(element, tokens, floats);
    return Math.min(MOST_SUMS_STAGES, limit / stage) * stage;
  }

  private static int gradientSumsBytes(ElementType element) {
    int floats = GRADIENT_FLOATS.inStage();
    int tokens = sumsTokens(element, GRADIENT_SUMS_STAGES_BYTES, floats);
    return sumsBytes(element, GRADIENT_SUMS_STAGES_BYTES, floats)
        + GRADIENT_SUMS_FACTORS * tokens * Float.BYTES;
  }

  /** Twice the tokens of a step where three stages of these fit. Products of f16 are of 32 bits. */
  private static int sumsTokens(ElementType element, int limit, int floats) {
    int operand = element == ElementType.BF16 ? Short.BYTES : Float.BYTES;
    int tokenBytes = 2 * SUMS_TILE * operand;
    int step = tokenBytes <= 256 ? 64 : 32;
    return step < 64 && 3 * sumsStage(element, 2 * step, floats) <= limit ? 2 * step : step;
  }

  private static int sumsStage(ElementType element, int tokens, int floats) {
    return 2 * tileBytes(tokens, SUMS_TILE, element) + floats * tokens * Float.BYTES;
  }

  private static SharedRule outputs(KernelSpec spec) {
    boolean wide = spec.elementType() == ElementType.F32;
    int tokens = wide ? 32 : 64;
    // 16-bit tensors meet a state in bf16, in twice the stages; fp16 has products of its own
    boolean halves = spec.elementType() == ElementType.BF16;
    int rowFloats = OutputsPlan.rowFloats(spec.operation());
    int stages = halves ? 4 : 2;
    int stateElement = halves ? Short.BYTES : Float.BYTES;
    int fixed =
        stages * tileBytes(tokens, COLUMNS, spec.elementType())
            + (COLUMNS + rowFloats * tokens) * Float.BYTES;
    int box = COLUMNS * (COLUMNS + PADDING) * stateElement + COLUMNS * Float.BYTES;
    return new SharedRule.PerKeyBox(fixed, box);
  }

  private static int tileBytes(int rows, int columns, ElementType element) {
    return rows * (columns + PADDING) * element.bytes();
  }

  @Override
  public int sharedBytes() {
    return shared.bytes(KernelSpec.MAX_CHUNKED_HEAD_DIM, 1);
  }

  @Override
  public SharedRule sharedRule() {
    return shared;
  }
}
