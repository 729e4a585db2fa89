import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.spi.ToolProvider;
import java.util.stream.Stream;

/**
 * Builds the self-contained image for machines that have a GPU and nothing else: a Java run time,
 * the jars with the kernels, the test suite, the CUDA Runtime and the launcher. Run by the profile
 * {@code image} as a single source file on the JDK whose run time goes into the image.
 *
 * <p>Arguments: the root of the repository, the folder of the jars, the folder of the suite's jars,
 * the folder to work in.
 */
final class BuildImage {
  private static final String NAME = "linattn-image";
  /** The CUDA Runtimes that linattn can use, the newest first. */
  private static final List<String> CUDARTS = List.of("libcudart.so.13", "libcudart.so.12");

  // jdk.zipfs: without it the JUnit console finds no test in a jar.
  private static final String MODULES =
      "java.base,java.desktop,java.logging,java.management,java.sql,java.xml,jdk.jfr,jdk.management,"
          + "jdk.unsupported,jdk.zipfs,jdk.incubator.vector";

  private final Path root;
  private final Path image;

  private BuildImage(Path root, Path work) {
    this.root = root;
    this.image = work.resolve(NAME);
  }

  public static void main(String[] args) throws IOException, InterruptedException {
    Path work = Path.of(args[3]).toAbsolutePath();
    var build = new BuildImage(Path.of(args[0]), work);
    delete(build.image);
    Files.createDirectories(build.image);
    build.makeRuntime();
    build.copyJars(Path.of(args[1]), "lib");
    build.copyJars(Path.of(args[2]), "suite");
    build.copyLauncher();
    build.copyPeers();
    build.copyTuning();
    build.copyCudaRuntime();
    build.pack(work.resolve(NAME + ".tar.xz"));
  }

  private void makeRuntime() {
    ToolProvider jlink = ToolProvider.findFirst("jlink").orElseThrow();
    int status =
        jlink.run(
            System.out,
            System.err,
            "--add-modules=" + MODULES,
            "--strip-debug",
            "--no-header-files",
            "--no-man-pages",
            "--output=" + image.resolve("runtime"));
    if (status != 0) {
      throw new IllegalStateException("jlink ended with " + status);
    }
  }

  private void copyJars(Path from, String folder) throws IOException {
    Path target = Files.createDirectories(image.resolve(folder));
    try (DirectoryStream<Path> jars = Files.newDirectoryStream(from, "*.jar")) {
      for (Path jar : jars) {
        Files.copy(jar, target.resolve(jar.getFileName()));
      }
    }
  }

  private void copyLauncher() throws IOException {
    Path launcher = Files.createDirectories(image.resolve("bin")).resolve("linattn");
    Files.copy(root.resolve("linattn"), launcher, StandardCopyOption.COPY_ATTRIBUTES);
    launcher.toFile().setExecutable(true, false);
    Files.copy(root.resolve("README.md"), image.resolve("README.md"));
    Files.copy(root.resolve("LICENSE"), image.resolve("LICENSE"));
    Files.copy(root.resolve("test/src/image/THIRD-PARTY"), image.resolve("THIRD-PARTY"));
  }

  private void copyPeers() throws IOException {
    Path target = Files.createDirectories(image.resolve("bench/peers"));
    try (DirectoryStream<Path> programs =
        Files.newDirectoryStream(root.resolve("bench/peers"), "*.py")) {
      for (Path program : programs) {
        Files.copy(program, target.resolve(program.getFileName()));
      }
    }
  }

  private void copyTuning() throws IOException {
    Path file = Path.of("tuning/nvidia-h200.json");
    Files.createDirectories(image.resolve(file).getParent());
    Files.copy(root.resolve(file), image.resolve(file));
  }

  private void copyCudaRuntime() throws IOException {
    Optional<Path> found =
        cudaFolders().stream().map(BuildImage::cudart).flatMap(Optional::stream).findFirst();
    if (found.isEmpty()) {
      System.out.println(
          "image: left out libcudart, because no CUDA toolkit 12 or 13 is here; set CUDA_HOME to add it");
      return;
    }
    Path folder = Files.createDirectories(image.resolve("lib/native"));
    Files.copy(found.get().toRealPath(), folder.resolve(found.get().getFileName()));
  }

  /** Roots of CUDA toolkits, the most wanted first. */
  private static List<Path> cudaFolders() throws IOException {
    List<Path> folders = new ArrayList<>();
    for (String variable : List.of("CUDA_HOME", "CUDA_PATH")) {
      String value = System.getenv(variable);
      if (value != null && !value.isBlank()) {
        folders.add(Path.of(value));
      }
    }
    for (String folder : System.getenv().getOrDefault("PATH", "").split(":")) {
      Path nvcc = Path.of(folder, "nvcc");
      if (!folder.isBlank() && Files.isExecutable(nvcc)) {
        folders.add(nvcc.toRealPath().getParent().getParent());
      }
    }
    folders.add(Path.of("/usr/local/cuda"));
    if (Files.isDirectory(Path.of("/usr/local"))) {
      try (Stream<Path> versions = Files.list(Path.of("/usr/local"))) {
        versions
            .filter(folder -> folder.getFileName().toString().startsWith("cuda-13"))
            .sorted(Comparator.reverseOrder())
            .forEach(folders::add);
      }
    }
    return folders;
  }

  private static Optional<Path> cudart(Path toolkit) {
    return Stream.of("lib64", "lib", "targets/x86_64-linux/lib")
        .flatMap(folder -> CUDARTS.stream().map(toolkit.resolve(folder)::resolve))
        .filter(Files::isRegularFile)
        .findFirst();
  }

  private void pack(Path archive) throws IOException, InterruptedException {
    int status =
        new ProcessBuilder(
                "tar",
                "--create",
                "--xz",
                "--owner=0",
                "--group=0",
                "--directory=" + image.getParent(),
                "--file=" + archive,
                NAME)
            .inheritIO()
            .start()
            .waitFor();
    if (status != 0) {
      throw new IllegalStateException("tar ended with " + status);
    }
    System.out.printf("image: %s, %.1f MB%n", archive, Files.size(archive) / 1e6);
  }

  private static void delete(Path folder) throws IOException {
    if (!Files.exists(folder, LinkOption.NOFOLLOW_LINKS)) {
      return;
    }
    try (Stream<Path> files = Files.walk(folder)) {
      files
          .sorted(Comparator.reverseOrder())
          .forEach(
              file -> {
                try {
                  Files.delete(file);
                } catch (IOException e) {
                  throw new UncheckedIOException(e);
                }
              });
    }
  }
}
