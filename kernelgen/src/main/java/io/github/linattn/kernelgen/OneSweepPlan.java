package io.github.linattn.kernelgen;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * Plan of dq, dk and dv by one walk on sm_90a. A cluster of two blocks owns an item of a head: one
 * forms dk and half of dq, the other dv and the other half; of 64 columns that of dk forms all of
 * dq. Each has a warpgroup of the scores, one or two with 64 columns of its gradient and of the
 * sums over the tokens after, one with 64 columns of dq and of the state before. {@code
 * linattn/hopper_one_sweep.cuh} derives the same map.
 *
 * @param headDim D, 64 or 128
 * @param shared the shared-memory map, in the order of offsets
 * @param sharedBytes the end of the map, and what aligning its start may take
 */
public record OneSweepPlan(int headDim, List<SharedRegion> shared, int sharedBytes)
    implements ResourcePlan {
  /**
   * The most tokens of an item; of fp16, each of whose chunks has a unit in shared memory, there is
   * room for so many, and the planner takes fewer.
   */
  public static final int MOST_TOKENS = 16_384;

  static final int OUTPUT_BUFFERS = 2;

  private static final int WARPGROUP = 128;
  private static final int BOX_BYTES = KernelSpec.CHUNK * 128;
  private static final int EXTRA_BYTES = 8 * 128;
  private static final int WEIGHT_BUFFERS = 2;
  private static final int ROW_PLACES = 4;
  private static final int UNIT_BYTES = 16;
  private static final int EXTENT_BYTES = 4 * 8;
  private static final int PARTIAL_BYTES = 16 * 2 * Double.BYTES;
  private static final int ITEM_BYTES = 48; // and the number of the block

  public OneSweepPlan {
    shared = List.copyOf(shared);
  }

  static OneSweepPlan of(KernelSpec spec) {
    return of(spec.headDim(), spec.elementType());
  }

  static OneSweepPlan of(int headDim, ElementType element) {
    if (!exists(headDim, element)) {
      throw new IllegalArgumentException(
          String.format(
              Locale.ROOT,
              "one sweep is for 16 bits with head dimension 128, and bf16 with 64, not for %s and %d",
              element.id(),
              headDim));
    }
    int boxes = boxes(headDim);
    String each = boxes == 1 ? " each" : " x 2 each";
    List<SharedRegion> map = new ArrayList<>();
    for (int stage = 0; stage < stages(headDim); stage++) {
      HopperPlan.add(
          map, "stage " + stage + ": x, y, z, v or k [64 x 64]" + each, 4 * boxes * BOX_BYTES);
      HopperPlan.add(map, "stage " + stage + ": outputs of the forward [64 x 64]", BOX_BYTES);
    }
    HopperPlan.add(map, "dk or dv [64 x 64] x 2", boxes * OUTPUT_BUFFERS * BOX_BYTES);
    HopperPlan.add(map, "dq [64 x 64]", BOX_BYTES);
    for (int i = 0; i < WEIGHT_BUFFERS; i++) {
      HopperPlan.add(map, "weights " + i + " and constants [72 x 64]", BOX_BYTES + EXTRA_BYTES);
    }
    HopperPlan.add(map, "ones [8 x 64], a / b [64]", EXTRA_BYTES + KernelSpec.CHUNK * Float.BYTES);
    HopperPlan.add(
        map,
        "g, two parts of d and -d of rows [64] each",
        ROW_PLACES * 4 * KernelSpec.CHUNK * Float.BYTES);
    HopperPlan.add(map, "partial sums of the gradient of a", PARTIAL_BYTES);
    if (element == ElementType.F16) {
      HopperPlan.add(
          map,
          "units of w, of each chunk, and what bounds them",
          MOST_TOKENS / KernelSpec.CHUNK * UNIT_BYTES + EXTENT_BYTES);
    }
    HopperPlan.add(map, "marks of threads", threads(headDim) * Integer.BYTES);
    int barriers = 3 * stages(headDim) + 2 * ROW_PLACES + 2 * WEIGHT_BUFFERS + 1;
    HopperPlan.add(map, "barriers, the item", barriers * Long.BYTES + ITEM_BYTES);
    int bytes =
        HopperPlan.sharedBytes(map, 1)
            .orElseThrow(() -> HopperPlan.tooLarge(headDim, element, Precision.NATIVE));
    return new OneSweepPlan(headDim, map, bytes);
  }

  /** Whether there are registers and shared memory for it; fp16 with D = 64 waits to be timed. */
  public static boolean exists(int headDim, ElementType element) {
    return headDim == 128
        ? element != ElementType.F32
        : headDim == 64 && element == ElementType.BF16;
  }

  private static int stages(int headDim) {
    return headDim == 64 ? 3 : 2;
  }

  private static int boxes(int headDim) {
    return headDim / KernelSpec.BOX_COLUMNS;
  }

  private static int threads(int headDim) {
    return (2 + boxes(headDim)) * WARPGROUP;
  }

  /** Chunks in shared memory. */
  int stages() {
    return stages(headDim);
  }

  /** Warpgroups with 64 columns of dk or dv each. */
  int beside() {
    return boxes(headDim);
  }

  /** Registers of a thread of the scores; with those of the states, all that there are. */
  int scoreRegisters() {
    return headDim == 64 ? launchRegisters() : 104;
  }

  /** Registers of a thread of dk, dv or dq. */
  int gradientRegisters() {
    return headDim == 64 ? launchRegisters() : 136;
  }

  /** Registers that each thread starts with. */
  int launchRegisters() {
    return headDim == 64 ? 168 : 128;
  }

  @Override
  public int threads() {
    return threads(headDim);
  }

  @Override
  public int stateRegisters() {
    return headDim / 2;
  }

  /** Of one of the two tasks. */
  @Override
  public GridRule gridRule() {
    return new GridRule(GridRule.Per.CLUSTER, headDim);
  }
}
