package io.github.linattn;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import org.assertj.core.api.ThrowableAssert.ThrowingCallable;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.EnumSource.Mode;

/**
 * Breaks when a conversion of a 16-bit type is wrong for any of its 65,536 values, or rounds
 * another way than to nearest with ties to even. The definition here works on the numbers, not on
 * bits.
 */
final class DTypeTest {
  private static final int VALUES = 1 << 16;

  /** Width of the exponent and of the fraction. */
  private static int exponentBits(DType dtype) {
    return dtype == DType.BF16 ? 8 : 5;
  }

  private static int fractionBits(DType dtype) {
    return 15 - exponentBits(dtype);
  }

  /** IEEE 754's definition of the number that these bits stand for. */
  private static double valueOf(DType dtype, int bits) {
    int exponentBits = exponentBits(dtype);
    int fractionBits = fractionBits(dtype);
    double sign = (bits & 0x8000) == 0 ? 1 : -1;
    int exponent = (bits & 0x7fff) >> fractionBits;
    int fraction = bits & ((1 << fractionBits) - 1);
    int bias = (1 << (exponentBits - 1)) - 1;
    if (exponent == (1 << exponentBits) - 1) {
      return fraction == 0 ? sign * Double.POSITIVE_INFINITY : Double.NaN;
    }
    double significand = fraction * Math.pow(2, -fractionBits) + (exponent == 0 ? 0 : 1);
    return sign * significand * Math.pow(2, Math.max(exponent, 1) - bias);
  }

