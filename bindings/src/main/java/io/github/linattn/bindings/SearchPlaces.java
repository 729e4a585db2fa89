package io.github.linattn.bindings;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * Where libcudart is looked for, in order. Reads properties, the environment and folder listings
 * only; opens no library.
 *
 * @param property system properties by name
 * @param environment environment variables by name
 * @param root the folder that stands for {@code /}
 * @param loaderNames what to ask the system's loader for when no folder had the library
 */
record SearchPlaces(
    Function<String, Optional<String>> property,
    Function<String, Optional<String>> environment,
    Path root,
    List<String> loaderNames) {

  static final String PROPERTY = "linattn.cudart";
  static final String VARIABLE = "LINATTN_CUDART";
  static final String HOME_PROPERTY = "linattn.home";

  /** Newest first; the last is the name that a development package installs. */
  static final List<String> FILE_NAMES =
      List.of("libcudart.so.13", "libcudart.so.12", "libcudart.so");

  private static final List<String> USUAL_FOLDERS =
      List.of(
          "usr/lib/x86_64-linux-gnu",
          "usr/lib/aarch64-linux-gnu",
          "usr/lib64",
          "opt/cuda/lib64",
          "usr/lib/wsl/lib");

  private static final Pattern TOOLKIT = Pattern.compile("cuda-(\\d+)(?:\\.(\\d+))?");

  /** The places of this process. */
  static SearchPlaces ofProcess() {
    return new SearchPlaces(
        name -> Optional.ofNullable(System.getProperty(name)),
        name -> Optional.ofNullable(System.getenv(name)),
        Path.of("/"),
        FILE_NAMES);
  }

  /**
   * One place.
   *
   * @param origin who named it, for the message
   * @param place the file, folder or loader name
   * @param explicit whether a user named this very library, so that nothing else may replace it
   * @param files the files to open, existing ones only; a loader name for the loader's own search
   */
  record Place(String origin, String place, boolean explicit, List<String> files) {}

  /** All places in order; an explicit one stands alone. */
  List<Place> inOrder() {
    Optional<Place> explicit =
        setting("system property " + PROPERTY, property.apply(PROPERTY))
            .or(() -> setting("environment variable " + VARIABLE, environment.apply(VARIABLE)));
    if (explicit.isPresent()) {
      return List.of(explicit.get());
    }
    List<Place> places = new ArrayList<>();
    property
        .apply(HOME_PROPERTY)
        .ifPresent(
            home -> addFolder(places, "system property " + HOME_PROPERTY, home, "lib/native"));
    for (String variable : List.of("CUDA_HOME", "CUDA_PATH")) {
      environment
          .apply(variable)
          .filter(value -> !value.isBlank())
          .ifPresent(
              home -> {
                addFolder(places, "environment variable " + variable, home, "lib64");
                addFolder(places, "environment variable " + variable, home, "lib");
              });
    }
    for (Path folder : usualFolders()) {
      places.add(folder("usual folder", folder));
    }
    for (String name : loaderNames) {
      places.add(new Place("system loader", name, false, List.of(name)));
    }
    return places;
  }

  private static Optional<Place> setting(String origin, Optional<String> value) {
    return value
        .filter(text -> !text.isBlank())
        .map(text -> new Place(origin, text, true, explicitFiles(text)));
  }

  private static List<String> explicitFiles(String text) {
    return path(text)
        .map(
            path ->
                Files.isDirectory(path)
                    ? filesIn(path)
                    : Files.exists(path)
                        ? List.of(path.toAbsolutePath().toString())
                        : List.<String>of())
        .orElse(List.of());
  }

  private static void addFolder(List<Place> places, String origin, String home, String below) {
    path(home)
        .ifPresentOrElse(
            path -> places.add(folder(origin, path.resolve(below))),
            () -> places.add(new Place(origin, home, false, List.of())));
  }

  private static Place folder(String origin, Path folder) {
    return new Place(origin, folder.toString(), false, filesIn(folder));
  }

  private static List<String> filesIn(Path folder) {
    return FILE_NAMES.stream()
        .map(folder::resolve)
        .filter(Files::exists)
        .map(file -> file.toAbsolutePath().toString())
        .toList();
  }

  private static Optional<Path> path(String text) {
    try {
      return Optional.of(Path.of(text));
    } catch (InvalidPathException e) {
      return Optional.empty();
    }
  }

  private List<Path> usualFolders() {
    List<Path> folders = new ArrayList<>();
    folders.add(root.resolve("usr/local/cuda/lib64"));
    for (Path toolkit : toolkitsNewestFirst()) {
      folders.add(toolkit.resolve("lib64"));
    }
    for (String folder : USUAL_FOLDERS) {
      folders.add(root.resolve(folder));
    }
    return folders;
  }

  private List<Path> toolkitsNewestFirst() {
    Path local = root.resolve("usr/local");
    if (!Files.isDirectory(local)) {
      return List.of();
    }
    try (Stream<Path> entries = Files.list(local)) {
      return entries
          .filter(entry -> TOOLKIT.matcher(entry.getFileName().toString()).matches())
          .sorted(Comparator.comparing(SearchPlaces::toolkitVersion).reversed())
          .toList();
    } catch (IOException | UncheckedIOException e) {
      // An unreadable folder holds nothing that could be opened; the places after it still count.
      return List.of();
    }
  }

  private static CudaVersion toolkitVersion(Path toolkit) {
    Matcher name = TOOLKIT.matcher(toolkit.getFileName().toString());
    if (!name.matches()) {
      throw new IllegalArgumentException("not a toolkit folder: " + toolkit);
    }
    String minor = name.group(2);
    return new CudaVersion(
        Integer.parseInt(name.group(1)), minor == null ? 0 : Integer.parseInt(minor));
  }
}
