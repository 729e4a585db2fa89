package io.github.linattn.internal.cpu;

import java.util.NavigableMap;
import java.util.TreeMap;

/**
 * Where the first sweep had its centre, by the first token of each stretch with one centre. That of
 * a stretch is made of rows before it, or of its first row, so that all of its tokens see what it
 * is made of.
 */
final class Centers {
  private final NavigableMap<Integer, Center> byStart = new TreeMap<>();

  /** From {@code token} on, until another one is put. */
  void put(int token, Center center) {
    byStart.put(token, center);
  }

  void putAll(Centers others) {
    byStart.putAll(others.byStart);
  }

  Center at(int token) {
    return byStart.floorEntry(token).getValue();
  }

  /** First token of the stretch with {@code token} in it. */
  int stretchStart(int token) {
    return byStart.floorKey(token);
  }

  /** One past the last token of the stretch, or {@code end} if that comes first. */
  int stretchEnd(int token, int end) {
    Integer next = byStart.higherKey(token);
    return next == null ? end : Math.min(next, end);
  }
}
