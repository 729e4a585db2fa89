package io.github.linattn.test.harness;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;

/**
 * Memory of a backend with canaries before and after it. Starts filled with bytes of ones, which is
 * NaN in every type: what a call forgets to write, and what it reads without having written, shows.
 */
public final class Buffer implements AutoCloseable {
  private static final int GUARD = 64; // elements, so that the payload keeps its alignment
  private static final byte CANARY = (byte) 0xA5;
  private static final byte POISON = (byte) 0xFF;

  private final String name;
  private final Tensor whole;
  private final Tensor tensor;
  private final int guardBytes;
  private final int payloadBytes;

  public Buffer(String name, Backend backend, DType dtype, TensorShape shape) {
    this.name = name;
    this.guardBytes = GUARD * dtype.bytes();
    this.payloadBytes = Math.toIntExact(shape.elements() * dtype.bytes());
    this.whole = backend.allocate(dtype, TensorShape.of(shape.elements() + 2 * GUARD));
    this.tensor = whole.sliced(0, GUARD, shape.elements()).reshaped(shape);
    byte[] bytes = new byte[payloadBytes + 2 * guardBytes];
    Arrays.fill(bytes, CANARY);
    Arrays.fill(bytes, guardBytes, guardBytes + payloadBytes, POISON);
    whole.copyFrom(MemorySegment.ofArray(bytes));
  }

  /** The payload, row-major. */
  public Tensor tensor() {
    return tensor;
  }

  /** Every byte of the payload; asserts that the canaries live. */
  public byte[] bytes() {
    byte[] bytes = new byte[payloadBytes + 2 * guardBytes];
    whole.copyTo(MemorySegment.ofArray(bytes));
    for (int i = 0; i < guardBytes; i++) {
      assertThat(bytes[i]).as("canary %d bytes before %s", guardBytes - i, name).isEqualTo(CANARY);
      int after = guardBytes + payloadBytes + i;
      assertThat(bytes[after]).as("canary %d bytes after %s", i, name).isEqualTo(CANARY);
    }
    return Arrays.copyOfRange(bytes, guardBytes, guardBytes + payloadBytes);
  }

  /** The name that failure messages use. */
  @Override
  public String toString() {
    return name;
  }

  @Override
  public void close() {
    whole.close();
  }
}
