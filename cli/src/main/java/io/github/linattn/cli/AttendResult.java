package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.DType;
import io.github.linattn.Gradients;
import io.github.linattn.MemoryKind;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.io.Npy;
import io.github.linattn.io.SafeTensorsWriter;
import io.github.linattn.io.StoredTensor;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** Collects what was computed, with batch rows and heads as one axis again, and writes it. */
final class AttendResult implements AutoCloseable {
  private static final String ARRAY = ".npy";
  private static final String COUNTS = "I64";
  private static final int PIECE = 1 << 16;

  /** Of whatever may be computed. */
  private static final List<String> NAMES =
      List.of("o", "g", "S", "z", "u", "count", "dq", "dk", "dv", "da", "db", "dS", "dz", "du");

  private final Arena scratch = Arena.ofConfined();
  private final List<StoredTensor> tensors = new ArrayList<>();
  private final Map<String, String> metadata = new LinkedHashMap<>();
  private final long queryRows;
  private final long keyRows;
  private final long tokens;
  private final long keyDim;
  private final long valueDim;

  AttendResult(AttentionShape shape) {
    this.queryRows = (long) shape.batch() * shape.heads();
    this.keyRows = (long) shape.batch() * shape.keyValueHeads();
    this.tokens = shape.tokens();
    this.keyDim = shape.keyDim();
    this.valueDim = shape.valueDim();
  }

  void addForward(Tensor o, Tensor g) {
    add("o", o, queryRows, tokens, valueDim);
    add("g", g, queryRows, tokens);
  }

  void addGradients(Gradients gradients) {
    add("dq", gradients.dq(), queryRows, tokens, keyDim);
    add("dk", gradients.dk(), keyRows, tokens, keyDim);
    add("dv", gradients.dv(), keyRows, tokens, valueDim);
    add("da", gradients.da(), queryRows);
    add("db", gradients.db(), queryRows);
    gradients.initialState().ifPresent(this::addStateGradient);
  }

  private void addStateGradient(StateGradient gradient) {
    long sequences = gradient.ds().shape().extent(2);
    add("dS", gradient.ds(), keyRows, sequences, keyDim, valueDim);
    add("dz", gradient.dz(), keyRows, sequences, keyDim);
    add("du", gradient.du(), keyRows, sequences, valueDim);
  }

  /** A safetensors file notes whether the keys of its state were divided by their length. */
  void addState(AttentionState state, boolean normalized) {
    metadata.put(StateFile.NORMALIZED, String.valueOf(normalized));
    long sequences = state.sequences();
    add("S", state.s(), keyRows, sequences, keyDim, valueDim);
    add("z", state.z(), keyRows, sequences, keyDim);
    add("u", state.u(), keyRows, sequences, valueDim);
    MemorySegment counts = scratch.allocate(ValueLayout.JAVA_LONG, sequences);
    for (int i = 0; i < state.sequences(); i++) {
      counts.setAtIndex(ValueLayout.JAVA_LONG, i, state.count(i));
    }
    add("count", COUNTS, counts, sequences);
  }

  private void add(String name, Tensor tensor, long... shape) {
    add(name, tensor.dtype().name(), hostMemory(tensor), shape);
  }

  private void add(String name, String dtype, MemorySegment data, long... shape) {
    List<Long> extents = new ArrayList<>();
    for (long extent : shape) {
      extents.add(extent);
    }
    tensors.add(new StoredTensor(name, dtype, extents, data));
  }

  private MemorySegment hostMemory(Tensor tensor) {
    if (tensor.memoryKind() != MemoryKind.DEVICE) {
      return tensor.segment();
    }
    MemorySegment host = scratch.allocate(tensor.byteSpan(), tensor.dtype().bytes());
    tensor.copyTo(host);
    return host;
  }

  /** What {@link #write} writes, in order. */
  List<String> names() {
    return tensors.stream().map(StoredTensor::name).toList();
  }

  /** What is infinite or NaN, in words: a line for each result with such elements. */
  List<String> notFinite() {
    List<String> lines = new ArrayList<>();
    for (StoredTensor tensor : tensors) {
      if (tensor.dtype().equals(COUNTS)) {
        continue;
      }
      long found = countNotFinite(tensor);
      if (found > 0) {
        lines.add(
            Text.format(
                "%d of %d elements of %s are not finite", found, tensor.elements(), tensor.name()));
      }
    }
    return lines;
  }

  private static long countNotFinite(StoredTensor tensor) {
    long elements = tensor.elements();
    DType dtype = DType.valueOf(tensor.dtype());
    float[] piece = new float[PIECE];
    long found = 0;
    for (long at = 0; at < elements; at += PIECE) {
      int count = (int) Math.min(PIECE, elements - at);
      dtype.decode(tensor.data(), at, piece, 0, count);
      for (int i = 0; i < count; i++) {
        found += Float.isFinite(piece[i]) ? 0 : 1;
      }
    }
    return found;
  }

  /**
   * Writes all to a safetensors file; to an {@code .npy} o, and the others beside it, moved into
   * place when all are written.
   */
  void write(Path out) throws IOException {
    if (isArray(out)) {
      Map<Path, StoredTensor> arrays = new LinkedHashMap<>();
      tensors.forEach(tensor -> arrays.put(arrayFile(out, tensor.name()), tensor));
      Npy.writeAll(arrays);
    } else {
      var writer = new SafeTensorsWriter();
      metadata.forEach(writer::metadata);
      tensors.forEach(x -> writer.add(x.name(), x.dtype(), x.shape(), x.data()));
      writer.write(out);
    }
  }

  /** Whether results go to arrays of numpy. */
  static boolean isArray(Path out) {
    return out.toString().endsWith(ARRAY);
  }

  /** Every file that {@link #write} may write. */
  static List<Path> files(Path out) {
    return isArray(out) ? NAMES.stream().map(name -> arrayFile(out, name)).toList() : List.of(out);
  }

  /** Which results go where, in words. */
  static String files(Path out, List<String> names) {
    return isArray(out)
        ? names.stream()
            .map(name -> name + " to " + arrayFile(out, name))
            .collect(Collectors.joining(", "))
        : String.join(" ", names) + " to " + out;
  }

  /** Of {@code x.npy}: itself for o, {@code x.g.npy} for g. */
  private static Path arrayFile(Path out, String name) {
    String file = String.valueOf(out.getFileName());
    String stem = file.substring(0, file.length() - ARRAY.length());
    return name.equals("o") ? out : out.resolveSibling(stem + "." + name + ARRAY);
  }

  @Override
  public void close() {
    scratch.close();
  }
}
