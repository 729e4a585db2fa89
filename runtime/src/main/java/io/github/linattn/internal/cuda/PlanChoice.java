package io.github.linattn.internal.cuda;

import io.github.linattn.kernelgen.Technique;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A plan that is asked for by name, so that benchmarks can time what the planner did not choose.
 *
 * @param technique of the kernel of the forward
 * @param segment tokens of a segment; 0 for whole sequences
 * @param turns blocks that take turns with the chunks of an item
 * @param relay whether the blocks of a segment go on where those of the one before have stopped
 */
record PlanChoice(Technique technique, int segment, int turns, boolean relay) {
  /**
   * Such as {@code mma}, {@code wgmma:2048}, {@code wgmma:2048*2} or {@code wgmma:2048+}; asked
   * each time a forward is planned.
   */
  private static final String PROPERTY = "linattn.plan";

  private static final Pattern FORM = Pattern.compile("(\\w+)(?::(\\d+))?(?:\\*(\\d+)|(\\+))?");

  /** What this process asks for, or empty. */
  static Optional<PlanChoice> asked() {
    return Optional.ofNullable(System.getProperty(PROPERTY)).map(PlanChoice::parse);
  }

  /** Reads what the property holds. */
  static PlanChoice parse(String text) {
    Matcher parts = FORM.matcher(text);
    if (!parts.matches()) {
      throw new IllegalArgumentException(
          "%s=%s: a plan is TECHNIQUE[:SEGMENT][*TURNS|+]".formatted(PROPERTY, text));
    }
    int segment = parts.group(2) == null ? 0 : Integer.parseInt(parts.group(2));
    int turns = parts.group(3) == null ? 1 : Integer.parseInt(parts.group(3));
    if (segment % Planner.CHUNK != 0) {
      throw new IllegalArgumentException(
          "%s=%s: segments have a multiple of %d tokens".formatted(PROPERTY, text, Planner.CHUNK));
    }
    if (Integer.bitCount(turns) != 1) {
      throw new IllegalArgumentException(
          "%s=%s: the number of turns is a power of two".formatted(PROPERTY, text));
    }
    boolean relay = parts.group(4) != null;
    if (relay && segment == 0) {
      throw new IllegalArgumentException(
          "%s=%s: a relay has segments of so many tokens".formatted(PROPERTY, text));
    }
    return new PlanChoice(Technique.parse(parts.group(1)), segment, turns, relay);
  }

  @Override
  public String toString() {
    return PROPERTY
        + "="
        + technique.id()
        + (segment == 0 ? "" : ":" + segment)
        + (turns == 1 ? "" : "*" + turns)
        + (relay ? "+" : "");
  }
}
