package io.github.linattn.internal.cuda;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.Arena;
import java.util.random.RandomGenerator;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** The product that kernels take for a quotient, of numbers around every step of it. */
final class DivisorTest {

  @Test
  void productsAreTheQuotients() {
    RandomGenerator random = RandomGenerator.of("L64X128MixRandom");
    IntStream small = IntStream.rangeClosed(1, 300);
    IntStream aroundPowers =
        IntStream.range(2, 31).flatMap(i -> IntStream.rangeClosed((1 << i) - 1, (1 << i) + 1));
    IntStream drawn = random.ints(1000, 1, Integer.MAX_VALUE);
    try (Arena arena = Arena.ofConfined()) {
      Arguments struct = Arguments.allocate(arena, ChunkedStructs.CHUNKED);
      IntStream.concat(IntStream.concat(small, aroundPowers), drawn)
          .forEach(
              value -> {
                struct.setDivisor("heads", value);
                assertThat(member(struct, 0)).isEqualTo(value);
                int last = Integer.MAX_VALUE / value;
                for (int steps : new int[] {0, 1, 2, last / 2, last - 1, last}) {
                  for (long n = (long) steps * value - 1; n <= (long) steps * value + 1; n++) {
                    if (n >= 0 && n <= Integer.MAX_VALUE) {
                      assertThat(quotient(struct, n)).as("%d / %d", n, value).isEqualTo(n / value);
                    }
                  }
                }
                assertThat(quotient(struct, Integer.MAX_VALUE)).isEqualTo(last);
              });
    }
  }

  /** As {@code linattn::Divisor} computes it. */
  private static long quotient(Arguments struct, long n) {
    return 2 * n * Integer.toUnsignedLong(member(struct, 4)) >>> 32 >>> member(struct, 8);
  }

  private static int member(Arguments struct, int offset) {
    return struct.memory().get(JAVA_INT, struct.offset("heads") + offset);
  }
}
