package io.github.linattn.kernelgen;

import java.util.Locale;

/**
 * How much dynamic shared memory a block takes; kernels of any head dimension take more for more.
 */
public sealed interface SharedRule {
  /** Of the shared memory of a multiprocessor, what each block costs beside its own. */
  int SYSTEM_BYTES = 1024;

  /**
   * The most of each of so many blocks that a multiprocessor has at once.
   *
   * @param most of one block that has a multiprocessor to itself
   */
  static int share(int most, int blocks) {
    return (most + SYSTEM_BYTES) / blocks - SYSTEM_BYTES;
  }

  /** So many blocks of so much that a multiprocessor has at once, likewise. */
  static int blocks(int most, int bytes) {
    return (most + SYSTEM_BYTES) / (bytes + SYSTEM_BYTES);
  }

  /**
   * The same for every launch, which may ask for more so that no two blocks share a multiprocessor.
   */
  record Fixed(int bytes) implements SharedRule {
    @Override
    public int bytes(int keyDim, int group) {
      return bytes;
    }

    @Override
    public String text() {
      return String.format(Locale.ROOT, "fixed:%d", bytes);
    }
  }

  /** Some, and more for each box of 64 key columns. */
  record PerKeyBox(int fixedBytes, int boxBytes) implements SharedRule {
    @Override
    public int bytes(int keyDim, int group) {
      return fixedBytes + Math.ceilDiv(keyDim, KernelSpec.BOX_COLUMNS) * boxBytes;
    }

    @Override
    public String text() {
      return String.format(Locale.ROOT, "per_key_box:%d:%d", fixedBytes, boxBytes);
    }
  }

  /** The same, and as much for each warpgroup as its rows take. */
  record PerWarpgroup(int fixedBytes, int warpgroupBytes, int boxBytes) implements SharedRule {
    @Override
    public int bytes(int keyDim, int warpgroups) {
      return fixedBytes
          + warpgroups * warpgroupBytes
          + Math.ceilDiv(keyDim, KernelSpec.BOX_COLUMNS) * boxBytes;
    }

    @Override
    public String text() {
      return String.format(
          Locale.ROOT, "per_warpgroup:%d:%d:%d", fixedBytes, warpgroupBytes, boxBytes);
    }
  }

  /** k, z, and of each query head of a group q and partial sums. */
  record PerGroup(int partialSums) implements SharedRule {
    @Override
    public int bytes(int keyDim, int group) {
      int row = Math.ceilDiv(keyDim, 4) * 4;
      int floats = (2 + group) * row + group * partialSums;
      return floats * Float.BYTES;
    }

    @Override
    public String text() {
      return String.format(Locale.ROOT, "per_group:%d", partialSums);
    }
  }

  /** S of some columns, with its rounding errors where they fit, and rows of some tokens. */
  record PerState(int columns, int tokens, int slices, int mostBytes) implements SharedRule {
    @Override
    public int bytes(int keyDim, int group) {
      int both = bytesOf(keyDim, 2);
      return both <= mostBytes ? both : bytesOf(keyDim, 1);
    }

    private int bytesOf(int keyDim, int states) {
      int row = Math.ceilDiv(keyDim, 4) * 4;
      int floats =
          states * keyDim * columns
              + 2 * tokens * row
              + tokens * columns * (2 + slices)
              + tokens * (slices + 1);
      return floats * Float.BYTES;
    }

    @Override
    public String text() {
      return String.format(
          Locale.ROOT, "per_state:%d:%d:%d:%d", columns, tokens, slices, mostBytes);
    }
  }

  /**
   * Dynamic shared memory of a block.
   *
   * @param keyDim Dk
   * @param group query heads that share a key/value head; or warpgroups, where launches differ in
   *     these
   */
  int bytes(int keyDim, int group);

  /** The form in the manifest, such as {@code fixed:49152}. */
  String text();

  /**
   * Reads what {@link #text} wrote.
   *
   * @throws IllegalArgumentException if the text has another form
   */
  static SharedRule parse(String text) {
    String[] parts = text.split(":", -1);
    int[] numbers = new int[parts.length - 1];
    for (int i = 0; i < numbers.length; i++) {
      numbers[i] = Integer.parseInt(parts[i + 1]);
    }
    String form = parts[0] + ":" + numbers.length;
    return switch (form) {
      case "fixed:1" -> new Fixed(numbers[0]);
      case "per_key_box:2" -> new PerKeyBox(numbers[0], numbers[1]);
      case "per_warpgroup:3" -> new PerWarpgroup(numbers[0], numbers[1], numbers[2]);
      case "per_group:1" -> new PerGroup(numbers[0]);
      case "per_state:4" -> new PerState(numbers[0], numbers[1], numbers[2], numbers[3]);
      default ->
          throw new IllegalArgumentException(
              "shared memory is fixed:<bytes> or a rule such as per_key_box:<bytes>:<bytes>, not \""
                  + text
                  + "\"");
    };
  }
}
