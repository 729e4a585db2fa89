package io.github.linattn.kernels;

import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.Catalogue;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernelgen.KernelText;
import io.github.linattn.kernelgen.Manifest;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.Set;
import java.util.SortedMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;

/**
 * Turns specifications into a folder of kernels: {@code <symbol>.cu} and {@code <symbol>.fatbin} of
 * each, the headers below {@code include/}, and the manifest. Kernels are compiled in parallel, and
 * only where their text, a header, nvcc or its flags changed since the folder was last built.
 */
public final class KernelBuild {
  private static final int PROGRESS_STEP = 8;

  private static final Summary NOTHING = new Summary(0, 0, new Manifest(List.of()));

  private final SortedMap<String, String> headers;
  private final Nvcc.Search search;
  private final PrintStream log;
  private final boolean strict;

  /**
   * What a build did.
   *
   * @param compiled kernels that nvcc compiled
   * @param upToDate kernels that were left as they were
   * @param manifest what was written; empty where there is no nvcc
   */
  public record Summary(int compiled, int upToDate, Manifest manifest) {}

  /**
   * A build.
   *
   * @param strict whether a kernel that spills registers or waits after each of its products ends
   *     the build; else a line in the log tells it
   */
  KernelBuild(
      SortedMap<String, String> headers, Nvcc.Search search, PrintStream log, boolean strict) {
    this.headers = headers;
    this.search = search;
    this.log = log;
    this.strict = strict;
  }

  /**
   * The build of this module: {@code KernelBuild <folder of the kernels> <folder of the digests>
   * <default, all or none: the architectures> <default, or head dimensions such as 64,128>}.
   */
  public static void main(String[] args) throws IOException {
    if (args.length != 4) {
      throw new IllegalArgumentException(
          "usage: KernelBuild <kernels folder> <digests folder> default|all|none default|64,128");
    }
    List<Integer> headDims = headDims(args[3]);
    List<KernelSpec> specs =
        switch (args[2]) {
          case "default" -> Catalogue.forHeadDims(headDims, Catalogue.defaultArchitectures());
          case "all" -> Catalogue.forHeadDims(headDims, Catalogue.allArchitectures());
          case "none" -> List.of();
          default ->
              throw new IllegalArgumentException(
                  "linattn.architectures is default, all or none, got '%s'".formatted(args[2]));
        };
    new KernelBuild(Headers.shipped(), Nvcc.find(), System.out, true)
        .run(specs, Path.of(args[0]), Path.of(args[1]));
  }

  /** Of the shipped ones: kernels for others may spill, which ends this build. */
  private static List<Integer> headDims(String asked) {
    if (asked.equals("default")) {
      return Catalogue.HEAD_DIMS;
    }
    Set<String> names = new HashSet<>(List.of(asked.split(",")));
    List<Integer> chosen =
        Catalogue.HEAD_DIMS.stream().filter(headDim -> names.remove(headDim.toString())).toList();
    if (!names.isEmpty()) {
      throw new IllegalArgumentException(
          "linattn.headDims is default, or some of %s with commas between, got '%s';"
                  .formatted(Catalogue.HEAD_DIMS, asked)
              + " 'linattn generate' compiles others");
    }
    return chosen;
  }

  /**
   * Compiles those of the kernels that a cache lacks. Where several processes ask, one compiles and
   * the others wait for it.
   *
   * @param log receives one line per few kernels, one for each damaged file and each kernel that is
   *     flawed, and a summary
   * @throws KernelBuildException if nvcc refuses a kernel; those that were compiled before are kept
   */
  public static Summary generate(List<KernelSpec> specs, KernelCache cache, PrintStream log)
      throws IOException {
    return new KernelBuild(Headers.shipped(), Nvcc.find(), log, false).run(specs, cache);
  }

