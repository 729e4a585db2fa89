package io.github.linattn.kernels;

import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.Catalogue;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernelgen.KernelText;
import io.github.linattn.kernelgen.Manifest;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.SortedMap;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/**
 * Turns specifications into a folder of kernels: {@code <symbol>.cu} and {@code <symbol>.fatbin} of
 * each, the headers below {@code include/}, and the manifest. Kernels are compiled in parallel, and
 * only where their text, a header, nvcc or its flags changed since the folder was last built.
 */
public final class KernelBuild {
  private static final int PROGRESS_STEP = 8;

  private static final Pattern INCLUDE = Pattern.compile("#include \"(linattn/[^\"]+)\"");

  private final SortedMap<String, String> headers;
  private final Nvcc.Search search;
  private final PrintStream log;

  /**
   * What a build did.
   *
   * @param compiled kernels that nvcc compiled
   * @param upToDate kernels that were left as they were
   * @param manifest what was written; empty where there is no nvcc
   */
  public record Summary(int compiled, int upToDate, Manifest manifest) {}

  KernelBuild(SortedMap<String, String> headers, Nvcc.Search search, PrintStream log) {
    this.headers = headers;
    this.search = search;
    this.log = log;
  }

  /**
   * The build of this module: {@code KernelBuild <folder of the kernels> <folder of the digests>
   * <default or all: the architectures>}.
   */
  public static void main(String[] args) throws IOException {
    if (args.length != 3 || !(args[2].equals("default") || args[2].equals("all"))) {
      throw new IllegalArgumentException(
          "usage: KernelBuild <kernels folder> <digests folder> default|all");
    }
    Set<Architecture> architectures =
        args[2].equals("all") ? Catalogue.allArchitectures() : Catalogue.defaultArchitectures();
    new KernelBuild(Headers.shipped(), Nvcc.find(), System.out)
        .run(Catalogue.defaults(architectures), Path.of(args[0]), Path.of(args[1]));
  }

  /**
   * Writes the kernels of both families for one head dimension to a folder, and compiles it where
   * nvcc is found. Kernels that the folder already holds for other head dimensions or slices stay
   * listed.
   *
   * @param headDim D, a multiple of 16 from 16 to 512
   * @param slices L; {@link KernelSpec#defaultSlices} where empty
   * @param out created where it does not exist; {@link BuiltKernels#load} reads it
   * @param log receives one line per few kernels and a summary
   * @throws IllegalArgumentException if a rule or a budget is broken; nothing is written
   * @throws KernelBuildException if nvcc refuses a kernel or a kernel spills
   */
  public static Summary generate(
      int headDim, OptionalInt slices, Set<Architecture> architectures, Path out, PrintStream log)
      throws IOException {
    return generate(Catalogue.forHeadDim(headDim, slices, architectures), out, log);
  }

  /** As {@link #generate(int, OptionalInt, Set, Path, PrintStream)}, for any kernels. */
  public static Summary generate(List<KernelSpec> specs, Path out, PrintStream log)
      throws IOException {
    List<KernelEntry> entries = new ArrayList<>();
    if (Files.exists(out.resolve(Manifest.FILE))) {
      entries.addAll(Manifest.parse(Files.readString(out.resolve(Manifest.FILE))).entries());
    }
    Summary summary =
        new KernelBuild(Headers.shipped(), Nvcc.find(), log)
            .run(specs, out, out.resolve(".digests"));
    Set<String> symbols = specs.stream().map(KernelSpec::symbol).collect(Collectors.toSet());
    entries.removeIf(entry -> symbols.contains(entry.symbol()));
    entries.addAll(summary.manifest().entries());
    Manifest merged = new Manifest(entries);
    KernelText.writeIfChanged(out.resolve(Manifest.FILE), merged.text());
    return new Summary(summary.compiled(), summary.upToDate(), merged);
  }

  /** Builds the kernels and writes a manifest of exactly these. */
  Summary run(List<KernelSpec> specs, Path out, Path digests) throws IOException {
    Files.createDirectories(out);
    Headers.write(headers, out);
    for (KernelSpec spec : specs) {
      KernelText.writeIfChanged(out.resolve(spec.symbol() + ".cu"), KernelText.emit(spec));
    }
    Optional<Nvcc> nvcc = search.nvcc();
    Summary summary =
        nvcc.isPresent()
            ? compileAll(nvcc.get(), specs, out, digests)
            : new Summary(0, 0, new Manifest(List.of()));
    KernelText.writeIfChanged(out.resolve(Manifest.FILE), summary.manifest().text());
    log.println(describe(nvcc, specs, summary));
    return summary;
  }

  private String describe(Optional<Nvcc> nvcc, List<KernelSpec> specs, Summary summary) {
    if (nvcc.isEmpty()) {
      return "kernels: none built for CUDA, because there is no nvcc ("
          + search.reason()
          + "); install the CUDA toolkit or set -D"
          + Nvcc.PROPERTY
          + "=<path of nvcc>";
    }
    String architectures =
        specs.stream()
            .flatMap(spec -> spec.architectures().stream())
            .distinct()
            .sorted()
            .map(Architecture::id)
            .collect(Collectors.joining(", "));
    return String.format(
        Locale.ROOT,
        "kernels: %d up to date, %d compiled (%s; nvcc %s)",
        summary.upToDate(),
        summary.compiled(),
        architectures,
        nvcc.get().version());
  }

