package io.github.linattn.cli;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT_UNALIGNED;
import static java.lang.foreign.ValueLayout.JAVA_LONG_UNALIGNED;

import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.io.StoredTensor;
import java.nio.file.Path;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A file with the state S, z, u and count to continue from, checked when it is opened. Counts are
 * I64, or F32, which holds every count up to 2^24 alone.
 */
final class StateFile implements AutoCloseable {
  /** Metadata of a state that {@code attend} wrote: whether its sums are over k / |k|. */
  static final String NORMALIZED = "normalized_keys";

  private final TensorSource file;
  private final long[] counts;

  private StateFile(TensorSource file, long[] counts) {
    this.file = file;
    this.counts = counts;
  }

  /**
   * Opens and checks a file.
   *
   * @param normalize whether keys to come are divided by their length, as those in the state must
   *     be where the file says what they are
   * @throws CommandFailure if it does not hold a state for this shape and such keys
   */
  static StateFile open(Path path, AttentionShape shape, int sequences, boolean normalize) {
    TensorSource file = TensorSource.of(path);
    try {
      requireKeys(file.metadata(NORMALIZED), normalize);
      long rows = (long) shape.batch() * shape.keyValueHeads();
      long count = sequences;
      long d = shape.keyDim();
      long dv = shape.valueDim();
      require(file, "S", "F32", List.of(rows, count, d, dv));
      require(file, "z", "F32", List.of(rows, count, d));
      require(file, "u", "F32", List.of(rows, count, dv));
      boolean isFloat = file.tensor("count").dtype().equals("F32");
      StoredTensor counts = require(file, "count", isFloat ? "F32" : "I64", List.of(count));
      return new StateFile(file, isFloat ? floatCounts(counts) : counts(counts));
    } catch (RuntimeException e) {
      file.close();
      throw e;
    }
  }

  private static void requireKeys(@Nullable String normalized, boolean normalize) {
    if (normalized == null || normalized.equalsIgnoreCase(String.valueOf(normalize))) {
      return;
    }
    if (!normalized.equalsIgnoreCase(String.valueOf(!normalize))) {
      throw CommandFailure.misuse(
          "the state's %s must be true or false, got '%s'", NORMALIZED, normalized);
    }
    throw CommandFailure.misuse(
        normalize
            ? "the state is of keys as they are: continue without --normalize"
            : "the state is of keys that were divided by their length: continue with --normalize");
  }

  private static StoredTensor require(
      TensorSource file, String name, String dtype, List<Long> shape) {
    StoredTensor tensor = file.tensor(name);
    if (!tensor.dtype().equals(dtype) || !tensor.shape().equals(shape)) {
      throw CommandFailure.misuse(
          "the state's %s must be %s%s to fit the input, got %s", name, dtype, shape, tensor);
    }
    return tensor;
  }

  private static long[] counts(StoredTensor tensor) {
    long[] counts = tensor.data().toArray(JAVA_LONG_UNALIGNED);
    for (int i = 0; i < counts.length; i++) {
      if (counts[i] < 0 || counts[i] > AttentionState.MOST_TOKENS) {
        throw noCount(i, counts[i]);
      }
    }
    return counts;
  }

  private static long[] floatCounts(StoredTensor tensor) {
    float[] values = tensor.data().toArray(JAVA_FLOAT_UNALIGNED);
    long[] counts = new long[values.length];
    for (int i = 0; i < values.length; i++) {
      counts[i] = (long) values[i];
      if (counts[i] < 0 || counts[i] > AttentionState.MOST_TOKENS || counts[i] != values[i]) {
        throw noCount(i, values[i]);
      }
    }
    return counts;
  }

  private static CommandFailure noCount(int sequence, Number count) {
    return CommandFailure.misuse(
        "the state's count of sequence %d is no number of tokens: %s", sequence, count);
  }

  long[] counts() {
    return counts;
  }

  StoredTensor tensor(String name) {
    return file.tensor(name);
  }

  @Override
  public void close() {
    file.close();
  }
}