  /**
   * Writes kernels to a folder, and compiles them where nvcc is found. Other kernels that the
   * folder already holds stay listed, and without nvcc these, too, where nothing that they were
   * made of has changed.
   *
   * @param out created where it does not exist; {@link BuiltKernels#load} reads it
   * @param log receives one line per few kernels, one for each that is flawed, and a summary
   * @throws KernelBuildException if nvcc refuses a kernel
   */
  public static Summary generate(List<KernelSpec> specs, Path out, PrintStream log)
      throws IOException {
    List<KernelEntry> entries = new ArrayList<>();
    if (Files.exists(out.resolve(Manifest.FILE))) {
      entries.addAll(Manifest.parse(Files.readString(out.resolve(Manifest.FILE))).entries());
    }
    var build = new KernelBuild(Headers.shipped(), Nvcc.find(), log, false);
    Set<String> stale = build.write(specs, out);
    Summary summary = build.compile(specs, out, out.resolve(".digests"));
    List<KernelEntry> built = summary.manifest().entries();
    built.forEach(entry -> stale.add(entry.symbol()));
    entries.removeIf(entry -> stale.contains(entry.symbol()));
    entries.addAll(built);
    Manifest merged = new Manifest(entries);
    KernelText.writeIfChanged(out.resolve(Manifest.FILE), merged.text());
    return new Summary(summary.compiled(), summary.upToDate(), merged);
  }

  /** Builds the kernels and writes a manifest of exactly these. */
  Summary run(List<KernelSpec> specs, Path out, Path digests) throws IOException {
    write(specs, out);
    Summary summary = compile(specs, out, digests);
    KernelText.writeIfChanged(out.resolve(Manifest.FILE), summary.manifest().text());
    return summary;
  }

  /** Writes the headers and the text of each kernel; returns the symbols of what has changed. */
  private Set<String> write(List<KernelSpec> specs, Path out) throws IOException {
    Files.createDirectories(out);
    boolean all = Headers.write(headers, out);
    Set<String> changed = new HashSet<>();
    for (KernelSpec spec : specs) {
      Path text = out.resolve(spec.symbol() + ".cu");
      if (KernelText.writeIfChanged(text, KernelText.emit(spec)) || all) {
        changed.add(spec.symbol());
      }
    }
    return changed;
  }

  /** Compiles what was written, where there is nvcc. */
  private Summary compile(List<KernelSpec> specs, Path out, Path digests) throws IOException {
    Optional<Nvcc> nvcc = search.nvcc();
    Summary summary = NOTHING;
    if (nvcc.isPresent()) {
      Files.createDirectories(digests);
      summary = buildAll(specs, (spec, done) -> buildOne(nvcc.get(), spec, out, digests, done));
    }
    log.println(describe(nvcc, specs, summary));
    return summary;
  }

  /** Builds the kernels that the cache lacks. */
  Summary run(List<KernelSpec> specs, KernelCache cache) throws IOException {
    Optional<Nvcc> nvcc = search.nvcc();
    Summary summary = NOTHING;
    if (nvcc.isPresent()) {
      try (KernelCache.Lock held = cache.lock(log)) {
        Path work = cache.emptyWorkFolder();
        Headers.write(headers, work);
        summary = buildAll(specs, (spec, done) -> buildOne(nvcc.get(), spec, cache, work, done));
        cache.emptyWorkFolder();
      }
    }
    log.println(describe(nvcc, specs, summary));
    return summary;
  }

