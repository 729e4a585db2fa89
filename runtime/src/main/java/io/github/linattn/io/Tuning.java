package io.github.linattn.io;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.files.FileReason;
import io.github.linattn.files.WholeFile;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernelgen.Technique;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * The fastest plans that were measured, for kinds of GPU and classes of problems; the planner's own
 * where no other was faster. They are timed without a state that is kept for a backward, and hold
 * for forwards that keep one, too. On disk a JSON file that {@code linattn tune} writes. Immutable.
 */
public final class Tuning {
  /** The system property that names the file that planners ask. */
  public static final String PROPERTY = "linattn.tuning";

  /** The environment variable that does where the property does not. */
  public static final String VARIABLE = "LINATTN_TUNING";

  /** Without a plan. */
  public static final Tuning NONE = new Tuning(List.of());

  private static final long VERSION = 2;
  private static final Set<String> MEMBERS =
      Set.of(
          "gpu",
          "pass",
          "headDim",
          "dtype",
          "mode",
          "normalize",
          "heads",
          "tokens",
          "technique",
          "segments",
          "turns",
          "relay",
          "ratio");

  private final List<Entry> entries;

  private Tuning(List<Entry> entries) {
    this.entries = List.copyOf(entries);
  }

  /** What is planned. */
  public enum Pass {
    /** The launches that give o and g. */
    FORWARD,
    /** The launches that give the gradients. */
    BACKWARD
  }

  /**
   * Problems that differ in their extents alone; causal, without packing, Dv = D, of a backward
   * with a key/value head for each query head.
   *
   * @param gpu its name, as its driver gives it
   * @param pass which of its passes is planned
   * @param headDim D, of keys and values
   * @param dtype of q, k, v and o
   * @param mode of fp32; other types know {@code DEFAULT} only
   * @param normalize whether rows of q and k are divided by their length
   */
  public record Problem(
      String gpu, Pass pass, int headDim, DType dtype, Mode mode, boolean normalize) {
    /** Gives other types than fp32 the one mode that they have. */
    public Problem {
      Objects.requireNonNull(gpu, "gpu");
      Objects.requireNonNull(pass, "pass");
      Objects.requireNonNull(dtype, "dtype");
      Objects.requireNonNull(mode, "mode");
      if (headDim < 1) {
        throw new IllegalArgumentException("headDim is at least 1, not " + headDim);
      }
      mode = dtype == DType.F32 ? mode : Mode.DEFAULT;
    }
  }

  /** A class of sizes, both ends included. */
  public record Range(long least, long most) {
    /** Checks the ends. */
    public Range {
      if (least < 1 || most < least) {
        throw new IllegalArgumentException(
            "a class is [least, most] with 1 <= least <= most, not [" + least + ", " + most + "]");
      }
    }

    boolean contains(long size) {
      return least <= size && size <= most;
    }
  }

  /**
   * A plan, for any number of tokens.
   *
   * @param technique of the kernel: wgmma or mma
   * @param segments into which the tokens are cut; 1 for none
   * @param turns blocks that take turns with the chunks of a segment, a power of two; 1 for none
   * @param relay whether the blocks of a segment go on where those of the segment before it have
   *     stopped, instead of starting from sums
   */
  public record Choice(String technique, int segments, int turns, boolean relay) {
    private static final String PLANNER = "planner";

    /** Whatever the planner chooses by its model. */
    public static final Choice PLANNERS = new Choice(PLANNER, 1, 1);

    /** Checks the parts. */
    public Choice {
      boolean planner = technique.equals(PLANNER);
      if (!planner && Technique.parse(technique) == Technique.SIMT) {
        throw new IllegalArgumentException("there are no plans of simt to choose from");
      }
      if (planner && (segments != 1 || turns != 1 || relay)) {
        throw new IllegalArgumentException("what is left to the planner has 1 segment and 1 turn");
      }
      if (segments < 1 || turns < 1 || Integer.bitCount(turns) != 1) {
        throw new IllegalArgumentException(
            "a plan has at least 1 segment and a power of two of turns, not %d and %d"
                .formatted(segments, turns));
      }
      if (relay && (segments == 1 || turns > 1)) {
        throw new IllegalArgumentException(
            "a relay has 2 segments or more and 1 turn, not %d and %d".formatted(segments, turns));
      }
    }

