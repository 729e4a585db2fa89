package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.Sequences;
import io.github.linattn.io.StoredTensor;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Files with q, k, v and perhaps do, read as batch rows of heads. Everything is checked at first;
 * closing it closes them.
 */
final class AttendFile implements AutoCloseable {
  private static final Set<String> FLOATS = Set.of("F32", "BF16", "F16");

  private final TensorSource file;
  private final AttentionShape shape;
  private final @Nullable Sequences packing;

  private AttendFile(TensorSource file, AttentionShape shape, @Nullable Sequences packing) {
    this.file = file;
    this.shape = shape;
    this.packing = packing;
  }

  /**
   * Checks what was opened, and closes it if it does not hold what the options ask for.
   *
   * @throws CommandFailure if so
   */
  static AttendFile of(TensorSource file, OperatorOptions options, boolean gradients) {
    try {
      AttentionShape shape = shapeOf(file, options);
      if (gradients) {
        requireShape(
            file,
            "do",
            List.of(
                (long) shape.batch() * shape.heads(),
                (long) shape.tokens(),
                (long) shape.valueDim()));
      }
      return new AttendFile(file, shape, packing(shape, options));
    } catch (RuntimeException e) {
      file.close();
      throw e;
    }
  }

  private static AttentionShape shapeOf(TensorSource file, OperatorOptions options) {
    List<Long> q = matrixRows(file, "q");
    List<Long> k = matrixRows(file, "k");
    List<Long> v = matrixRows(file, "v");
    long heads = atLeastOne("--heads", options.heads(), q.get(0));
    long keyValueHeads = atLeastOne("--kv-heads", options.keyValueHeads(), heads);
    requireDivides("--heads", heads, q.get(0), "rows of q");
    requireDivides("--kv-heads", keyValueHeads, heads, "query heads");
    long batch = q.get(0) / heads;
    requireShape(file, "k", List.of(batch * keyValueHeads, q.get(1), q.get(2)));
    requireShape(file, "v", List.of(batch * keyValueHeads, q.get(1), v.get(2)));
    try {
      return new AttentionShape(
          extent(batch),
          extent(heads),
          extent(keyValueHeads),
          extent(q.get(1)),
          extent(k.get(2)),
          extent(v.get(2)));
    } catch (IllegalArgumentException | ArithmeticException e) {
      throw CommandFailure.misuse(e);
    }
  }

  private static int extent(long value) {
    if (value > Integer.MAX_VALUE) {
      throw new IllegalArgumentException("an extent is at most 2^31-1, got " + value);
    }
    return (int) value;
  }

  private static long atLeastOne(String option, @Nullable Integer given, long otherwise) {
    if (given != null && given < 1) {
      throw CommandFailure.misuse("%s must be at least 1, got %d", option, given);
    }
    return given == null ? otherwise : given;
  }

  private static void requireDivides(String option, long divisor, long whole, String what) {
    if (whole % divisor != 0) {
      throw CommandFailure.misuse(
          "%s %d does not divide the %d %s evenly", option, divisor, whole, what);
    }
  }

  private static List<Long> matrixRows(TensorSource file, String name) {
    StoredTensor tensor = floats(file, name);
    if (tensor.shape().size() != 3) {
      throw CommandFailure.misuse(
          "%s must have the three axes [rows, tokens, dim], got %s", name, tensor);
    }
    if (tensor.elements() == 0) {
      throw CommandFailure.misuse("%s is empty: %s", name, tensor);
    }
    return tensor.shape();
  }

  private static void requireShape(TensorSource file, String name, List<Long> expected) {
    StoredTensor tensor = floats(file, name);
    if (!tensor.shape().equals(expected)) {
      throw CommandFailure.misuse(
          "%s must have the shape %s to fit the other tensors and options, got %s",
          name, expected, tensor);
    }
  }

  private static StoredTensor floats(TensorSource file, String name) {
    StoredTensor tensor = file.tensor(name);
    if (!FLOATS.contains(tensor.dtype())) {
      throw CommandFailure.misuse("%s must be F32, BF16 or F16, got %s", name, tensor);
    }
    return tensor;
  }

  private static @Nullable Sequences packing(AttentionShape shape, OperatorOptions options) {
    int[] lengths = options.lengths();
    if (lengths == null) {
      return null;
    }
    if (shape.batch() != 1) {
      throw CommandFailure.misuse(
          "--seqlens packs sequences in one batch row, but --heads %d makes %d of them",
          shape.heads(), shape.batch());
    }
    Sequences sequences;
    try {
      sequences = Sequences.ofLengths(lengths);
    } catch (IllegalArgumentException e) {
      throw CommandFailure.misuse("--seqlens: %s", Text.message(e));
    }
    if (sequences.tokens() != shape.tokens()) {
      throw CommandFailure.misuse(
          "--seqlens sum to %d, but q has %d tokens", sequences.tokens(), shape.tokens());
    }
    return sequences;
  }

  AttentionShape shape() {
    return shape;
  }

  /** The packing, or null where each batch row is one sequence. */
  @Nullable Sequences packing() {
    return packing;
  }

  int sequences() {
    return packing == null ? 1 : packing.count();
  }

  StoredTensor tensor(String name) {
    return file.tensor(name);
  }

  @Override
  public void close() {
    file.close();
  }
}
