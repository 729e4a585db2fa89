package io.github.linattn.internal.cuda;

import io.github.linattn.internal.cuda.ForwardPlan.Step;
import io.github.linattn.kernelgen.Technique;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;

/**
 * Which kernels a backward launches, over which items.
 *
 * @param kind the order of the launches
 * @param launches in order
 * @param cut items of sweeps and of sums, but for what {@code outputs} says of dq
 * @param outputs items of dq: of {@link Kind#NON_CAUSAL} outputs, segments of its own or whole
 *     sequences of {@link Kind#SEGMENTED}, and where blocks hand states on what {@code cut} is cut
 *     into; else {@code cut}
 * @param keyOutputs the same for dk and dv, but for segments, which are those of {@code cut}
 * @param summed items whose S, z and u are wanted, of {@link #stateItems}; 0 where there are none
 * @param gradientSummed items of {@code cut}, the last ones, whose dS, dz and du are wanted; 0
 *     where there are none
 * @param keptStep segments of the states that a forward kept for each item of {@code cut}; 0 where
 *     the sweeps do not start from these
 * @param tiles of 64 columns of dq
 * @param turns blocks of a tile of dq, which walk the same chunks and write them in turn, each with
 *     partial sums of da and db
 * @param coefficientParts blocks that share the tokens of a head, where q and dq are read for da
 *     and db; all of them find out whether that is so, which takes the longer the more they are
 * @param memory what is kept beside the gradients
 * @param parts of a chain: the plan of each segment, in the order of tokens; else none
 * @param micros what the cost model expects
 * @param reason why this plan, in words
 */
