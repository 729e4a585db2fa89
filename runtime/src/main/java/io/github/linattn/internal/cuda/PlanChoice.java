package io.github.linattn.internal.cuda;

import io.github.linattn.kernelgen.Technique;
import java.util.Arrays;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/**
 * A plan that is asked for by name, so that benchmarks can time what the planner did not choose.
 *
 * @param technique of the kernel of the forward, without causality of its outputs
 * @param segment tokens of a segment; 0 for whole sequences
 * @param turns blocks that take turns with the chunks of an item
 * @param order of the segments
 */
record PlanChoice(Technique technique, int segment, int turns, Order order) {
  /** How segments follow one another. */
  enum Order {
    /** All at once, from sums. */
    SUMMED(""),
    /** By blocks that go on where those of the segment before have stopped. */
    RELAY("+"),
    /** By one launch after the other, whose states are kept. */
    STAGES("/");

    private final String sign;

    Order(String sign) {
      this.sign = sign;
    }

    private static Order of(@Nullable String sign) {
      return Arrays.stream(values())
          .filter(order -> order.sign.equals(sign))
          .findFirst()
          .orElse(SUMMED);
    }
  }

  /**
   * Such as {@code mma}, {@code wgmma:2048}, {@code wgmma:2048*2}, {@code wgmma:2048+} or {@code
   * wgmma:2048/}; asked each time a forward is planned.
   */
  private static final String PROPERTY = "linattn.plan";

  private static final Pattern FORM = Pattern.compile("(\\w+)(?::(\\d+))?(?:\\*(\\d+)|([+/]))?");

  /**
   * Without causality: tokens of segments of the sums, or 0 for those the planner finds fastest.
   */
  int segmentOfTotals() {
    return order == Order.SUMMED && turns == 1 ? segment : 0;
  }

  /** What this process asks for, or empty. */
  static Optional<PlanChoice> asked() {
    return Optional.ofNullable(System.getProperty(PROPERTY)).map(PlanChoice::parse);
  }

  /** Reads what the property holds. */
  static PlanChoice parse(String text) {
    Matcher parts = FORM.matcher(text);
    if (!parts.matches()) {
      throw new IllegalArgumentException(
          "%s=%s: a plan is TECHNIQUE[:SEGMENT][*TURNS|+|/]".formatted(PROPERTY, text));
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
    Order order = Order.of(parts.group(4));
    if (order != Order.SUMMED && segment == 0) {
      throw new IllegalArgumentException(
          "%s=%s: a relay and stages have segments of so many tokens".formatted(PROPERTY, text));
    }
    return new PlanChoice(Technique.parse(parts.group(1)), segment, turns, order);
  }

  @Override
  public String toString() {
    return PROPERTY
        + "="
        + technique.id()
        + (segment == 0 ? "" : ":" + segment)
        + (turns == 1 ? "" : "*" + turns)
        + order.sign;
  }
}
