package io.github.linattn.internal.cpu;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT_UNALIGNED;
import static java.lang.foreign.ValueLayout.JAVA_SHORT_UNALIGNED;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteOrder;
import jdk.incubator.vector.FloatVector;
import jdk.incubator.vector.ShortVector;

/**
 * Loads and stores once in every way that passes do, in memory of its own. When a tensor is closed
 * under a call, the JVM throws into the thread that reads it, wherever that is. Were it in the
 * initialiser of a class of the JDK, as when memory is read for the first time, this class would be
 * lost to the process.
 */
final class FirstAccess {
  private static final int BYTES = 1024; // more than the longest vector

  private FirstAccess() {}

  static void byElements() {
    try (Arena own = Arena.ofShared()) {
      MemorySegment memory = own.allocate(BYTES);
      memory.set(JAVA_FLOAT_UNALIGNED, 0, memory.get(JAVA_FLOAT_UNALIGNED, 0));
      memory.set(JAVA_SHORT_UNALIGNED, 0, memory.get(JAVA_SHORT_UNALIGNED, 0));
      MemorySegment.copy(memory, 0, memory, 4, 4);
      memory.fill((byte) 0);
    }
  }

  /** A class of its own, since the incubator module may not be there. */
  static final class ByVectors {
    private ByVectors() {}

    static void make() {
      try (Arena own = Arena.ofShared()) {
        MemorySegment memory = own.allocate(BYTES);
        ByteOrder order = ByteOrder.nativeOrder();
        FloatVector.fromMemorySegment(FloatVector.SPECIES_PREFERRED, memory, 0, order)
            .intoMemorySegment(memory, 0, order);
        ShortVector.fromMemorySegment(ShortVector.SPECIES_PREFERRED, memory, 0, order)
            .intoMemorySegment(memory, 0, order);
      }
    }
  }
}