    /** Whose segments start from sums. */
    public Choice(String technique, int segments, int turns) {
      this(technique, segments, turns, false);
    }

    /** Whether it is left to the planner. */
    public boolean isPlanners() {
      return equals(PLANNERS);
    }

    /** As a plan is asked for by name: {@code TECHNIQUE[:SEGMENT][*TURNS|+]}. */
    public String name(int tokens) {
      int segment =
          Math.ceilDiv(Math.ceilDiv(tokens, segments), KernelSpec.CHUNK) * KernelSpec.CHUNK;
      String cut = segments == 1 ? "" : ":" + segment;
      return technique + cut + (turns == 1 ? "" : "*" + turns) + (relay ? "+" : "");
    }
  }

  /**
   * A plan for a class of problems.
   *
   * @param problem what the class has in common
   * @param heads B x H, from the least to the most
   * @param tokens N, from the least to the most
   * @param choice the fastest plan that was timed, or {@link Choice#PLANNERS}
   * @param ratio its time over that of the planner's own plan when it was measured; where it is
   *     left to the planner, this of the fastest plan that was timed beside
   */
  public record Entry(Problem problem, Range heads, Range tokens, Choice choice, double ratio) {
    /** Checks that the parts go together, and that the ratio is one. */
    public Entry {
      Objects.requireNonNull(problem, "problem");
      Objects.requireNonNull(heads, "heads");
      Objects.requireNonNull(tokens, "tokens");
      Objects.requireNonNull(choice, "choice");
      if (!(0 <= ratio && ratio < Double.POSITIVE_INFINITY)) {
        throw new IllegalArgumentException("a ratio of times is finite and not below 0: " + ratio);
      }
      if (problem.pass == Pass.BACKWARD && choice.turns > 1) {
        throw new IllegalArgumentException(
            "blocks of a backward take no turns; turns is 1, not " + choice.turns);
      }
    }

    private boolean isOfClass(Entry other) {
      return problem.equals(other.problem)
          && heads.equals(other.heads)
          && tokens.equals(other.tokens);
    }
  }

  /** What was measured. */
  public List<Entry> entries() {
    return entries;
  }

  /** These plans, and those of other classes that are here already. */
  public Tuning with(List<Entry> measured) {
    return new Tuning(
        Stream.concat(
                entries.stream().filter(old -> measured.stream().noneMatch(old::isOfClass)),
                measured.stream())
            .toList());
  }

  /** Without the plans for these problems. */
  public Tuning without(Problem problem) {
    return new Tuning(entries.stream().filter(entry -> !entry.problem.equals(problem)).toList());
  }

  /** The plan for a problem of this size; empty where the planner's own is the fastest known. */
  public Optional<Choice> find(Problem problem, long heads, long tokens) {
    return entries.stream()
        .filter(entry -> entry.problem.equals(problem))
        .filter(entry -> entry.heads.contains(heads) && entry.tokens.contains(tokens))
        .map(Entry::choice)
        .findFirst()
        .filter(choice -> !choice.isPlanners());
  }

  /**
   * The file that the property or the variable names; {@link #NONE} where neither does.
   *
   * @throws IllegalArgumentException if it can't be read or is no tuning file
   */
  public static Tuning ofProcess() {
    String named =
        System.getProperty(PROPERTY, Optional.ofNullable(System.getenv(VARIABLE)).orElse(""));
    if (named.isBlank()) {
      return NONE;
    }
    String where = System.getProperty(PROPERTY) == null ? VARIABLE : PROPERTY;
    try {
      return read(Path.of(named));
    } catch (IOException unreadable) {
      throw new IllegalArgumentException(
          "can't read %s %s: %s".formatted(where, named, FileReason.of(unreadable)), unreadable);
    }
  }

  /**
   * Reads a file.
   *
   * @throws IllegalArgumentException if it is no tuning file; the message names it and says why
   */
  public static Tuning read(Path file) throws IOException {
    try {
      return parse(Json.parse(Files.readString(file)));
    } catch (IllegalArgumentException wrong) {
      throw new IllegalArgumentException(
          "%s is no tuning file: %s".formatted(file, wrong.getMessage()), wrong);
    }
  }

