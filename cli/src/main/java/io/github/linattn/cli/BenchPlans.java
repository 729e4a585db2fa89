package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.Plan;
import io.github.linattn.kernelgen.KernelSpec;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/** Plans that the planner has to choose between, by the names under which they can be asked for. */
final class BenchPlans {
  /** The runtime reads it whenever it plans a forward. */
  static final String PROPERTY = "linattn.plan";

  /** The same of a backward. */
  private static final String GRADIENT_PROPERTY = "linattn.gradient.plan";

  static final List<String> TECHNIQUES = List.of("wgmma", "mma");

  /** More blocks than this leave no multiprocessor idle, and further segments only add states. */
  static final long MOST_BLOCKS = 2048;

  static final int COLUMNS = 64;

  /** As many as an H200 has multiprocessors, nearly. */
  private static final long MOST_TURN_BLOCKS = 128;

  private static final int MOST_TURNS = 8;
  private static final int MOST_RELAYED = 8;

  /** Of an item of a relay, and of sums over all tokens. */
  private static final int LEAST_TOKENS = 512;

  private BenchPlans() {}

  /** Names for {@link #asking}; none where there is no choice. */
  static List<String> names(BenchCase problem) {
    if (problem.decode() || problem.pass() == BenchPass.BOTH) {
      return List.of();
    }
    boolean isForward = problem.pass() == BenchPass.FORWARD;
    return problem.causal() ? names(problem.shape(), isForward) : namesOfTotals(problem.shape());
  }

  /** Without causality, by the segments whose sums are added up. */
  private static List<String> namesOfTotals(AttentionShape shape) {
    List<String> names = new ArrayList<>(TECHNIQUES);
    names.add("wgmma:" + wholeChunks(shape.tokens(), 1));
    segments(shape.tokens(), blocks(shape, shape.keyValueHeads(), shape.valueDim())).stream()
        .filter(segment -> segment >= LEAST_TOKENS)
        .forEach(segment -> names.add("wgmma:" + segment));
    return names;
  }

  private static long blocks(AttentionShape shape, int heads, int width) {
    return (long) shape.batch() * heads * Math.ceilDiv(width, COLUMNS);
  }

  /** Of a backward those that need nothing of the forward. */
  private static List<String> names(AttentionShape shape, boolean isForward) {
    int heads = isForward ? shape.heads() : shape.keyValueHeads();
    long blocks = blocks(shape, heads, isForward ? shape.valueDim() : shape.keyDim());
    boolean isGrouped = shape.headsPerKeyValueHead() > 1;
    List<String> names = new ArrayList<>();
    for (String technique : TECHNIQUES) {
      boolean isWgmma = technique.equals("wgmma");
      names.add(technique);
      if (isWgmma && isForward) {
        turns(blocks).forEach(turns -> names.add(technique + "*" + turns));
      }
      if (isWgmma) {
        relays(shape.tokens(), blocks).forEach(items -> names.add(technique + ":" + items + "+"));
      }
      for (int segment : segments(shape.tokens(), blocks)) {
        names.add(technique + ":" + segment);
        if (isWgmma && !isForward && isGrouped) {
          names.add(technique + ":" + segment + ":0"); // dq of whole sequences
        }
      }
    }
    return names;
  }

  /**
   * Blocks that take turns, as long as they all have room at once; the runtime refuses where none
   * can.
   */
  private static List<Integer> turns(long blocks) {
    List<Integer> turns = new ArrayList<>();
    for (int i = 2; i <= MOST_TURNS && blocks * i <= MOST_TURN_BLOCKS; i *= 2) {
      turns.add(i);
    }
    return turns;
  }

  /** Lengths of the items of a relay, where blocks of whole sequences come in rounds. */
  private static List<Integer> relays(int tokens, long blocks) {
    List<Integer> items = new ArrayList<>();
    int most = Math.min(MOST_RELAYED, tokens / LEAST_TOKENS);
    for (int parts = 2; blocks > MOST_TURN_BLOCKS && parts <= most; parts++) {
      items.add(wholeChunks(tokens, parts));
    }
    return items;
  }

  /** Lengths of 2, 4, 8, ... equal segments, down to a chunk. */
  static List<Integer> segments(int tokens, long blocks) {
    Set<Integer> segments = new LinkedHashSet<>();
    for (int parts = 2;
        wholeChunks(tokens, parts / 2) > KernelSpec.CHUNK
            && (parts == 2 || blocks * parts <= MOST_BLOCKS);
        parts *= 2) {
      segments.add(wholeChunks(tokens, parts));
    }
    return List.copyOf(segments);
  }

  private static int wholeChunks(int tokens, int parts) {
    return Math.ceilDiv(Math.ceilDiv(tokens, parts), KernelSpec.CHUNK) * KernelSpec.CHUNK;
  }

  /** Does something while a plan of a forward or a backward is asked for. */
  static void asking(BenchPass pass, String name, Runnable work) {
    String property = pass == BenchPass.FORWARD ? PROPERTY : GRADIENT_PROPERTY;
    String before = System.setProperty(property, name);
    try {
      work.run();
    } finally {
      if (before == null) {
        System.clearProperty(property);
      } else {
        System.setProperty(property, before);
      }
    }
  }

  /** A plan in a few words. */
  static String word(BenchCase problem, Plan.Pass pass) {
    if (problem.decode()) {
      return "decode";
    }
    return pass.summary().isEmpty() ? "paper" : pass.summary();
  }
}
