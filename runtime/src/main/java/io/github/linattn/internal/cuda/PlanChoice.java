package io.github.linattn.internal.cuda;

import io.github.linattn.kernelgen.Technique;
import java.util.Optional;

/**
 * A plan that is asked for by name, so that benchmarks can time what the planner did not choose.
 *
 * @param technique of the kernel of the forward
 * @param segment tokens of a segment; 0 for whole sequences
 */
record PlanChoice(Technique technique, int segment) {
  /** Such as {@code mma} or {@code wgmma:2048}; asked each time a forward is planned. */
  private static final String PROPERTY = "linattn.plan";

  /** What this process asks for, or empty. */
  static Optional<PlanChoice> asked() {
    return Optional.ofNullable(System.getProperty(PROPERTY)).map(PlanChoice::parse);
  }

  /** Reads what the property holds. */
  static PlanChoice parse(String text) {
    String[] parts = text.split(":", 2);
    int segment = parts.length == 1 ? 0 : Integer.parseInt(parts[1]);
    if (segment < 0 || segment % Planner.CHUNK != 0) {
      throw new IllegalArgumentException(
          "%s=%s: segments have a multiple of %d tokens".formatted(PROPERTY, text, Planner.CHUNK));
    }
    return new PlanChoice(Technique.parse(parts[0]), segment);
  }

  @Override
  public String toString() {
    return PROPERTY + "=" + technique.id() + (segment == 0 ? "" : ":" + segment);
  }
}
