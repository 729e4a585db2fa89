package io.github.linattn.cli;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT_UNALIGNED;

import io.github.linattn.AttentionShape;
import io.github.linattn.io.StoredTensor;
import java.nio.file.Path;
import java.util.List;

/** A file with the state S, z, u and count to continue from, checked when it is opened. */
final class StateFile implements AutoCloseable {
  private final TensorSource file;
  private final long[] counts;

  private StateFile(TensorSource file, long[] counts) {
    this.file = file;
    this.counts = counts;
  }

  /**
   * Opens and checks a file.
   *
   * @throws CommandFailure if it does not hold a state for this shape
   */
  static StateFile open(Path path, AttentionShape shape, int sequences) {
    TensorSource file = TensorSource.of(path);
    try {
      long rows = (long) shape.batch() * shape.keyValueHeads();
      long count = sequences;
      long d = shape.keyDim();
      long dv = shape.valueDim();
      require(file, "S", List.of(rows, count, d, dv));
      require(file, "z", List.of(rows, count, d));
      require(file, "u", List.of(rows, count, dv));
      return new StateFile(file, counts(require(file, "count", List.of(count))));
    } catch (RuntimeException e) {
      file.close();
      throw e;
    }
  }

  private static StoredTensor require(TensorSource file, String name, List<Long> shape) {
    StoredTensor tensor = file.tensor(name);
    if (!tensor.dtype().equals("F32") || !tensor.shape().equals(shape)) {
      throw CommandFailure.misuse(
          "the state's %s must be F32%s to fit the input, got %s", name, shape, tensor);
    }
    return tensor;
  }

  private static long[] counts(StoredTensor tensor) {
    float[] values = tensor.data().toArray(JAVA_FLOAT_UNALIGNED);
    long[] counts = new long[values.length];
    for (int i = 0; i < values.length; i++) {
      counts[i] = (long) values[i];
      if (counts[i] < 0 || counts[i] != values[i]) {
        throw CommandFailure.misuse(
            "the state's count of sequence %d is no number of tokens: %s", i, values[i]);
      }
    }
    return counts;
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