  private String describe(Optional<Nvcc> nvcc, List<KernelSpec> specs, Summary summary) {
    if (specs.isEmpty()) {
      return "kernels: none are asked for";
    }
    if (nvcc.isEmpty()) {
      return "kernels: none built for CUDA, because there is no nvcc ("
          + search.reason()
          + "); install the CUDA toolkit or set CUDA_HOME";
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

  /** What is done for one kernel: nothing where it is up to date, else {@code compiled} is run. */
  private interface Builder {
    KernelEntry build(KernelSpec spec, Runnable compiled) throws IOException;
  }

  private Summary buildAll(List<KernelSpec> specs, Builder builder) throws IOException {
    AtomicInteger compiled = new AtomicInteger();
    List<KernelEntry> entries = new ArrayList<>();
    int processors = Runtime.getRuntime().availableProcessors();
    try (ExecutorService pool = Executors.newFixedThreadPool(processors)) {
      List<Future<KernelEntry>> pending = new ArrayList<>();
      for (KernelSpec spec : specs) {
        Runnable tell = () -> tell(compiled, specs.size());
        pending.add(pool.submit(() -> builder.build(spec, tell)));
      }
      for (Future<KernelEntry> future : pending) {
        entries.add(await(future, pool));
      }
    }
    return new Summary(compiled.get(), entries.size() - compiled.get(), new Manifest(entries));
  }

  private void tell(AtomicInteger compiled, int total) {
    int done = compiled.incrementAndGet();
    if (done % PROGRESS_STEP == 0) {
      log.println(String.format(Locale.ROOT, "kernels: %d compiled of at most %d", done, total));
    }
  }

  private static <T> T await(Future<T> future, ExecutorService pool) throws IOException {
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
      Nvcc nvcc, KernelSpec spec, Path out, Path digests, Runnable compiled) throws IOException {
    Path image = out.resolve(spec.symbol() + ".fatbin");
    Path record = digests.resolve(spec.symbol() + ".tsv");
    String digest = digest(spec, nvcc.version());
    if (Files.exists(image) && Files.exists(record)) {
      Optional<KernelEntry> recorded = recorded(Files.readString(record), digest);
      if (recorded.isPresent()) {
        return recorded.get();
      }
    }
    KernelEntry entry = compile(nvcc, spec, out, image);
    // The record appears under its name only once it is complete.
    Path fresh = digests.resolve(spec.symbol() + ".tsv.new");
    Files.writeString(fresh, digest + "\n" + new Manifest(List.of(entry)).text());
    Files.move(fresh, record, StandardCopyOption.REPLACE_EXISTING);
    compiled.run();
    return entry;
  }

  /** What a record of this digest says; a damaged one counts as none. */
  private static Optional<KernelEntry> recorded(String record, String digest) {
    String[] parts = record.split("\n", 2);
    if (parts.length < 2 || !parts[0].equals(digest)) {
      return Optional.empty();
    }
    try {
      return Manifest.parse(parts[1]).entries().stream().findFirst();
    } catch (IllegalArgumentException damaged) {
      return Optional.empty();
    }
  }

  private KernelEntry buildOne(
      Nvcc nvcc, KernelSpec spec, KernelCache cache, Path work, Runnable compiled)
      throws IOException {
    String digest = digest(spec, nvcc.version());
    Optional<KernelEntry> kept = cache.find(spec, digest, log);
    if (kept.isPresent()) {
      return kept.get();
    }
    Files.writeString(work.resolve(spec.symbol() + ".cu"), KernelText.emit(spec));
    KernelEntry entry = compile(nvcc, spec, work, work.resolve(spec.symbol() + ".fatbin"));
    cache.put(spec, digest, entry, nvcc, work);
    compiled.run();
    return entry;
  }

  private String digest(KernelSpec spec, String nvccVersion) {
    return new KernelDigest(headers).of(spec, nvccVersion);
  }

  private void report(KernelSpec spec, String flaw) {
    String sentence = spec.symbol() + " " + flaw;
    if (strict) {
      throw new KernelBuildException("kernel " + sentence);
    }
    log.println("kernels: slower than it might be: " + sentence);
  }

  private KernelEntry compile(Nvcc nvcc, KernelSpec spec, Path out, Path image) throws IOException {
    // The image appears under its name only once it is complete and its flaws are known.
    Path fresh = out.resolve(spec.symbol() + ".fatbin.new");
    try {
      String said =
          nvcc.compile(
              out.resolve(spec.symbol() + ".cu"),
              out.resolve(Headers.INCLUDE),
              spec.architectures(),
              fresh);
      PtxasLog.flaw(said).ifPresent(flaw -> report(spec, flaw));
      Files.move(fresh, image, StandardCopyOption.REPLACE_EXISTING);
      return KernelEntry.of(spec, PtxasLog.usage(said));
    } finally {
      Files.deleteIfExists(fresh);
    }
  }
}
