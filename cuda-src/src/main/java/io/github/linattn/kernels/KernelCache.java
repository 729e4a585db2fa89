package io.github.linattn.kernels;

import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernelgen.Manifest;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.locks.ReentrantLock;
import java.util.stream.Stream;
import java.util.zip.ZipEntry;
import java.util.zip.ZipInputStream;
import java.util.zip.ZipOutputStream;

/**
 * A folder of kernels that were compiled on demand. Each is one file, {@code
 * <symbol>-<digest>.zip}, which appears under its name only once it is complete, so that reading
 * takes no lock; a file that another version of linattn made is left alone and not used.
 */
public final class KernelCache {
  /** The system property that names the folder. */
  public static final String PROPERTY = "linattn.cache";

  /** The environment variable that does where the property does not. */
  public static final String VARIABLE = "LINATTN_CACHE";

  private static final System.Logger LOG = System.getLogger(KernelCache.class.getName());

  private static final String SUFFIX = ".zip";
  private static final String LOCK = "lock";
  private static final String WORK = "compiling";

  /** In each file, beside the manifest, the text and the image. */
  private static final String COMPILER = "nvcc.txt";

  /** A file lock holds other processes off and not the threads of this one. */
  private static final ReentrantLock IN_PROCESS = new ReentrantLock();

  private final Path folder;

  private KernelCache(Path folder) {
    this.folder = folder.toAbsolutePath();
  }

  /** In this folder, which need not exist. */
  static KernelCache in(Path folder) {
    return new KernelCache(folder);
  }

  /**
   * That of the user: where the property {@value #PROPERTY} or the variable {@value #VARIABLE}
   * says, else {@code linattn} in XDG_CACHE_HOME or in {@code ~/.cache}.
   */
  public static KernelCache ofUser() {
    return new KernelCache(named().map(Path::of).orElseGet(KernelCache::usualFolder));
  }

  /** Whether the property or the variable names the folder of the user. */
  public static boolean isNamed() {
    return named().isPresent();
  }

  private static Optional<String> named() {
    return Stream.of(System.getProperty(PROPERTY, ""), environment(VARIABLE))
        .filter(each -> !each.isBlank())
        .findFirst();
  }

  private static Path usualFolder() {
    String caches = environment("XDG_CACHE_HOME");
    return caches.isBlank()
        ? Path.of(System.getProperty("user.home"), ".cache", "linattn")
        : Path.of(caches, "linattn");
  }

  private static String environment(String variable) {
    return Optional.ofNullable(System.getenv(variable)).orElse("");
  }

  /** Where it is. */
  public Path folder() {
    return folder;
  }

  /** What this version of linattn can use, the newest first; a damaged file is logged. */
  public List<BuiltKernels> kernels() throws IOException {
    List<BuiltKernels> kernels = new ArrayList<>();
    KernelDigest digest = new KernelDigest(Headers.shipped());
    for (Path file : files()) {
      try {
        if (isOfThisVersion(file, read(file), digest)) {
          kernels.add(BuiltKernels.open(file.toString(), name -> part(file, name)));
        }
      } catch (IOException damaged) {
        LOG.log(
            System.Logger.Level.WARNING,
            "{0} is damaged and not used: {1}; ''linattn generate'' compiles it again",
            file,
            damaged.getMessage());
      }
    }
    return kernels;
  }

  private List<Path> files() throws IOException {
    if (Files.notExists(folder)) {
      return List.of();
    }
    record Dated(Path file, long millis) {}
    List<Dated> files = new ArrayList<>();
    try (Stream<Path> all = Files.list(folder)) {
      for (Path file : all.filter(each -> each.toString().endsWith(SUFFIX)).toList()) {
        try {
          files.add(new Dated(file, Files.getLastModifiedTime(file).toMillis()));
        } catch (NoSuchFileException gone) {
          LOG.log(System.Logger.Level.DEBUG, "{0} is listed, and not there", file);
        }
      }
    }
    return files.stream()
        .sorted(Comparator.comparingLong(Dated::millis).reversed().thenComparing(Dated::file))
        .map(Dated::file)
        .toList();
  }

  private boolean isOfThisVersion(Path file, Map<String, byte[]> parts, KernelDigest digest)
      throws IOException {
    try {
      KernelEntry entry = entry(parts);
      KernelSpec spec =
          new KernelSpec(
              entry.operation(),
              entry.family(),
              entry.technique(),
              entry.headDim(),
              entry.slices(),
              entry.elementType(),
              entry.precision(),
              entry.architectures());
      return file.equals(file(spec, digest.of(spec, text(parts, COMPILER))));
    } catch (IllegalArgumentException unknownHere) {
      return false;
    }
  }

