package io.github.linattn;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.junit.jupiter.api.Test;

/**
 * Breaks when a view addresses other elements than it says, or memory is freed by the wrong one.
 */
final class TensorTest {

  /** Elements 0, 1, 2, ... */
  private static Tensor counting(long... extents) {
    TensorShape shape = TensorShape.of(extents);
    float[] values = new float[Math.toIntExact(shape.elements())];
    for (int i = 0; i < values.length; i++) {
      values[i] = i;
    }
    return Tensor.copyOf(values, shape);
  }

  private static float at(Tensor tensor, long... index) {
    long offset = 0;
    for (int axis = 0; axis < index.length; axis++) {
      offset += index[axis] * tensor.stride(axis);
    }
    return tensor.segment().getAtIndex(ValueLayout.JAVA_FLOAT, offset);
  }

  @Test
  void isRowMajorAndZeroAtFirst() {
    try (Tensor tensor = Tensor.allocate(DType.F32, TensorShape.of(2, 3, 4))) {
      assertThat(tensor.stride(0)).isEqualTo(12);
      assertThat(tensor.stride(1)).isEqualTo(4);
      assertThat(tensor.stride(2)).isEqualTo(1);
      assertThat(tensor.byteSpan()).isEqualTo(96);
      assertThat(tensor.isContiguous()).isTrue();
      assertThat(tensor.memoryKind()).isEqualTo(MemoryKind.HOST);
      assertThat(tensor.device()).isEqualTo(-1);
      assertThat(tensor.toFloats()).containsOnly(0f);
      assertThat(tensor).hasToString("F32[2, 3, 4]");
    }
  }

  @Test
  void permutedSlicedAndReshapedViewsShareTheElements() {
    try (Tensor tensor = counting(2, 3, 4)) {
      Tensor permuted = tensor.permuted(2, 0, 1);
      assertThat(permuted.shape()).isEqualTo(TensorShape.of(4, 2, 3));
      assertThat(permuted.isContiguous()).isFalse();
      assertThatThrownBy(permuted::toFloats)
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessage(
              "toFloats needs a tensor that lies row-major without gaps; this view of F32[4, 2, 3]"
                  + " does not: take the tensor that it is a view of");
      assertThat(at(permuted, 3, 1, 2)).isEqualTo(at(tensor, 1, 2, 3)).isEqualTo(23);

      Tensor sliced = tensor.sliced(1, 1, 2);
      assertThat(sliced.shape()).isEqualTo(TensorShape.of(2, 2, 4));
      assertThat(at(sliced, 1, 0, 3)).isEqualTo(at(tensor, 1, 1, 3));
      assertThat(sliced.isContiguous()).isFalse();
      assertThat(sliced.byteSpan()).isEqualTo((12 + 8) * 4L);

      Tensor both = tensor.permuted(1, 0, 2).sliced(0, 2, 1).sliced(2, 1, 2);
      assertThat(at(both, 0, 1, 1)).isEqualTo(at(tensor, 1, 2, 2));

      Tensor reshaped = tensor.sliced(0, 1, 1).reshaped(TensorShape.of(6, 2));
      assertThat(at(reshaped, 5, 1)).isEqualTo(23);
      reshaped.copyFrom(new float[12]);
      assertThat(at(tensor, 1, 0, 0)).isZero();
      assertThat(at(tensor, 0, 2, 3)).isEqualTo(11);
    }
  }

  @Test
  void aViewOfOneEntryPerAxisIsContiguousWhateverItsStrides() {
    try (Tensor tensor = counting(2, 3, 4)) {
      assertThat(tensor.sliced(1, 1, 1).sliced(0, 1, 1).isContiguous()).isTrue();
      assertThat(tensor.sliced(1, 1, 1).sliced(0, 1, 1).toFloats()).containsExactly(16, 17, 18, 19);
    }
  }

  @Test
  void closingAViewKeepsTheTensorAndClosingTheTensorEndsTheView() {
    Tensor tensor = counting(4);
    Tensor view = tensor.sliced(0, 1, 2);
    view.close();
    assertThat(view.toFloats()).containsExactly(1, 2);
    tensor.close();
    tensor.close();
    assertThatThrownBy(view::toFloats)
        .isInstanceOf(IllegalStateException.class)
        .hasMessageContaining("HOST memory of 16 bytes behind this tensor is closed")
        .hasRootCauseMessage("closed here");
    assertThatThrownBy(tensor::segment).isInstanceOf(IllegalStateException.class);
  }

  @Test
  void wrappedMemoryIsUsedInPlaceAndStaysTheCallers() {
    try (Arena arena = Arena.ofShared()) {
      MemorySegment memory = arena.allocate(64, 4);
      Tensor tensor = Tensor.wrap(memory, DType.F32, TensorShape.of(2, 4));
      tensor.copyFrom(new float[] {1, 2, 3, 4, 5, 6, 7, 8});
      assertThat(memory.getAtIndex(ValueLayout.JAVA_FLOAT, 7)).isEqualTo(8);
      memory.setAtIndex(ValueLayout.JAVA_FLOAT, 0, 42);
      assertThat(tensor.toFloats()[0]).isEqualTo(42);
      tensor.close();
      assertThat(memory.getAtIndex(ValueLayout.JAVA_FLOAT, 0)).isEqualTo(42);
    }
  }

  @Test
  void memoryOfAClosedArenaIsNamedAsSuch() {
    Arena confined = Arena.ofConfined();
    MemorySegment memory = confined.allocate(16, 4);
    confined.close();
    assertThatThrownBy(() -> Tensor.wrap(memory, DType.F32, TensorShape.of(4)))
        .isInstanceOf(IllegalArgumentException.class)
        .hasMessage("the segment is of an arena that is closed");
    try (Tensor tensor = counting(4)) {
      assertThatThrownBy(() -> tensor.copyFrom(memory))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessage("the segment is of an arena that is closed");
      assertThatThrownBy(() -> tensor.copyTo(memory))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessage("the segment is of an arena that is closed");
    }
  }

  @Test
  void directBuffersWrapWithoutACopy() {
    ByteBuffer buffer = ByteBuffer.allocateDirect(16).order(ByteOrder.nativeOrder());
    try (Tensor tensor =
        Tensor.wrap(MemorySegment.ofBuffer(buffer), DType.F32, TensorShape.of(4))) {
      tensor.copyFrom(new float[] {1, 2, 3, 4});
      assertThat(buffer.getFloat(12)).isEqualTo(4);
    }
  }

  @Test
  void sixteenBitTensorsRoundWhatIsCopiedIn() {
    for (DType dtype : new DType[] {DType.BF16, DType.F16}) {
      try (Tensor tensor = Tensor.allocate(dtype, TensorShape.of(2))) {
        tensor.copyFrom(new float[] {1 / 3f, -2});
        assertThat(tensor.toFloats()).containsExactly(dtype.round(1 / 3f), -2);
        assertThat(tensor.byteSpan()).isEqualTo(4);
      }
    }
  }

  @Test
  void copiesOfBytesComeBack() {
    try (Tensor tensor = counting(3)) {
      float[] out = new float[3];
      tensor.copyTo(MemorySegment.ofArray(out));
      assertThat(out).containsExactly(0, 1, 2);
      tensor.copyFrom(MemorySegment.ofArray(new float[] {7, 8, 9}));
      assertThat(tensor.toFloats()).containsExactly(7, 8, 9);
    }
  }
}
