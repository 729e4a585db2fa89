package io.github.linattn.internal.cuda;

import io.github.linattn.internal.Checkpoints;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Technique;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * Which kernels a forward launches, over which items.
 *
 * @param kind the order of the launches
 * @param steps in order
 * @param cut items of {@link Kind#FORWARD} and of the sums
 * @param outputs items of the outputs where they differ: of a segmented plan, so many of {@code
 *     cut} as one; of a relay those that {@code cut} is cut into
 * @param summed items of {@code cut} whose sums are wanted; 0 where there are none
 * @param turns blocks that walk the same chunks of an item and write their outputs in turn
 * @param stateBytes of the states of items; without causality of those that a scan adds up, and of
 *     the sums of sequences unless they go to the final state; of a relay what it hands on; of
 *     stages those between them, of which two are under way, then what their parts take in turn
 * @param markBytes of the marks of the forward
 * @param copyBytes of an initial state that would be overwritten while it is read
 * @param parts of a chain or of stages: the plan of each segment, one after the other; else none
 * @param micros what the cost model expects
 * @param reason why this plan, in words
 */
record ForwardPlan(
    Kind kind,
    List<Step> steps,
    Cut cut,
    @Nullable Cut outputs,
    int summed,
    int turns,
    long stateBytes,
    long markBytes,
    long copyBytes,
    List<ForwardPlan> parts,
    double micros,
    String reason) {
  /** Of a block of a step of decoding, a line of its own. */
  private static final long TICKET_BYTES = 128;

  /** Bytes of q, k and v for each that is kept. */
  private static final double LEAST_ROWS_FOR_KEPT = 10;

  ForwardPlan {
    steps = List.copyOf(steps);
    parts = List.copyOf(parts);
  }

  /** A chain of segments, each with a plan of its own. */
  static ForwardPlan chain(Cut segments, List<ForwardPlan> parts) {
    return new ForwardPlan(
        Kind.CHAIN,
        parts.stream().flatMap(part -> part.steps.stream()).toList(),
        segments,
        null,
        0,
        1,
        parts.stream().mapToLong(part -> part.stateBytes).max().orElse(0),
        parts.stream().mapToLong(part -> part.markBytes).max().orElse(0),
        0,
        parts,
        parts.stream().mapToDouble(ForwardPlan::micros).sum(),
        "chain: %s one after the other, whose states are kept".formatted(segments));
  }

  /**
   * Segments one after the other, each with a plan of its own.
   *
   * @param keeping the launch that brings the state before a segment to its place
   * @param initial whether the first has one
   * @param handedOn bytes of the states between segments
   * @param longer micros of a part beside its plan
   */
  static ForwardPlan stages(
      Cut segments,
      List<ForwardPlan> parts,
      Step keeping,
      boolean initial,
      long handedOn,
      double longer) {
    ForwardPlan chain = chain(segments, parts);
    List<Step> steps = new ArrayList<>();
    for (ForwardPlan part : parts) {
      boolean startsFromState = initial || !steps.isEmpty();
      steps.addAll(part.steps);
      if (startsFromState) {
        steps.add(keeping);
      }
    }
    return new ForwardPlan(
        Kind.STAGES,
        steps,
        segments,
        null,
        0,
        1,
        handedOn + chain.stateBytes,
        chain.markBytes,
        0,
        parts,
        chain.micros + parts.size() * longer,
        "stages: %s one after the other, whose states are kept".formatted(segments));
  }

  /** The ways of computing a forward. */
  enum Kind {
    /** Each item from its initial state. */
    FORWARD("one pass"),
    /**
     * Items of each sequence one after the other, in one launch: their blocks go on where those of
     * the item before have stopped.
     */
    RELAY("relay"),
    /** Sums of segments, the states before them, and a forward of each. */
    SEGMENTED("segments"),
    /** One segment after the other, each from the state that the one before has left. */
    CHAIN("chain"),
    /** The same, with the states before segments kept as {@link #SEGMENTED} has them. */
    STAGES("stages"),
    /** One token, from and to a state. */
    DECODE("decode"),
    /** Sums of segments, their total, and every query against it. */
    NON_CAUSAL("not causal");

    private final String text;

    Kind(String text) {
      this.text = text;
    }

    /** In the words of plans. */
    String text() {
      return text;
    }
  }

  /** The kernel of the outputs, of several parts that of the first. */
  KernelEntry kernel() {
    if (!parts.isEmpty()) {
      return parts.getFirst().kernel();
    }
    int idx =
        switch (kind) {
          case SEGMENTED -> steps.size() - 2; // before the repair
          case NON_CAUSAL -> steps.size() - 1;
          default -> 0;
        };
    return steps.get(idx).kernel();
  }

  /** As {@link io.github.linattn.Plan.Pass#summary} has it, with the blocks that take turns. */
  String summary() {
    Cut items = kind == Kind.NON_CAUSAL ? cut : forwardCut();
    return Cut.summary(kind.text, items, kernel().technique()) + (turns > 1 ? "*" + turns : "");
  }

  /**
   * One launch.
   *
   * @param blocks of the grid
   * @param cluster blocks that run together
   * @param threads of a block
   * @param sharedBytes dynamic shared memory of a block
   * @param startsEarly whether it takes its places while earlier kernels run, and waits for them
   *     itself
   */
  record Step(
      KernelEntry kernel,
      int blocks,
      int cluster,
      int threads,
      int sharedBytes,
      boolean startsEarly) {
    /**
     * The same launch where it takes so long. Blocks that start early take places as these become
     * free, so that blocks which read the same rows seldom are neighbours on the device; of those
     * that start in turn, they all are. What that saves grows with the time, what an early start
     * saves does not.
     */
    Step lasting(double micros) {
      boolean inTurn = kernel.technique() == Technique.WGMMA && micros >= Rates.IN_TURN_MICROS;
      return new Step(kernel, blocks, cluster, threads, sharedBytes, startsEarly && !inTurn);
    }

    /** The same launch with so many blocks at most, which walk what there is for more. */
    Step walking(int mostBlocks) {
      return new Step(
          kernel, Math.min(blocks, mostBlocks), cluster, threads, sharedBytes, startsEarly);
    }

    /** Whether it forms the states before items, and those of whole sequences, from sums. */
    boolean scansStates() {
      return kernel.operation() == Operation.STATE_SCAN;
    }

    @Override
    public String toString() {
      return "%s: %d blocks%s%s"
          .formatted(
              kernel.symbol(),
              blocks,
              threads == kernel.threads() ? "" : " of %d threads".formatted(threads),
              cluster == 1 ? "" : " in clusters of %d".formatted(cluster));
    }
  }

  /** Bytes of zeros beside the workspace, some for each block of a step of decoding. */
  long ticketBytes() {
    long own = kind == Kind.DECODE ? steps.getFirst().blocks() * TICKET_BYTES : 0;
    return parts.stream().mapToLong(ForwardPlan::ticketBytes).reduce(own, Math::max);
  }

  /** Whether any blocks hand states on, in any part. */
  boolean handsOn() {
    return kind == Kind.RELAY || parts.stream().anyMatch(ForwardPlan::handsOn);
  }

  /** The same plan with this reason. */
  ForwardPlan because(String why) {
    return with(stateBytes, why);
  }

  /** The same with its states where these are kept, if they are, and not in the workspace. */
  ForwardPlan into(Checkpoints.Form kept) {
    boolean elsewhere = kind == Kind.SEGMENTED && kept.segment() > 0;
    return elsewhere ? with(0, reason) : this;
  }

  private ForwardPlan with(long ofStates, String why) {
    return new ForwardPlan(
        kind, steps, cut, outputs, summed, turns, ofStates, markBytes, copyBytes, parts, micros,
        why);
  }

  /** Whether each sequence is walked once, without sums of segments. */
  boolean goesInOnePass() {
    return kind == Kind.FORWARD || kind == Kind.RELAY;
  }

  /** Of stages: the launch that brings a state to where it is kept. */
  Step keeping() {
    return steps.stream().filter(Step::scansStates).findFirst().orElseThrow();
  }

  /** Items of the forward. */
  Cut forwardCut() {
    return outputs == null ? cut : outputs;
  }

  /** Items of the sums for each of the forward. */
  int slotStep() {
    return kind == Kind.SEGMENTED && outputs != null ? outputs.itemTokens() / cut.itemTokens() : 1;
  }

  /** States of items of a key/value head: before each whose sums are wanted, and one after. */
  int slots() {
    return Math.min(summed + 1, cut.items());
  }

  /**
   * What it keeps for a backward on its way, if that takes no more than a tenth of q, k and v:
   * lengths of rows, and states before its segments.
   */
  Optional<Checkpoints.Form> toKeep(Question question) {
    if (!question.keepsForBackward()) {
      return Optional.empty();
    }
    double rows = question.keyValueBytes() + question.queryRowBytes();
    long lengthBytes = measuresRows(question) ? question.lengthBytes() : 0;
    boolean keepsLengths = lengthBytes > 0 && LEAST_ROWS_FOR_KEPT * lengthBytes <= rows;
    boolean hasAll =
        kind == Kind.STAGES
            || (kind == Kind.SEGMENTED && cut.isRegular() && slots() == cut.items());
    long keptBytes = StateArrays.bytes(question.shape(), cut.items());
    boolean keepsStates =
        hasAll && LEAST_ROWS_FOR_KEPT * (keptBytes + (keepsLengths ? lengthBytes : 0)) <= rows;
    Checkpoints.Form states = Checkpoints.Form.ofSegments(keepsStates ? cut.itemTokens() : 0);
    Checkpoints.Form all = keepsLengths ? states.withLengths() : states;
    return keepsLengths || keepsStates ? Optional.of(all) : Optional.empty();
  }

  /** Whether a step forms sums again where those of the first one are not finite. */
  boolean repairsSums(Step step) {
    return (kind == Kind.NON_CAUSAL || kind == Kind.SEGMENTED)
        && step.kernel().operation() == Operation.STATE_SUMS
        && !step.kernel().equals(steps.get(0).kernel());
  }

  /** Whether its kernels find the lengths of all rows of q and k. */
  private boolean measuresRows(Question question) {
    Operation ofKeys =
        kind == Kind.NON_CAUSAL ? Operation.NORMALIZED_STATE_SUMS : Operation.NORMALIZED_FORWARD;
    return question.normalize()
        && steps.stream()
            .anyMatch(
                step ->
                    step.kernel().operation() == ofKeys
                        && step.kernel().technique() == Technique.WGMMA);
  }

  long workspaceBytes() {
    return stateBytes + markBytes + copyBytes;
  }
}