  /** Writes a file, which appears under its name when it is complete. */
  public void write(Path file) throws IOException {
    String lines = entries.stream().map(Tuning::line).collect(Collectors.joining(",\n"));
    WholeFile.write(file, "{\"version\": " + VERSION + ", \"entries\": [\n" + lines + "\n]}\n");
  }

  private static String line(Entry entry) {
    Problem problem = entry.problem;
    return String.format(
        Locale.ROOT,
        "  {\"gpu\": %s, \"pass\": \"%s\", \"headDim\": %d, \"dtype\": \"%s\", \"mode\": \"%s\","
            + " \"normalize\": %b, \"heads\": [%d, %d], \"tokens\": [%d, %d], \"technique\": %s,"
            + " \"segments\": %d, \"turns\": %d, \"relay\": %b, \"ratio\": %.3f}",
        Json.quoted(problem.gpu),
        id(problem.pass),
        problem.headDim,
        id(problem.dtype),
        id(problem.mode),
        problem.normalize,
        entry.heads.least,
        entry.heads.most,
        entry.tokens.least,
        entry.tokens.most,
        Json.quoted(entry.choice.technique),
        entry.choice.segments,
        entry.choice.turns,
        entry.choice.relay,
        entry.ratio);
  }

  private static Tuning parse(Object root) {
    if (!(root instanceof Map<?, ?> members)
        || !Long.valueOf(VERSION).equals(members.get("version"))
        || !(members.get("entries") instanceof List<?> list)) {
      throw new IllegalArgumentException(
          "it is not {\"version\": " + VERSION + ", \"entries\": [...]}");
    }
    List<Entry> entries = new ArrayList<>();
    for (Object each : list) {
      if (!(each instanceof Map<?, ?> fields) || !fields.keySet().equals(MEMBERS)) {
        throw new IllegalArgumentException("an entry has the members " + MEMBERS);
      }
      entries.add(entry(fields));
    }
    return new Tuning(entries);
  }

  private static Entry entry(Map<?, ?> fields) {
    return new Entry(
        new Problem(
            member(fields, "gpu", String.class),
            constant(fields, "pass", Pass.class),
            integer(fields, "headDim"),
            constant(fields, "dtype", DType.class),
            constant(fields, "mode", Mode.class),
            member(fields, "normalize", Boolean.class)),
        range(fields, "heads"),
        range(fields, "tokens"),
        new Choice(
            member(fields, "technique", String.class),
            integer(fields, "segments"),
            integer(fields, "turns"),
            member(fields, "relay", Boolean.class)),
        member(fields, "ratio", Number.class).doubleValue());
  }

  private static <T> T member(Map<?, ?> fields, String name, Class<T> type) {
    Object value = fields.get(name);
    if (!type.isInstance(value)) {
      throw new IllegalArgumentException(
          "%s is a %s".formatted(name, type.getSimpleName().toLowerCase(Locale.ROOT)));
    }
    return type.cast(value);
  }

  private static int integer(Map<?, ?> fields, String name) {
    long value = member(fields, name, Long.class);
    if (value < 1 || value > Integer.MAX_VALUE) {
      throw new IllegalArgumentException(name + " is at least 1, not " + value);
    }
    return (int) value;
  }

  private static Range range(Map<?, ?> fields, String name) {
    List<?> ends = member(fields, name, List.class);
    if (ends.size() != 2
        || !(ends.get(0) instanceof Long least)
        || !(ends.get(1) instanceof Long most)) {
      throw new IllegalArgumentException(name + " is a class [least, most]");
    }
    return new Range(least, most);
  }

  private static <E extends Enum<E>> E constant(Map<?, ?> fields, String name, Class<E> type) {
    String id = member(fields, name, String.class);
    return Stream.of(type.getEnumConstants())
        .filter(each -> id(each).equals(id))
        .findFirst()
        .orElseThrow(() -> new IllegalArgumentException("%s is no %s".formatted(id, name)));
  }

  private static String id(Enum<?> constant) {
    return constant.name().toLowerCase(Locale.ROOT);
  }
}