  private static float[] decodeAll(DType dtype) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment bits = arena.allocate(VALUES * 2L, 2);
      for (int i = 0; i < VALUES; i++) {
        bits.setAtIndex(ValueLayout.JAVA_SHORT, i, (short) i);
      }
      float[] values = new float[VALUES];
      dtype.decode(bits, 0, values, 0, VALUES);
      return values;
    }
  }

  private static short[] encode(DType dtype, float... values) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment bits = arena.allocate(values.length * 2L, 2);
      dtype.encode(values, 0, bits, 0, values.length);
      return bits.toArray(ValueLayout.JAVA_SHORT);
    }
  }

  @ParameterizedTest
  @EnumSource(mode = Mode.EXCLUDE, names = "F32")
  void everyValueDecodesExactly(DType dtype) {
    float[] values = decodeAll(dtype);
    for (int i = 0; i < VALUES; i++) {
      double expected = valueOf(dtype, i);
      if (Double.isNaN(expected)) {
        assertThat(values[i]).as("0x%04x", i).isNaN();
      } else {
        // compares -0 and 0 as different
        assertThat(Double.compare(values[i], expected)).as("0x%04x: %s", i, values[i]).isZero();
      }
    }
  }

  @ParameterizedTest
  @EnumSource(mode = Mode.EXCLUDE, names = "F32")
  void everyValueComesBackAndNaNStaysQuiet(DType dtype) {
    float[] values = decodeAll(dtype);
    short[] bits = encode(dtype, values);
    int quiet = 1 << (fractionBits(dtype) - 1);
    for (int i = 0; i < VALUES; i++) {
      if (Float.isNaN(values[i])) {
        assertThat(valueOf(dtype, bits[i] & 0xffff)).as("0x%04x", i).isNaN();
        assertThat(bits[i] & quiet).as("quiet bit of 0x%04x", i).isNotZero();
      } else {
        assertThat(bits[i] & 0xffff).as("0x%04x", i).isEqualTo(i);
      }
    }
  }

  /** The middle of two neighbours goes to the even one, and what is beside it to the nearer one. */
  @ParameterizedTest
  @EnumSource(mode = Mode.EXCLUDE, names = "F32")
  void everyTieGoesToTheEvenNeighbour(DType dtype) {
    int infinity = ((1 << exponentBits(dtype)) - 1) << fractionBits(dtype);
    for (int sign = 0; sign <= 0x8000; sign += 0x8000) {
      for (int i = 0; i < infinity - 1; i++) {
        float low = (float) valueOf(dtype, sign | i);
        float high = (float) valueOf(dtype, sign | (i + 1));
        float middle = (float) (((double) low + high) / 2); // exact: fp32 has bits to spare
        short[] bits =
            encode(
                dtype,
                middle,
                middle == 0 ? middle : towards(middle, low),
                middle == 0 ? middle : towards(middle, high));
        int even = (i & 1) == 0 ? i : i + 1;
        if (dtype == DType.F16 || i > 0) { // half of the least bf16 is below the step of fp32
          assertThat(bits[0] & 0xffff).as("tie above 0x%04x", sign | i).isEqualTo(sign | even);
          assertThat(bits[1] & 0xffff).as("below the tie of 0x%04x", i).isEqualTo(sign | i);
          assertThat(bits[2] & 0xffff).as("above the tie of 0x%04x", i).isEqualTo(sign | (i + 1));
        }
      }
    }
  }

  private static float towards(float from, float to) {
    return Math.nextAfter(from, (double) to);
  }

  @ParameterizedTest
  @EnumSource(mode = Mode.EXCLUDE, names = "F32")
  void whatIsTooLargeBecomesInfinity(DType dtype) {
    int infinity = ((1 << exponentBits(dtype)) - 1) << fractionBits(dtype);
    double largest = valueOf(dtype, infinity - 1);
    double step = largest - valueOf(dtype, infinity - 2);
    float tie = (float) (largest + step / 2);
    assertThat(dtype.round(Math.nextDown(tie))).isEqualTo((float) largest);
    assertThat(dtype.round(tie)).isEqualTo(Float.POSITIVE_INFINITY);
    assertThat(dtype.round(-tie)).isEqualTo(Float.NEGATIVE_INFINITY);
    assertThat(dtype.round(Float.POSITIVE_INFINITY)).isEqualTo(Float.POSITIVE_INFINITY);
    assertThat(dtype.round(Float.NaN)).isNaN();
    // A NaN whose payload lies in the lower half must not become an infinity.
    assertThat(dtype.round(Float.intBitsToFloat(0x7f800001))).isNaN();
    assertThat(dtype.round(Float.intBitsToFloat(0xff80_0001))).isNaN();
    assertThat(dtype.round(Float.intBitsToFloat(0x7fff_ffff))).isNaN();
  }

  /** Any float goes to the neighbour of least distance, found by search among all values. */
  @ParameterizedTest
  @EnumSource(mode = Mode.EXCLUDE, names = "F32")
  void drawnFloatsGoToTheNearestValue(DType dtype) {
    float[] sorted = decodeAll(dtype);
    int count = 0;
    for (float value : sorted) {
      if (!Float.isNaN(value) && !Float.isInfinite(value)) {
        sorted[count++] = value;
      }
    }
    sorted = Arrays.copyOf(sorted, count);
    Arrays.sort(sorted);
    SplittableRandom random = new SplittableRandom(7);
    for (int i = 0; i < 200_000; i++) {
      float value = Float.intBitsToFloat(random.nextInt());
      if (Float.isNaN(value) || Math.abs(value) > sorted[count - 1]) {
        continue;
      }
      double got = dtype.round(value);
      int at = Arrays.binarySearch(sorted, value);
      int above = at >= 0 ? at : -at - 1;
      double nearest = Math.abs(sorted[Math.min(above, count - 1)] - (double) value);
      if (above > 0) {
        nearest = Math.min(nearest, Math.abs(sorted[above - 1] - (double) value));
      }
      assertThat(Math.abs(got - value)).as("%s became %s", value, got).isEqualTo(nearest);
    }
  }

  @Test
  void fp32IsKeptAsItIs() {
    float[] values = {0f, -0f, 1f, Float.MIN_VALUE, Float.NaN, Float.NEGATIVE_INFINITY};
    for (float value : values) {
      int bits = Float.floatToRawIntBits(DType.F32.round(value));
      assertThat(bits).as("%s", value).isEqualTo(Float.floatToRawIntBits(value));
    }
    assertThat(DType.F32.bytes()).isEqualTo(4);
    assertThat(DType.BF16.bytes()).isEqualTo(2);
    assertThat(DType.F16.bytes()).isEqualTo(2);
  }

  @ParameterizedTest
  @EnumSource
  void partsOfArraysAndUnalignedMemoryConvert(DType dtype) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment memory = arena.allocate(8L * dtype.bytes() + 1).asSlice(1);
      dtype.encode(new float[] {9, 1, 2, 3, 9}, 1, memory, 2, 3);
      float[] read = new float[5];
      dtype.decode(memory, 2, read, 1, 3);
      assertThat(read).containsExactly(0, 1, 2, 3, 0);
      assertThatThrownBy(() -> dtype.encode(new float[8], 0, memory, 1, 8))
          .isInstanceOf(IndexOutOfBoundsException.class);
      assertThatThrownBy(() -> dtype.decode(memory, 1, new float[8], 0, 8))
          .isInstanceOf(IndexOutOfBoundsException.class);
    }
  }

  @ParameterizedTest
  @EnumSource
  void aRangeThatIsNoneIsRefusedBeforeAnythingIsWritten(DType dtype) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment memory = arena.allocate(8L * dtype.bytes());
      float[] ones = {1, 1, 1, 1, 1, 1, 1, 1};
      List<ThrowingCallable> wrong =
          List.of(
              () -> dtype.encode(ones, 0, memory, 0, -1),
              () -> dtype.encode(ones, 1, memory, 0, 8),
              () -> dtype.encode(ones, 0, memory, 1, 8),
              () -> dtype.encode(ones, 0, memory, 1L << 62, 1),
              () -> dtype.decode(memory, 0, ones, 0, -1),
              () -> dtype.decode(memory, 1, ones, 0, 8),
              () -> dtype.decode(memory, 0, ones, 1, 8),
              () -> dtype.decode(memory, 1L << 62, ones, 0, 1));
      for (ThrowingCallable each : wrong) {
        assertThatThrownBy(each).isInstanceOf(IndexOutOfBoundsException.class);
      }
      assertThat(memory.toArray(ValueLayout.JAVA_BYTE)).containsOnly(0);
      assertThat(ones).containsOnly(1);
    }
  }
}
