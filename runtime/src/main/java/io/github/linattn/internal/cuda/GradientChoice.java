package io.github.linattn.internal.cuda;

import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.cuda.GradientPlan.Kind;
import io.github.linattn.kernelgen.Technique;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A plan of a backward that is asked for by name, as {@link PlanChoice} is of a forward.
 *
 * @param kind of the causal plan
 * @param technique of the kernels of the sweeps, without causality of the outputs
 * @param segment tokens of a segment; 0 for whole sequences
 * @param querySegment the same of dq, where the sweeps have segments
 */
record GradientChoice(Kind kind, Technique technique, int segment, int querySegment) {
  /**
   * Such as {@code mma}, {@code wgmma:2048}, {@code wgmma:2048:4096}, of which the second is of dq,
   * 0 for whole sequences, {@code wgmma:2048+}, whose blocks hand states on, {@code one_sweep},
   * {@code one_sweep:2048+}, likewise, {@code one_sweep:2048*}, all segments at once, or {@code
   * one_sweep:2048}, which is a chain; asked each time a backward is planned, and a forward that
   * keeps states for it.
   */
  private static final String PROPERTY = "linattn.gradient.plan";

  private static final String ONE_SWEEP = "one_sweep";

  private static final Pattern FORM = Pattern.compile("(\\w+)(?::(\\d+)([+*]|:(\\d+))?)?");

  /** With one length of segments for all gradients. */
  GradientChoice(Kind kind, Technique technique, int segment) {
    this(kind, technique, segment, segment);
  }

  /** What this process asks for, or empty. */
  static Optional<GradientChoice> asked() {
    return Optional.ofNullable(System.getProperty(PROPERTY)).map(GradientChoice::parse);
  }

  /**
   * Without causality: tokens of segments of the sums, or 0 for those the planner finds fastest.
   */
  int segmentOfTotals() {
    return kind == Kind.SEGMENTED && querySegment == segment ? segment : 0;
  }

  /** What a chain needs of the forward. */
  Checkpoints.Form form() {
    return Checkpoints.Form.ofChain(segment);
  }

  /** Reads what the property holds. */
  static GradientChoice parse(String text) {
    Matcher parts = FORM.matcher(text);
    if (!parts.matches()) {
      throw new IllegalArgumentException(
          "%s=%s: a plan is TECHNIQUE[:SEGMENT[+ or :SEGMENT OF DQ]] or %s[:SEGMENT[+ or *]]"
              .formatted(PROPERTY, text, ONE_SWEEP));
    }
    int segment = parts.group(2) == null ? 0 : Integer.parseInt(parts.group(2));
    int ofQuery = parts.group(4) == null ? segment : Integer.parseInt(parts.group(4));
    if (segment % Planner.CHUNK != 0 || ofQuery % Planner.CHUNK != 0) {
      throw new IllegalArgumentException(
          "%s=%s: segments have a multiple of %d tokens".formatted(PROPERTY, text, Planner.CHUNK));
    }
    boolean handsOn = "+".equals(parts.group(3));
    boolean atOnce = "*".equals(parts.group(3));
    if (parts.group(4) != null && (segment == 0 || parts.group(1).equals(ONE_SWEEP))) {
      throw new IllegalArgumentException(
          "%s=%s: dq has segments of its own beside segments of dk and dv, of two sweeps"
              .formatted(PROPERTY, text));
    }
    if (parts.group(1).equals(ONE_SWEEP)) {
      Kind ofSegments = atOnce ? Kind.SWEPT_SEGMENTS : Kind.CHAIN;
      Kind kind = segment == 0 || handsOn ? Kind.ONE_SWEEP : ofSegments;
      return new GradientChoice(kind, Technique.WGMMA, segment);
    }
    if (atOnce) {
      throw new IllegalArgumentException(
          "%s=%s: segments of two sweeps are at once anyway".formatted(PROPERTY, text));
    }
    Kind kind = segment == 0 ? Kind.SWEEPS : handsOn ? Kind.RELAY : Kind.SEGMENTED;
    return new GradientChoice(kind, Technique.parse(parts.group(1)), segment, ofQuery);
  }

  @Override
  public String toString() {
    String name =
        switch (kind) {
          case ONE_SWEEP, CHAIN, SWEPT_SEGMENTS -> ONE_SWEEP;
          default -> technique.id();
        };
    String how =
        switch (kind) {
          case RELAY, ONE_SWEEP -> "+";
          case SWEPT_SEGMENTS -> "*";
          case SEGMENTED -> querySegment == segment ? "" : ":" + querySegment;
          default -> "";
        };
    return PROPERTY + "=" + name + (segment == 0 ? "" : ":" + segment + how);
  }
}
