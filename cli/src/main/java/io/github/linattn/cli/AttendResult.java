package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.DType;
import io.github.linattn.Gradients;
import io.github.linattn.MemoryKind;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.io.SafeTensorsWriter;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Collects what was computed, with batch rows and heads as one axis again, and writes it. */
final class AttendResult implements AutoCloseable {
  private final Arena scratch = Arena.ofConfined();
  private final SafeTensorsWriter writer = new SafeTensorsWriter();
  private final List<String> names = new ArrayList<>();
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

  void addState(AttentionState state) {
    long sequences = state.sequences();
    add("S", state.s(), keyRows, sequences, keyDim, valueDim);
    add("z", state.z(), keyRows, sequences, keyDim);
    add("u", state.u(), keyRows, sequences, valueDim);
    MemorySegment counts = scratch.allocate(ValueLayout.JAVA_FLOAT, sequences);
    for (int i = 0; i < state.sequences(); i++) {
      counts.setAtIndex(ValueLayout.JAVA_FLOAT, i, state.count(i));
    }
    add("count", DType.F32, counts, sequences);
  }

  private void add(String name, Tensor tensor, long... shape) {
    add(name, tensor.dtype(), hostMemory(tensor), shape);
  }

  private void add(String name, DType dtype, MemorySegment data, long... shape) {
    List<Long> extents = new ArrayList<>();
    for (long extent : shape) {
      extents.add(extent);
    }
    writer.add(name, dtype.name(), extents, data);
    names.add(name);
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
    return names;
  }

  void write(Path out) throws IOException {
    writer.write(out);
  }

  @Override
  public void close() {
    scratch.close();
  }
}
