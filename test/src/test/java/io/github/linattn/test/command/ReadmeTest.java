package io.github.linattn.test.command;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.LinearAttention;
import io.github.linattn.cli.Main;
import io.github.linattn.cuda.CudaException;
import io.github.linattn.kernelgen.Catalogue;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Manifest;
import io.github.linattn.test.command.Launcher.Ended;
import io.github.linattn.test.harness.Native;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.net.URI;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import javax.tools.DiagnosticCollector;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Breaks when README.md shows a command that fails, or Java that does not compile. */
final class ReadmeTest {
  private static final String NEEDS_GPU = "# needs a GPU";
  private static final Pattern BLOCK = Pattern.compile("(?ms)^```(\\w+)\\n(.*?)^```");
  private static final Pattern VARIES = Pattern.compile("\\d+|\\.\\.\\.|\\[[^\\]]*\\]");
  private static final Pattern CLASS = Pattern.compile("(?m)^(?:public )?(?:final )?class (\\w+)");

  @TempDir Path folder;

  private static List<String> blocks(String language) throws IOException {
    Matcher matcher = BLOCK.matcher(Files.readString(Native.root().resolve("README.md")));
    List<String> blocks = new ArrayList<>();
    while (matcher.find()) {
      if (matcher.group(1).equals(language)) {
        blocks.add(matcher.group(2));
      }
    }
    return blocks;
  }

  /** Lines that start linattn, in the order of the page. */
  static List<String> commands() throws IOException {
    List<String> commands = new ArrayList<>();
    for (String block : blocks("sh")) {
      String before = "";
      for (String line : block.lines().toList()) {
        if (line.startsWith("./linattn") && !before.startsWith(NEEDS_GPU)) {
          commands.add(line);
        }
        before = line;
      }
    }
    return commands;
  }

  @ParameterizedTest
  @MethodSource("commands")
  void commandsRunAsWritten(String command) throws Exception {
    List<Path> links = linkRepository();
    try {
      Ended ended = Launcher.run(folder, List.of("bash", "-c", command));
      ended.assertDone();
      assertThat(ended.out()).as("stdout of " + command).isNotBlank();
      if (command.startsWith("./linattn verify")) {
        assertThat(ended.out()).contains(" 0 failed");
      }
    } finally {
      for (Path link : links) {
        Files.delete(link);
      }
    }
  }

  /** The same paths as in the repository, but what the command writes stays here. */
  private List<Path> linkRepository() throws IOException {
    Set<String> left = Set.of(".git", "target");
    List<Path> links = new ArrayList<>();
    try (DirectoryStream<Path> entries = Files.newDirectoryStream(Native.root())) {
      for (Path entry : entries) {
        if (!left.contains(entry.getFileName().toString())) {
          links.add(Files.createSymbolicLink(folder.resolve(entry.getFileName()), entry));
        }
      }
    }
    return links;
  }

  @Test
  void javaCompiles() throws IOException {
    List<JavaFileObject> sources = new ArrayList<>();
    for (String block : blocks("java")) {
      Matcher name = CLASS.matcher(block);
      assertThat(name.find()).as("a class in the block %s", block).isTrue();
      sources.add(new Source(name.group(1), block));
    }
    assertThat(sources).isNotEmpty();
    JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
    var problems = new DiagnosticCollector<JavaFileObject>();
    List<String> options =
        List.of("-d", folder.toString(), "-cp", String.join(File.pathSeparator, classPath()));
    boolean compiled = compiler.getTask(null, null, problems, options, null, sources).call();
    assertThat(compiled).as(() -> problems.getDiagnostics().toString()).isTrue();
  }

  /**
   * That of the kernels that a build makes where there is nvcc; built or not, they are asked for.
   */
  @Test
  void showsTheKernelMatrix() throws IOException {
    List<KernelEntry> entries =
        Catalogue.defaults().stream().map(spec -> KernelEntry.of(spec, new TreeMap<>())).toList();
    Files.writeString(folder.resolve(Manifest.FILE), new Manifest(entries).text());
    var out = new ByteArrayOutputStream();
    System.setProperty("linattn.kernels", folder.toString());
    try {
      String[] command = {"kernels", "--matrix"};
      assertThat(Main.run(command, new PrintStream(out, true, UTF_8), System.err)).isZero();
    } finally {
      System.clearProperty("linattn.kernels");
    }
    assertThat(Native.root().resolve("README.md")).content().contains(out.toString(UTF_8));
  }

  /** The keys of its table of troubles, but for those that the JVM prints. */
  @Test
  void troublesAreToldInTheWordsOfTheSources() throws IOException {
    String said = sources();
    List<String> unsaid =
        Files.readString(Native.root().resolve("README.md"))
            .lines()
            .dropWhile(line -> !line.startsWith("## When something goes wrong"))
            .skip(1)
            .takeWhile(line -> !line.startsWith("## "))
            .filter(line -> line.startsWith("| `") && !line.startsWith("| `WARNING"))
            .map(line -> line.substring(3, line.indexOf('`', 3)))
            .flatMap(key -> Stream.of(VARIES.split(key)))
            .filter(words -> !words.isBlank() && !said.contains(words.strip()))
            .toList();
    assertThat(unsaid).isEmpty();
    assertThat(VARIES.split("built: [32, 64, ...] for 80")).contains("built: ", " for ");
  }

  /** The launcher and the Java that ships, with literals of several lines as one. */
  private static String sources() throws IOException {
    StringBuilder text = new StringBuilder(Files.readString(Native.root().resolve("linattn")));
    for (String module : List.of("bindings", "runtime", "cli", "cuda-src")) {
      try (Stream<Path> files = Files.walk(Native.root().resolve(module + "/src/main/java"))) {
        for (Path file : files.filter(each -> each.toString().endsWith(".java")).toList()) {
          text.append(Files.readString(file).replaceAll("\"\\s*\\+\\s*\"", ""));
        }
      }
    }
    return text.toString().replace("%s", "").replace("$OLDEST_JAVA", "");
  }

  /** What an application has to have on its class path. */
  private static List<String> classPath() {
    return Stream.of(LinearAttention.class, CudaException.class)
        .map(type -> type.getProtectionDomain().getCodeSource().getLocation().getPath())
        .toList();
  }

  private static final class Source extends SimpleJavaFileObject {
    private final String text;

    Source(String name, String text) {
      super(URI.create("string:///" + name + ".java"), Kind.SOURCE);
      this.text = text;
    }

    @Override
    public CharSequence getCharContent(boolean ignoreEncodingErrors) {
      return text;
    }
  }
}
