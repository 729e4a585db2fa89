package io.github.linattn.internal.cpu;

import static io.github.linattn.internal.cpu.VectorRows.LANES;
import static io.github.linattn.internal.cpu.VectorRows.NATIVE;
import static io.github.linattn.internal.cpu.VectorRows.SPECIES;

import java.lang.foreign.MemorySegment;
import jdk.incubator.vector.FloatVector;
import jdk.incubator.vector.IntVector;
import jdk.incubator.vector.ShortVector;
import jdk.incubator.vector.VectorMask;
import jdk.incubator.vector.VectorOperators;
import jdk.incubator.vector.VectorShape;
import jdk.incubator.vector.VectorSpecies;

/** Between fp32 and bf16 with the Vector API, a multiple of its lanes at a time. */
final class VectorConversions {
  private static final VectorSpecies<Integer> INTS = SPECIES.withLanes(int.class);
  private static final VectorSpecies<Short> SHORTS =
      VectorSpecies.of(short.class, VectorShape.forBitSize(SPECIES.vectorBitSize() / 2));

  /** Bits of fp32. */
  private static final int INFINITY = 0x7f80_0000;

  /** Of a NaN; rounding could turn another into an infinity. */
  private static final int QUIET = 0x40_0000;

  private VectorConversions() {}

  static void widen(int count, MemorySegment source, long from, MemorySegment target, long to) {
    for (int i = 0; i < count; i += LANES) {
      long at = from + (long) i * Short.BYTES;
      ShortVector halves = ShortVector.fromMemorySegment(SHORTS, source, at, NATIVE);
      IntVector bits = (IntVector) halves.convertShape(VectorOperators.ZERO_EXTEND_S2I, INTS, 0);
      bits.lanewise(VectorOperators.LSHL, Short.SIZE)
          .reinterpretAsFloats()
          .intoMemorySegment(target, to + (long) i * Float.BYTES, NATIVE);
    }
  }

  /** As {@link io.github.linattn.DType#encode} rounds. */
  static void narrow(int count, MemorySegment source, long from, MemorySegment target, long to) {
    for (int i = 0; i < count; i += LANES) {
      long at = from + (long) i * Float.BYTES;
      IntVector bits =
          FloatVector.fromMemorySegment(SPECIES, source, at, NATIVE).reinterpretAsInts();
      IntVector odd = bits.lanewise(VectorOperators.LSHR, Short.SIZE).and(1);
      IntVector rounded = bits.add(odd).add(0x7fff);
      VectorMask<Integer> nan = bits.and(Integer.MAX_VALUE).compare(VectorOperators.GT, INFINITY);
      rounded = rounded.blend(bits.or(QUIET), nan).lanewise(VectorOperators.LSHR, Short.SIZE);
      ShortVector halves = (ShortVector) rounded.convertShape(VectorOperators.I2S, SHORTS, 0);
      halves.intoMemorySegment(target, to + (long) i * Short.BYTES, NATIVE);
    }
  }
}