  private Summary compileAll(Nvcc nvcc, List<KernelSpec> specs, Path out, Path digests)
      throws IOException {
    Files.createDirectories(digests);
    AtomicInteger compiled = new AtomicInteger();
    List<KernelEntry> entries = new ArrayList<>();
    int processors = Runtime.getRuntime().availableProcessors();
    try (ExecutorService pool = Executors.newFixedThreadPool(processors)) {
      List<Future<KernelEntry>> pending = new ArrayList<>();
      for (KernelSpec spec : specs) {
        pending.add(pool.submit(() -> buildOne(nvcc, spec, out, digests, compiled, specs.size())));
      }
      for (Future<KernelEntry> future : pending) {
        entries.add(await(future, pool));
      }
    }
    return new Summary(compiled.get(), specs.size() - compiled.get(), new Manifest(entries));
  }

  private static KernelEntry await(Future<KernelEntry> future, ExecutorService pool)
      throws IOException {
    try {
      return future.get();
    } catch (InterruptedException stopped) {
      pool.shutdownNow();
      Thread.currentThread().interrupt();
      throw new IOException("interrupted while kernels were compiled", stopped);
    } catch (ExecutionException failed) {
      pool.shutdownNow();
      Throwable cause = failed.getCause();
      if (cause instanceof IOException io) {
        throw io;
      }
      if (cause instanceof RuntimeException unchecked) {
        throw unchecked;
      }
      throw new IllegalStateException(cause);
    }
  }

  private KernelEntry buildOne(
      Nvcc nvcc, KernelSpec spec, Path out, Path digests, AtomicInteger compiled, int total)
      throws IOException {
    Path image = out.resolve(spec.symbol() + ".fatbin");
    Path record = digests.resolve(spec.symbol() + ".tsv");
    String digest = digest(spec, nvcc.version());
    if (Files.exists(image) && Files.exists(record)) {
      List<String> lines = Files.readString(record).lines().toList();
      if (lines.getFirst().equals(digest)) {
        String manifest = String.join("\n", lines.subList(1, lines.size()));
        return Manifest.parse(manifest).entries().getFirst();
      }
    }
    KernelEntry entry = compile(nvcc, spec, out, image);
    Files.writeString(record, digest + "\n" + new Manifest(List.of(entry)).text());
    int done = compiled.incrementAndGet();
    if (done % PROGRESS_STEP == 0) {
      log.println(String.format(Locale.ROOT, "kernels: %d compiled of at most %d", done, total));
    }
    return entry;
  }

  private static KernelEntry compile(Nvcc nvcc, KernelSpec spec, Path out, Path image)
      throws IOException {
    // The image appears under its name only once it is complete and known to be without spills.
    Path fresh = out.resolve(spec.symbol() + ".fatbin.new");
    try {
      String said =
          nvcc.compile(
              out.resolve(spec.symbol() + ".cu"),
              out.resolve(Headers.INCLUDE),
              spec.architectures(),
              fresh);
      KernelEntry entry = KernelEntry.of(spec, PtxasLog.parse(spec.symbol(), said));
      Files.move(fresh, image, StandardCopyOption.REPLACE_EXISTING);
      return entry;
    } finally {
      Files.deleteIfExists(fresh);
    }
  }

  /** The headers that a text includes, directly or through others. */
  private SortedSet<String> included(String text) {
    SortedSet<String> names = new TreeSet<>();
    List<String> pending = new ArrayList<>(List.of(text));
    while (!pending.isEmpty()) {
      Matcher include = INCLUDE.matcher(pending.removeLast());
      while (include.find()) {
        if (names.add(include.group(1))) {
          pending.add(headers.getOrDefault(include.group(1), ""));
        }
      }
    }
    return names;
  }

  /** Of everything that an image and its line depend on. */
  String digest(KernelSpec spec, String nvccVersion) {
    MessageDigest digest;
    try {
      digest = MessageDigest.getInstance("SHA-256");
    } catch (NoSuchAlgorithmException absent) {
      throw new AssertionError("every Java platform has SHA-256", absent);
    }
    List<String> parts = new ArrayList<>();
    String source = KernelText.emit(spec);
    parts.add(source);
    included(source).forEach(name -> parts.addAll(List.of(name, headers.getOrDefault(name, ""))));
    parts.add(Manifest.VERSION);
    parts.add(nvccVersion);
    parts.addAll(Nvcc.flags());
    spec.architectures().forEach(architecture -> parts.addAll(architecture.nvccArguments()));
    for (String part : parts) {
      digest.update(part.getBytes(StandardCharsets.UTF_8));
      digest.update((byte) 0);
    }
    return HexFormat.of().formatHex(digest.digest());
  }
}
