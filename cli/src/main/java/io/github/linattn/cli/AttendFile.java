package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.Sequences;
import io.github.linattn.io.SafeTensors;
import io.github.linattn.io.StoredTensor;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * A file with q, k, v and perhaps do, read as batch rows of heads. Everything is checked when it is
 * opened; closing it ends the mapping.
 */
final class AttendFile implements AutoCloseable {
  private static final Set<String> FLOATS = Set.of("F32", "BF16", "F16");

  private final SafeTensors file;
  private final AttentionShape shape;
  private final @Nullable Sequences packing;

  private AttendFile(SafeTensors file, AttentionShape shape, @Nullable Sequences packing) {
    this.file = file;
    this.shape = shape;
    this.packing = packing;
  }

  /**
   * Opens and checks a file.
   *
   * @throws CommandFailure if it does not hold what the options ask for
   */
  static AttendFile open(Path path, OperatorOptions options, boolean gradients) {
    SafeTensors file = openTensors(path);
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

  static SafeTensors openTensors(Path path) {
    try {
      return SafeTensors.open(path);
    } catch (IOException e) {
      throw CommandFailure.misuse("can't read %s", sentence(path, e));
    }
  }

  private static String sentence(Path path, IOException e) {
    String message = Text.message(e);
    return message.contains(path.toString()) ? message : path + ": " + message;
  }

  private static AttentionShape shapeOf(SafeTensors file, OperatorOptions options) {
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

  private static List<Long> matrixRows(SafeTensors file, String name) {
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

  private static void requireShape(SafeTensors file, String name, List<Long> expected) {
    StoredTensor tensor = floats(file, name);
    if (!tensor.shape().equals(expected)) {
      throw CommandFailure.misuse(
          "%s must have the shape %s to fit the other tensors and options, got %s",
          name, expected, tensor);
    }
  }

  private static StoredTensor floats(SafeTensors file, String name) {
    StoredTensor tensor;
    try {
      tensor = file.tensor(name);
    } catch (IllegalArgumentException e) {
      throw CommandFailure.misuse(e);
    }
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
