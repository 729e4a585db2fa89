package io.github.linattn.test.harness;

import java.util.SplittableRandom;

/** Random numbers that a failure message lets anybody draw again. */
public final class Seeds {
  private static final long BASE = Long.getLong("linattn.seed", 20251L);

  private Seeds() {}

  /** A generator of its own for everything that has a name. */
  public static SplittableRandom random(String name) {
    return new SplittableRandom(BASE * 1_000_003L + name.hashCode());
  }

  /** How to repeat what failed, for the end of a failure message. */
  public static String replay() {
    return " (replay with -Dlinattn.seed=" + BASE + ")";
  }
}