record GradientPlan(
    Kind kind,
    List<Launch> launches,
    Cut cut,
    Cut outputs,
    Cut keyOutputs,
    int summed,
    int gradientSummed,
    int keptStep,
    int tiles,
    int turns,
    int coefficientParts,
    Memory memory,
    List<GradientPlan> parts,
    double micros,
    String reason) {

  GradientPlan {
    launches = List.copyOf(launches);
    parts = List.copyOf(parts);
  }

  /**
   * A chain of segments, each with a plan of its own: from the last to the first, which hand the
   * gradient of the state between them on.
   *
   * @param stateBytes of that gradient
   */
  static GradientPlan chain(Cut segments, List<GradientPlan> parts, long stateBytes) {
    GradientPlan first = parts.getFirst();
    long part = parts.stream().mapToLong(GradientPlan::workspaceBytes).max().orElse(0);
    return new GradientPlan(
        Kind.CHAIN,
        parts.reversed().stream().flatMap(each -> each.launches.stream()).toList(),
        segments,
        segments,
        segments,
        0,
        0,
        1,
        first.tiles,
        first.turns,
        1,
        new Memory(2 * stateBytes, part, 0, 0, 0, 0, 0, Marks.ofSums(0)),
        parts,
        parts.stream().mapToDouble(GradientPlan::micros).sum(),
        "");
  }

  /** The ways of computing a backward. */
  enum Kind {
    /**
     * Each sequence from its initial state for dq, from the gradient of its final one for dk, dv.
     */
    SWEEPS("two sweeps"),
    /**
     * The same, but that blocks of dq, or of dk and dv, or of all walk items of each sequence, and
     * go on where those of the item before have stopped.
     */
    RELAY("relay"),
    /**
     * Each sequence from its final state and its gradient, for dq, dk and dv at once; or by blocks
     * that walk items and go on where those of the item after have stopped.
     */
    ONE_SWEEP("one sweep"),
    /** One sweep of each segment, from the last one on. */
    CHAIN("chain"),
    /**
     * One sweep of all segments at once, from the states before them, which are kept or summed, and
     * from sums of the gradients after them.
     */
    SWEPT_SEGMENTS("swept segments"),
    /**
     * Sums of segments and a scan before each of the sweeps, which start from the segments; before
     * the second alone where dq is of whole sequences.
     */
    SEGMENTED("segments"),
    /** Sums over all tokens, and every row against them. */
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

  /** What a launch is for. */
  enum Role {
    ROWS("d and the lengths of rows"),
    STATE_SUMS("S, z, u of items"),
    STATE_SUMS_REPAIR("S, z, u again where they are not finite"),
    STATE_SCAN("states before items"),
    QUERY("dq"),
    QUERY_REPAIR("dq token by token where it is marked"),
    GRADIENT_SUMS("dS, dz, du of items"),
    GRADIENT_SUMS_REPAIR("dS, dz, du again where they are not finite"),
    GRADIENT_SCAN("gradients after items"),
    KEY("dk"),
    VALUE("dv"),
    KEY_AND_VALUE("dk and dv"),
    ONE_SWEEP("dq, dk and dv"),
    COEFFICIENTS("da and db, and gradients token by token where they are marked"),
    NORMALIZED_QUERY("dq of raw rows"),
    NORMALIZED_KEY("dk of raw rows");

    private final String text;

    Role(String text) {
      this.text = text;
    }
  }

  /** A launch and what it gives. */
  record Launch(Role role, Step step) {
    @Override
    public String toString() {
      return "%s, %s".formatted(step, role.text);
    }
  }

  /**
   * The parts of the workspace in their order, in bytes; each starts at an aligned place.
   *
   * @param states of items, those before them and then the gradients after them, in one place; of
   *     {@link Kind#SWEPT_SEGMENTS} these gradients, and behind them the states, unless they are
   *     kept; of a chain two gradients of states between its segments; where blocks hand states on,
   *     those of dq, dk and dv
   * @param totals of sequences, likewise, without causality; of a chain what its segments take in
   *     turn
   * @param delta d
   * @param queryScale of rows of q; 0 where they are not normalised
   * @param keyScale of rows of k, likewise
   * @param partials of da and db
   * @param products sums of q · dq of the parts of heads, where there are several
   * @param marks of the gradients of q, of k and of v, and of sums
   */
  record Memory(
      long states,
      long totals,
      long delta,
      long queryScale,
      long keyScale,
      long partials,
      long products,
      Marks marks) {
    Memory {
      states = ChunkedCall.alignedBytes(states);
      totals = ChunkedCall.alignedBytes(totals);
      delta = ChunkedCall.alignedBytes(delta);
      queryScale = ChunkedCall.alignedBytes(queryScale);
      keyScale = ChunkedCall.alignedBytes(keyScale);
      partials = ChunkedCall.alignedBytes(partials);
      products = ChunkedCall.alignedBytes(products);
    }

    long totalsAt() {
      return states;
    }

    long deltaAt() {
      return totalsAt() + totals;
    }

    long queryScaleAt() {
      return deltaAt() + delta;
    }

    long keyScaleAt() {
      return queryScaleAt() + queryScale;
    }

    long partialsAt() {
      return keyScaleAt() + keyScale;
    }

    long productsAt() {
      return partialsAt() + partials;
    }

    long queryMarksAt() {
      return productsAt() + products;
    }

    long keyMarksAt() {
      return queryMarksAt() + marks.query;
    }

    long valueMarksAt() {
      return keyMarksAt() + marks.key;
    }

    long sumMarksAt() {
      return valueMarksAt() + marks.value;
    }

    long bytes() {
      return sumMarksAt() + marks.sums;
    }
  }

  /** Bytes of the marks of each gradient, and of those that sums have, one after the other. */
  record Marks(long query, long key, long value, long sums) {
    Marks {
      query = ChunkedCall.alignedBytes(query);
      key = ChunkedCall.alignedBytes(key);
      value = ChunkedCall.alignedBytes(value);
      sums = ChunkedCall.alignedBytes(sums);
    }

    /** Of a plan whose gradients nobody repairs. */
    static Marks ofSums(long sums) {
      return new Marks(0, 0, 0, sums);
    }
  }

  /** Partial sums of da and db of a head. */
  int partials() {
    return outputs.items() * tiles * turns;
  }

  /** The same plan with this reason. */
  GradientPlan because(String why) {
    return new GradientPlan(
        kind,
        launches,
        cut,
        outputs,
        keyOutputs,
        summed,
        gradientSummed,
        keptStep,
        tiles,
        turns,
        coefficientParts,
        memory,
        parts,
        micros,
        why);
  }

  /** Items that S, z and u are summed of. */
  Cut stateItems() {
    return kind == Kind.SEGMENTED ? outputs : cut;
  }

  /** Items of dq, or else of dk and dv. */
  Cut outputs(Role role) {
    return role == Role.QUERY ? outputs : keyOutputs;
  }

  /** Whether the blocks of these gradients hand states on. */
  boolean handsOn(Role role) {
    boolean may = kind == Kind.RELAY || kind == Kind.ONE_SWEEP;
    return may && outputs(role).items() > cut.items();
  }

  /** Whether any blocks do, of a chain in any segment. */
  boolean handsOn() {
    return handsOn(Role.QUERY)
        || handsOn(Role.KEY)
        || parts.stream().anyMatch(GradientPlan::handsOn);
  }

  /** Items of {@code cut}, the first ones, whose dS, dz and du nobody wants. */
  int unsummed() {
    return cut.items() - gradientSummed;
  }

  /** Whether it needs states that a forward kept. */
  boolean startsFromKept() {
    return has(Role.ONE_SWEEP) || keptStep > 0;
  }

  boolean has(Role role) {
    return launches.stream().anyMatch(launch -> launch.role() == role);
  }

  /** Of dq, or of all gradients at once. */
  Technique technique() {
    return step(has(Role.ONE_SWEEP) ? Role.ONE_SWEEP : Role.QUERY).kernel().technique();
  }

  /**
   * As {@link io.github.linattn.Plan.Pass#summary} has it; of segments of two lengths the shorter.
   */
  String summary() {
    Cut shortest =
        Stream.of(cut, outputs, keyOutputs).max(Comparator.comparingInt(Cut::items)).orElseThrow();
    return Cut.summary(kind.text, kind == Kind.NON_CAUSAL ? cut : shortest, technique());
  }

  /** The launch of this role, which the plan has. */
  Step step(Role role) {
    return launches.stream()
        .filter(launch -> launch.role() == role)
        .findFirst()
        .orElseThrow()
        .step();
  }

  long workspaceBytes() {
    return memory.bytes();
  }

  /** Bytes of zeros beside the workspace, a word for each head whose tokens blocks share. */
  long ticketBytes() {
    long ofHeads = memory.products / coefficientParts / (Double.BYTES / Integer.BYTES);
    return parts.stream().mapToLong(GradientPlan::ticketBytes).reduce(ofHeads, Math::max);
  }
}
