package io.github.linattn.internal.cpu;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

final class UpcomingTest {
  private static final long LINE = 64;

  /** How often each line of memory was asked for, by its address. */
  private final Map<Long, Integer> asked = new HashMap<>();

  private void ask(long address, long rows, long distance, long bytes) {
    for (long row = 0; row < rows; row++) {
      for (long at = 0; at < bytes; at += LINE) {
        asked.merge(address + row * distance + at, 1, Integer::sum);
      }
    }
  }

  @ParameterizedTest
  @ValueSource(ints = {1, 2, 7, 16, 100, 10_000})
  void asksForEveryLineOnce(int times) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment dense = arena.allocate(1 << 16, LINE);
      MemorySegment strided = arena.allocate(1 << 16, LINE);
      MemorySegment unaligned = arena.allocate(1024, LINE);
      Upcoming upcoming = new Upcoming(this::ask);
      Map<Long, Integer> expected = new TreeMap<>();
      for (int pass = 1; pass <= 2; pass++) {
        upcoming.clear();
        upcoming.add(dense, 1024, 33, 320, 320);
        upcoming.add(strided, 256, 19, 1280, 192);
        upcoming.add(strided, 0, 0, 1280, 192);
        upcoming.add(unaligned, 4, 3, 128, 128);
        for (long at = 1024; at < 1024 + 33 * 320; at += LINE) {
          expected.put(dense.address() + at, pass);
        }
        for (long at = 0; at < 4 + 3 * 128; at += LINE) {
          expected.put(unaligned.address() + at, pass);
        }
        for (long row = 0; row < 19; row++) {
          for (long at = 0; at < 192; at += LINE) {
            expected.put(strided.address() + 256 + row * 1280 + at, pass);
          }
        }
        upcoming.divide(times);
        for (int i = 0; i < times; i++) {
          upcoming.ask();
        }
        upcoming.ask(); // of nothing that is left
      }
      assertThat(asked).containsExactlyInAnyOrderEntriesOf(expected);
    }
  }

  @ParameterizedTest
  @ValueSource(ints = {2, 4, 8, 16})
  void asksForEqualShares(int times) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment memory = arena.allocate(1 << 16, LINE);
      Upcoming upcoming = new Upcoming(this::ask);
      upcoming.add(memory, 0, 64, 256, 256);
      upcoming.add(memory, 1 << 15, 64, 256, 256);
      upcoming.divide(times);
      for (int i = 1; i <= times; i++) {
        upcoming.ask();
        assertThat(asked).hasSize(512 / times * i);
      }
    }
  }
}
