package io.github.linattn.kernelgen;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.EnumSet;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.Set;
import java.util.SortedMap;
import java.util.SortedSet;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;

/**
 * The list of built kernels: a line with the version, a line with the columns, one line per kernel,
 * separated by tabs.
 *
 * @param entries sorted by symbol
 */
public record Manifest(List<KernelEntry> entries) {

  /** Name of the file beside the images. */
  public static final String FILE = "manifest.tsv";

  /**
   * The first line. It also stands for what the runtime expects of kernels: since 4 those of the
   * family {@code chunked} wait for the kernels ahead of them, since 6 what repairs gradients takes
   * no rows that were divided, since 7 launches of what is read from a state have one warpgroup in
   * a block or two.
   */
  public static final String VERSION = "linattn-kernels 7";

  private static final List<String> COLUMNS =
      List.of(
          "symbol",
          "file",
          "operation",
          "family",
          "technique",
          "head_dim",
          "slices",
          "element_type",
          "precision",
          "threads",
          "shared",
          "grid",
          "architectures",
          "usage");

  public Manifest {
    entries = entries.stream().sorted(Comparator.comparing(KernelEntry::symbol)).toList();
    for (int i = 1; i < entries.size(); i++) {
      String symbol = entries.get(i).symbol();
      if (symbol.equals(entries.get(i - 1).symbol())) {
        throw new IllegalArgumentException("a manifest names each kernel once: " + symbol);
      }
    }
  }

  /**
   * The kernel of an operation of the family {@code paper}: with the default L of its head
   * dimension, else with the least L.
   */
  public Optional<KernelEntry> findPaper(Operation operation, int headDim) {
    List<KernelEntry> found =
        entries.stream()
            .filter(e -> e.family() == Family.PAPER)
            .filter(e -> e.operation() == operation && e.headDim() == headDim)
            .sorted(Comparator.comparingInt(KernelEntry::slices))
            .toList();
    return found.stream()
        .filter(e -> e.slices() == KernelSpec.defaultSlices(headDim))
        .findFirst()
        .or(() -> found.stream().findFirst());
  }

  /**
   * The kernel of an operation of the family {@code chunked} that a GPU can run.
   *
   * @param headDim D, or 0 for the kernels of any D
   * @param capability compute capability of the GPU, such as 90
   */
  public Optional<KernelEntry> find(
      Operation operation,
      Technique technique,
      int headDim,
      ElementType elementType,
      Precision precision,
      int capability) {
    return entries.stream()
        .filter(e -> e.family() == Family.CHUNKED)
        .filter(e -> e.operation() == operation && e.technique() == technique)
        .filter(e -> e.headDim() == headDim && e.elementType() == elementType)
        .filter(e -> e.precision() == precision && e.runsOn(capability))
        .findFirst();
  }

  /** The head dimensions that were built of the family {@code paper}. */
  public SortedSet<Integer> paperHeadDims() {
    return entries.stream()
        .filter(e -> e.family() == Family.PAPER)
        .map(KernelEntry::headDim)
        .collect(Collectors.toCollection(TreeSet::new));
  }

  /** This manifest as text, each line ended by a line feed. */
  public String text() {
    StringBuilder text = new StringBuilder();
    text.append(VERSION).append('\n').append(String.join("\t", COLUMNS)).append('\n');
    entries.forEach(entry -> text.append(line(entry)).append('\n'));
    return text.toString();
  }

  /**
   * Reads what {@link #text} wrote.
   *
   * @throws IllegalArgumentException if a line is wrong; the message has its number and the reason
   */
  public static Manifest parse(String text) {
    List<String> lines = text.lines().toList();
    if (lines.isEmpty() || !lines.getFirst().equals(VERSION)) {
      throw new IllegalArgumentException(
          "a kernel manifest starts with \""
              + VERSION
              + "\", not \""
              + (lines.isEmpty() ? "" : lines.getFirst())
              + "\": rebuild the kernels with this version");
    }
    if (lines.size() < 2 || !lines.get(1).equals(String.join("\t", COLUMNS))) {
      throw new IllegalArgumentException(
          "line 2 of a kernel manifest names the columns " + String.join(", ", COLUMNS));
    }
    List<KernelEntry> entries = new ArrayList<>();
    for (int i = 2; i < lines.size(); i++) {
      entries.add(entry(i + 1, lines.get(i)));
    }
    return new Manifest(entries);
  }

  private static String line(KernelEntry entry) {
    String usage =
        entry.usage().entrySet().stream()
            .map(
                e ->
                    String.format(
                        Locale.ROOT,
                        "%s=%d/%d/%d",
                        e.getKey().id(),
                        e.getValue().registers(),
                        e.getValue().spillBytes(),
                        e.getValue().staticSharedBytes()))
            .collect(Collectors.joining(";"));
    return String.join(
        "\t",
        entry.symbol(),
        entry.file(),
        entry.operation().id(),
        entry.family().id(),
        entry.technique().id(),
        Integer.toString(entry.headDim()),
        Integer.toString(entry.slices()),
        entry.elementType().id(),
        entry.precision().id(),
        Integer.toString(entry.threads()),
        entry.shared().text(),
        entry.gridRule().text(),
        entry.architectures().stream().map(Architecture::id).collect(Collectors.joining(",")),
        usage);
  }

  private static KernelEntry entry(int number, String line) {
    String[] cells = line.split("\t", -1);
    if (cells.length != COLUMNS.size()) {
      throw new IllegalArgumentException(
          "line "
              + number
              + " of the kernel manifest has "
              + cells.length
              + " columns instead of "
              + COLUMNS.size());
    }
    try {
      return new KernelEntry(
          cells[0],
          cells[1],
          Operation.parse(cells[2]),
          Family.parse(cells[3]),
          Technique.parse(cells[4]),
          Integer.parseInt(cells[5]),
          Integer.parseInt(cells[6]),
          ElementType.parse(cells[7]),
          Precision.parse(cells[8]),
          Integer.parseInt(cells[9]),
          SharedRule.parse(cells[10]),
          GridRule.parse(cells[11]),
          architectures(cells[12]),
          usage(cells[13]));
    } catch (IllegalArgumentException wrong) {
      throw new IllegalArgumentException(
          "line " + number + " of the kernel manifest: " + wrong.getMessage(), wrong);
    }
  }

  private static Set<Architecture> architectures(String cell) {
    return Arrays.stream(cell.split(",", -1))
        .map(Architecture::parse)
        .collect(Collectors.toCollection(() -> EnumSet.noneOf(Architecture.class)));
  }

  private static SortedMap<Architecture, KernelEntry.Usage> usage(String cell) {
    SortedMap<Architecture, KernelEntry.Usage> usage = new TreeMap<>();
    if (cell.isEmpty()) {
      return usage;
    }
    for (String part : cell.split(";", -1)) {
      String[] sides = part.split("=", -1);
      String[] numbers = sides.length == 2 ? sides[1].split("/", -1) : new String[0];
      if (numbers.length != 3) {
        throw new IllegalArgumentException(
            "usage is <architecture>=<registers>/<spilled bytes>/<static shared bytes>, not \""
                + part
                + "\"");
      }
      usage.put(
          Architecture.parse(sides[0]),
          new KernelEntry.Usage(
              Integer.parseInt(numbers[0]),
              Integer.parseInt(numbers[1]),
              Integer.parseInt(numbers[2])));
    }
    return usage;
  }
}
