package io.github.linattn.kernels;

import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.KernelEntry;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Reads what {@code -Xptxas -v} prints about one kernel. */
final class PtxasLog {
  private static final Pattern ENTRY =
      Pattern.compile("Compiling entry function '\\w+' for '(\\w+)'");
  private static final Pattern SPILLS =
      Pattern.compile("(\\d+) bytes spill stores, (\\d+) bytes spill loads");
  private static final Pattern REGISTERS = Pattern.compile("Used (\\d+) registers");
  private static final Pattern STATIC_SHARED = Pattern.compile("(\\d+) bytes smem");

  /** Part of warnings C7510 to C7520. */
  private static final String SERIALIZED = "wgmma.mma_async instructions are serialized";

  private PtxasLog() {}

  /** Registers and memory per architecture. */
  static SortedMap<Architecture, KernelEntry.Usage> usage(String log) {
    SortedMap<Architecture, KernelEntry.Usage> usage = new TreeMap<>();
    List<MatchResult> entries = ENTRY.matcher(log).results().toList();
    for (int i = 0; i < entries.size(); i++) {
      MatchResult entry = entries.get(i);
      int end = i + 1 < entries.size() ? entries.get(i + 1).start() : log.length();
      String section = log.substring(entry.end(), end);
      int spilled = number(SPILLS, 1, section) + number(SPILLS, 2, section);
      usage.put(
          Architecture.parse(entry.group(1)),
          new KernelEntry.Usage(
              number(REGISTERS, 1, section), spilled, number(STATIC_SHARED, 1, section)));
    }
    return usage;
  }

  /** What makes the kernel slower than it might be, in words; empty where nothing does. */
  static Optional<String> flaw(String log) {
    Optional<String> serialized = log.lines().filter(line -> line.contains(SERIALIZED)).findFirst();
    if (serialized.isPresent()) {
      return serialized.map(line -> "waits after each of its products: " + line.strip());
    }
    return usage(log).entrySet().stream()
        .filter(each -> each.getValue().spillBytes() > 0)
        .map(
            each ->
                String.format(
                    Locale.ROOT,
                    "spills %d bytes of registers on %s",
                    each.getValue().spillBytes(),
                    each.getKey().id()))
        .findFirst();
  }

  private static int number(Pattern pattern, int group, String section) {
    Matcher found = pattern.matcher(section);
    return found.find() ? Integer.parseInt(found.group(group)) : 0;
  }
}
