package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.Plan;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Plans that the planner has to choose between, by the names under which they can be asked for. */
final class BenchPlans {
  /** The runtime reads it whenever it plans a forward. */
  static final String PROPERTY = "linattn.plan";

  /** The same of a backward. */
  private static final String GRADIENT_PROPERTY = "linattn.gradient.plan";

  private static final List<String> TECHNIQUES = List.of("wgmma", "mma");
  private static final int CHUNK = 64;
  private static final int LEAST_SEGMENT = 512;
  private static final int MOST_SEGMENTS = 6;

  /** More blocks than this leave no multiprocessor idle, and further segments only add states. */
  private static final long MOST_BLOCKS = 2048;

  private static final int COLUMNS = 64;

  /** As many as an H200 has multiprocessors, nearly. */
  private static final long MOST_TURN_BLOCKS = 128;

  private static final int MOST_TURNS = 8;
  private static final int MOST_RELAYED = 8;
  private static final Pattern SEGMENTS =
      Pattern.compile(
          "^(?:(?:swept )?segments:|relay: .*?|one sweep: .*? blocks of) \\d+ items of up to (\\d+) tokens");
  private static final Pattern TURNS = Pattern.compile("chunks (\\d+) blocks write in turn");
  private static final Pattern TECHNIQUE = Pattern.compile(", by (\\w+) on ");

  private BenchPlans() {}

  /** Names for {@link #asking}; none where there is no choice. */
  static List<String> names(BenchCase problem) {
    List<String> names = new ArrayList<>();
    if (problem.causal() && !problem.decode() && problem.pass() == BenchPass.FORWARD) {
      for (String technique : TECHNIQUES) {
        names.add(technique);
        if (technique.equals("wgmma")) {
          turns(problem.shape()).forEach(turns -> names.add(technique + "*" + turns));
          relays(problem.shape()).forEach(items -> names.add(technique + ":" + items + "+"));
        }
        segments(problem.shape()).forEach(segment -> names.add(technique + ":" + segment));
      }
    }
    return names;
  }

  /**
   * Blocks that take turns, as long as they all have room at once; the runtime refuses where none
   * can.
   */
  private static List<Integer> turns(AttentionShape shape) {
    List<Integer> turns = new ArrayList<>();
    long blocks = (long) shape.batch() * shape.heads() * Math.ceilDiv(shape.valueDim(), COLUMNS);
    for (int i = 2; i <= MOST_TURNS && blocks * i <= MOST_TURN_BLOCKS; i *= 2) {
      turns.add(i);
    }
    return turns;
  }

  /** Lengths of the items of a relay, where blocks of whole sequences come in rounds. */
  private static List<Integer> relays(AttentionShape shape) {
    List<Integer> items = new ArrayList<>();
    long blocks = (long) shape.batch() * shape.heads() * Math.ceilDiv(shape.valueDim(), COLUMNS);
    int most = Math.min(MOST_RELAYED, shape.tokens() / LEAST_SEGMENT);
    for (int parts = 2; blocks > MOST_TURN_BLOCKS && parts <= most; parts++) {
      items.add(Math.ceilDiv(Math.ceilDiv(shape.tokens(), parts), CHUNK) * CHUNK);
    }
    return items;
  }

  /** Lengths of 2, 4, 8, ... equal segments; the first, the last and some between. */
  static List<Integer> segments(AttentionShape shape) {
    long blocks = (long) shape.batch() * shape.heads() * Math.ceilDiv(shape.valueDim(), COLUMNS);
    List<Integer> all = new ArrayList<>();
    for (int parts = 2; parts == 2 || blocks * parts <= MOST_BLOCKS; parts *= 2) {
      int segment = Math.ceilDiv(Math.ceilDiv(shape.tokens(), parts), CHUNK) * CHUNK;
      if (segment < LEAST_SEGMENT) {
        break;
      }
      all.add(segment);
    }
    if (all.size() <= MOST_SEGMENTS) {
      return all;
    }
    List<Integer> some = new ArrayList<>();
    for (int i = 0; i < MOST_SEGMENTS; i++) {
      some.add(all.get(i * (all.size() - 1) / (MOST_SEGMENTS - 1)));
    }
    return some;
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

  /** A plan in a word. */
  static String word(BenchCase problem, Plan.Pass pass) {
    if (problem.decode()) {
      return "decode";
    }
    if (pass.reason().isEmpty()) {
      return "paper";
    }
    Matcher turns = TURNS.matcher(pass.reason());
    String inTurn = turns.find() ? "*" + turns.group(1) : "";
    String kind = pass.reason().split(":", 2)[0];
    Matcher segments = SEGMENTS.matcher(pass.reason());
    if (segments.find()) {
      kind = kind + " " + segments.group(1);
    }
    Matcher technique = TECHNIQUE.matcher(pass.reason());
    return technique.find() ? kind + ", " + technique.group(1) + inTurn : kind;
  }
}
