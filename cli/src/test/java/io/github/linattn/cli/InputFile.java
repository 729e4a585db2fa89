package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.io.SafeTensorsWriter;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.Arrays;

/** Writes tensors for tests. */
final class InputFile implements AutoCloseable {
  private final Arena arena = Arena.ofConfined();
  private final SafeTensorsWriter writer = new SafeTensorsWriter();

  /** q, k, v and do. */
  static Path write(Path file, AttentionShape shape, CheckData data, DType dtype)
      throws IOException {
    long queryRows = (long) shape.batch() * shape.heads();
    long keyRows = (long) shape.batch() * shape.keyValueHeads();
    long n = shape.tokens();
    try (var files = new InputFile()) {
      return files
          .add("q", dtype, data.q(), queryRows, n, shape.keyDim())
          .add("k", dtype, data.k(), keyRows, n, shape.keyDim())
          .add("v", dtype, data.v(), keyRows, n, shape.valueDim())
          .add("do", dtype, data.dO(), queryRows, n, shape.valueDim())
          .write(file);
    }
  }

  InputFile add(String name, DType dtype, float[] values, long... shape) {
    MemorySegment data = arena.allocate((long) values.length * dtype.bytes(), 8);
    dtype.encode(values, 0, data, 0, values.length);
    return add(name, dtype.name(), data, shape);
  }

  InputFile zeros(String name, String dtype, int elementBytes, long... shape) {
    long bytes = Arrays.stream(shape).reduce(elementBytes, (x, y) -> x * y);
    return add(name, dtype, arena.allocate(bytes, 8), shape);
  }

  InputFile counts(long... counts) {
    MemorySegment data = arena.allocateFrom(ValueLayout.JAVA_LONG, counts);
    return add("count", "I64", data, counts.length);
  }

  InputFile metadata(String key, String value) {
    writer.metadata(key, value);
    return this;
  }

  private InputFile add(String name, String dtype, MemorySegment data, long... shape) {
    writer.add(name, dtype, Arrays.stream(shape).boxed().toList(), data);
    return this;
  }

  Path write(Path file) throws IOException {
    writer.write(file);
    return file;
  }

  @Override
  public void close() {
    arena.close();
  }
}