  /** The kernel of this digest, or empty; a damaged file counts as none, and the log says so. */
  Optional<KernelEntry> find(KernelSpec spec, String digest, PrintStream log) {
    Path file = file(spec, digest);
    try {
      return Optional.of(entry(read(file)));
    } catch (NoSuchFileException absent) {
      return Optional.empty();
    } catch (IOException | IllegalArgumentException damaged) {
      log.println(
          "kernels: " + file + " is damaged (" + damaged.getMessage() + ") and compiled again");
      return Optional.empty();
    }
  }

  /**
   * Keeps a kernel.
   *
   * @param folderOfFiles where its image and its text are
   */
  void put(KernelSpec spec, String digest, KernelEntry entry, Nvcc nvcc, Path folderOfFiles)
      throws IOException {
    Path fresh = folderOfFiles.resolve(entry.symbol() + SUFFIX);
    try (var zip = new ZipOutputStream(Files.newOutputStream(fresh))) {
      add(zip, Manifest.FILE, new Manifest(List.of(entry)).text().getBytes(StandardCharsets.UTF_8));
      add(zip, COMPILER, nvcc.version().getBytes(StandardCharsets.UTF_8));
      add(zip, entry.sourceFile(), Files.readAllBytes(folderOfFiles.resolve(entry.sourceFile())));
      add(zip, entry.file(), Files.readAllBytes(folderOfFiles.resolve(entry.file())));
    }
    Files.move(
        fresh,
        file(spec, digest),
        StandardCopyOption.ATOMIC_MOVE,
        StandardCopyOption.REPLACE_EXISTING);
  }

  private static void add(ZipOutputStream zip, String name, byte[] content) throws IOException {
    zip.putNextEntry(new ZipEntry(name));
    zip.write(content);
    zip.closeEntry();
  }

  /** Where the owner of the lock compiles; what a process that was killed left there is removed. */
  Path emptyWorkFolder() throws IOException {
    Path work = folder.resolve(WORK);
    if (Files.exists(work)) {
      try (Stream<Path> all = Files.walk(work)) {
        for (Path each : all.sorted(Comparator.reverseOrder()).toList()) {
          Files.delete(each);
        }
      }
    }
    return Files.createDirectory(work);
  }

  /** Held by the one process, and the one thread of it, that compiles. */
  interface Lock extends AutoCloseable {
    @Override
    void close() throws IOException;
  }

  /** Waits until nobody else compiles into this folder; the log says so. */
  Lock lock(PrintStream log) throws IOException {
    Files.createDirectories(folder);
    IN_PROCESS.lock();
    try {
      FileChannel channel =
          FileChannel.open(
              folder.resolve(LOCK), StandardOpenOption.CREATE, StandardOpenOption.WRITE);
      try {
        FileLock free = channel.tryLock();
        if (free == null) {
          log.println("kernels: waiting for another process that compiles into " + folder);
          channel.lock();
        }
      } catch (IOException | RuntimeException e) {
        channel.close();
        throw e;
      }
      return () -> {
        try {
          channel.close();
        } finally {
          IN_PROCESS.unlock();
        }
      };
    } catch (IOException | RuntimeException e) {
      IN_PROCESS.unlock();
      throw e;
    }
  }

  private Path file(KernelSpec spec, String digest) {
    return folder.resolve(spec.symbol() + "-" + digest + SUFFIX);
  }

  private static KernelEntry entry(Map<String, byte[]> parts) throws IOException {
    List<KernelEntry> entries = Manifest.parse(text(parts, Manifest.FILE)).entries();
    if (entries.size() != 1 || !parts.containsKey(entries.getFirst().file())) {
      throw new IOException("it is not one kernel with its image");
    }
    return entries.getFirst();
  }

  private static String text(Map<String, byte[]> parts, String name) throws IOException {
    return new String(part(parts, name), StandardCharsets.UTF_8);
  }

  private static InputStream part(Path file, String name) throws IOException {
    return new ByteArrayInputStream(part(read(file), name));
  }

  private static byte[] part(Map<String, byte[]> parts, String name) throws IOException {
    byte[] content = parts.get(name);
    if (content == null) {
      throw new IOException("it has no " + name);
    }
    return content;
  }

  /** All parts of a file; their check sums are compared on the way. */
  private static Map<String, byte[]> read(Path file) throws IOException {
    Map<String, byte[]> parts = new HashMap<>();
    try (var zip = new ZipInputStream(Files.newInputStream(file))) {
      for (ZipEntry each = zip.getNextEntry(); each != null; each = zip.getNextEntry()) {
        parts.put(each.getName(), zip.readAllBytes());
      }
    }
    return parts;
  }
}
