package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Event;
import io.github.linattn.Forward;
import io.github.linattn.LinearAttention;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import io.github.linattn.test.harness.GpuTest;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.function.Function;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/**
 * The GPU would read memory that it can't reach, or a tensor would be used on the wrong backend.
 */
@GpuTest
final class GpuReachTest {
  private static final AttentionShape SHAPE = AttentionShape.of(1, 2, 70, 64);
  private static final TensorShape EXTENTS = SHAPE.q();

  private final Backend gpu = Backend.cuda(0);

  @AfterEach
  void close() {
    gpu.close();
  }

  @Test
  void pageableMemoryIsRefusedWithTheCure() {
    try (Tensor host = Tensor.allocate(DType.F32, EXTENTS);
        Tensor device = gpu.allocate(DType.F32, EXTENTS)) {
      LinearAttention attention = LinearAttention.builder().on(gpu);
      assertThatThrownBy(() -> attention.forward(device, host, device))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("k (F32[1, 2, 70, 64]) is pageable host memory")
          .hasMessageContaining("or pin it");
    }
  }

  @Test
  void deviceMemoryIsRefusedByTheCpu() {
    try (Backend cpu = Backend.cpu(1);
        Tensor device = gpu.allocate(DType.F32, EXTENTS)) {
      LinearAttention attention = LinearAttention.builder().on(cpu);
      assertThatThrownBy(() -> attention.forward(device, device, device))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("lives on GPU 0, out of reach of the cpu backend");
    }
  }

  @Test
  void gapsAndWrongAlignmentAreRefused() {
    try (Tensor wide = gpu.allocate(DType.F32, TensorShape.of(1, 2, 70, 66))) {
      LinearAttention attention = LinearAttention.builder().on(gpu);
      Tensor gaps = wide.sliced(3, 0, 64);
      assertThatThrownBy(() -> attention.forward(gaps, gaps, gaps))
          .isInstanceOf(UnsupportedOperationException.class)
          .hasMessageContaining("q with a stride along axis 2 that is no multiple of 16 bytes");
      long address = wide.segment().address() + Float.BYTES;
      try (Tensor shifted = gpu.wrapDeviceMemory(address, DType.F32, EXTENTS)) {
        assertThatThrownBy(() -> attention.forward(shifted, shifted, shifted))
            .isInstanceOf(UnsupportedOperationException.class)
            .hasMessageContaining("does not start at a multiple of 16 bytes");
      }
    }
  }

  @Test
  void anotherBackendsStreamIsRefused() {
    try (Backend cpu = Backend.cpu(1);
        Stream stream = cpu.newStream()) {
      assertThatThrownBy(() -> LinearAttention.builder().on(gpu, stream))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("the stream belongs to another backend than cuda:0");
    }
  }

  @Test
  void anAddressThatIsNoDeviceMemoryIsRefused() {
    try (Arena arena = Arena.ofConfined()) {
      long address = arena.allocate(4096).address();
      assertThatThrownBy(() -> gpu.wrapDeviceMemory(address, DType.F32, TensorShape.of(16)))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("is no memory of cuda:0");
    }
  }

  @Test
  void resultsInPinnedMemoryAreWaitedFor() {
    AttentionShape longer = AttentionShape.of(1, 2, 20_000, 64);
    try (Tensor x = gpu.allocate(DType.F32, longer.q());
        Tensor o = gpu.allocatePinned(DType.F32, longer.output());
        Tensor g = gpu.allocatePinned(DType.F32, longer.normalizer())) {
      x.copyFrom(values(x.shape()));
      LinearAttention attention = LinearAttention.builder().normalizeQueriesAndKeys(true).on(gpu);
      attention.forwardInto(x, x, x, o, g);
      float[] atOnce = o.toFloats();
      attention.synchronize();
      assertThat(atOnce).isEqualTo(o.toFloats());
      try (Forward y = attention.forward(x, x, x)) {
        assertThat(atOnce).isEqualTo(y.output().toFloats());
        assertThat(y.smallestNormalizers()).hasSize(2).doesNotContain(0f);
      }
    }
  }

  @Test
  void streamsCopyInOrderAndEventsMeasure() {
    float[] values = values(EXTENTS);
    try (Stream first = gpu.newStream();
        Stream second = gpu.newStream();
        Tensor source = gpu.allocatePinned(DType.F32, EXTENTS);
        Tensor device = gpu.allocate(DType.F32, EXTENTS);
        Tensor target = gpu.allocatePinned(DType.F32, EXTENTS)) {
      source.copyFrom(values);
      try (Event start = first.record()) {
        first.copy(source, device);
        try (Event copied = first.record()) {
          second.waitFor(copied);
          second.copy(device, target);
          second.synchronize();
          assertThat(target.toFloats()).isEqualTo(values);
          assertThat(copied.millisSince(start)).isBetween(0.0, 10_000.0);
        }
      }
    }
  }

  @Test
  void moreMemoryThanThereIsSaysHowMuch() {
    assertThatThrownBy(() -> gpu.allocate(DType.F32, TensorShape.of(1L << 42)))
        .isInstanceOf(io.github.linattn.cuda.CudaOutOfMemoryException.class)
        .hasMessageContaining(Long.toString(1L << 44));
  }

  @Test
  void everyReachableKindOfMemoryGivesTheSameBits() {
    float[] expected = forward(values -> copied(gpu.allocate(DType.F32, EXTENTS), values));
    float[] pinned = forward(values -> copied(gpu.allocatePinned(DType.F32, EXTENTS), values));
    assertThat(pinned).isEqualTo(expected);
    try (Arena arena = Arena.ofShared()) {
      float[] inPlace =
          forward(
              values -> {
                MemorySegment memory = arena.allocate(EXTENTS.elements() * Float.BYTES, 4096);
                return copied(gpu.pin(memory, DType.F32, EXTENTS), values);
              });
      assertThat(inPlace).isEqualTo(expected);
    }
  }

  private static Tensor copied(Tensor tensor, float[] values) {
    tensor.copyFrom(values);
    return tensor;
  }

  private float[] forward(Function<float[], Tensor> operand) {
    float[] values = values(EXTENTS);
    try (Tensor x = operand.apply(values);
        Forward y =
            LinearAttention.builder().normalizeQueriesAndKeys(true).on(gpu).forward(x, x, x)) {
      return y.output().toFloats();
    }
  }

  private static float[] values(TensorShape shape) {
    float[] values = new float[Math.toIntExact(shape.elements())];
    for (int i = 0; i < values.length; i++) {
      values[i] = (i * 31 % 101 - 50) / 100f;
    }
    return values;
  }
}
