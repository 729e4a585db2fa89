package io.github.linattn.bindings;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.bindings.LibrarySearch.Nothing;
import io.github.linattn.bindings.LibrarySearch.Usable;
import io.github.linattn.bindings.SearchPlaces.Place;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The order of the search, and the sentence for each way in which it can fail. */
class LibrarySearchTest {
  @TempDir Path temp;

  private SearchPlaces places(
      Map<String, String> properties, Map<String, String> environment, String... loaderNames) {
    return new SearchPlaces(
        name -> Optional.ofNullable(properties.get(name)),
        name -> Optional.ofNullable(environment.get(name)),
        temp,
        List.of(loaderNames));
  }

  private SearchPlaces explicit(Path file) {
    return places(Map.of(SearchPlaces.PROPERTY, file.toString()), Map.of());
  }

  private static CudaLibrary.Missing missing(SearchPlaces places) {
    LibrarySearch.Outcome outcome = LibrarySearch.run(places);
    assertThat(outcome).isInstanceOf(Nothing.class);
    return ((Nothing) outcome).missing();
  }

  private static Usable usable(SearchPlaces places) {
    LibrarySearch.Outcome outcome = LibrarySearch.run(places);
    assertThat(outcome).isInstanceOf(Usable.class);
    return (Usable) outcome;
  }

  @Test
  void placesComeInTheDocumentedOrder() throws IOException {
    for (String toolkit : List.of("cuda-9.2", "cuda-12.8", "cuda-13.0", "cuda-13", "cudnn-9")) {
      Files.createDirectories(temp.resolve("usr/local").resolve(toolkit));
    }
    List<Place> order =
        places(
                Map.of(SearchPlaces.HOME_PROPERTY, "/image"),
                Map.of("CUDA_HOME", "/home", "CUDA_PATH", "/path"),
                "libcudart.so.13")
            .inOrder();
    assertThat(order.stream().map(Place::place).limit(6))
        .containsExactly(
            "/image/lib/native",
            "/home/lib64",
            "/home/lib",
            "/path/lib64",
            "/path/lib",
            temp + "/usr/local/cuda/lib64");
    assertThat(order.stream().map(Place::place).filter(place -> place.contains("cuda-")))
        .containsExactlyInAnyOrder(
            temp + "/usr/local/cuda-13.0/lib64",
            temp + "/usr/local/cuda-13/lib64",
            temp + "/usr/local/cuda-12.8/lib64",
            temp + "/usr/local/cuda-9.2/lib64")
        .endsWith(temp + "/usr/local/cuda-12.8/lib64", temp + "/usr/local/cuda-9.2/lib64");
    assertThat(order.getLast()).extracting(Place::origin).isEqualTo("system loader");
  }

  @Test
  void propertyIsTakenBeforeTheEnvironment() {
    Path file = Gcc.buildDouble(temp.resolve("mine.so"), "DOUBLE_DEVICES=3");
    Usable usable =
        usable(
            places(
                Map.of(SearchPlaces.PROPERTY, file.toString()),
                Map.of(SearchPlaces.VARIABLE, "/nowhere")));
    assertThat(usable.file()).isEqualTo(file.toString());
    assertThat(usable.runtime()).hasToString("13.0");
    assertThat(usable.driver()).hasToString("13.0");
    assertThat(usable.devices()).isEqualTo(3);
  }

  @Test
  void namedLibraryThatIsNotThereIsFinal() {
    Gcc.buildDouble(temp.resolve("usr/local/cuda/lib64/libcudart.so.13"));
    CudaLibrary.Missing missing =
        missing(places(Map.of(), Map.of(SearchPlaces.VARIABLE, "/nowhere/libcudart.so")));
    assertThat(missing.reason())
        .isEqualTo(
            "/nowhere/libcudart.so (environment variable LINATTN_CUDART; nothing else was tried):"
                + " no such file");
    assertThat(missing.attempts()).hasSize(1);
  }

  @Test
  void namedFolderIsSearched() {
    Path file = Gcc.buildDouble(temp.resolve("folder/libcudart.so.13"));
    assertThat(usable(explicit(temp.resolve("folder"))).file()).isEqualTo(file.toString());
  }

  @Test
  void namedFolderWithoutTheLibrarySaysWhatItLacks() {
    assertThat(missing(explicit(temp)).reason())
        .isEqualTo(
            temp
                + " (system property linattn.cudart; nothing else was tried): no libcudart.so.13,"
                + " libcudart.so.12, libcudart.so");
  }

  @Test
  void emptyPlacesAreListedWithTheirReasons() {
    CudaLibrary.Missing missing =
        missing(places(Map.of(), Map.of("CUDA_HOME", "/nowhere"), "libcudart-absent.so"));
    assertThat(missing.message())
        .startsWith("no CUDA Runtime (libcudart) was found\n")
        .contains(
            "\n  environment variable CUDA_HOME: /nowhere/lib64: no libcudart.so.13,",
            "\n  usual folder: " + temp + "/usr/local/cuda/lib64: no libcudart.so.13,",
            "\n  system loader: libcudart-absent.so: libcudart-absent.so: cannot open shared object");
  }

  @Test
  void fileThatIsNoLibraryGivesTheLoadersReason() throws IOException {
    Path file = Files.writeString(temp.resolve("libcudart.so"), "text ".repeat(100));
    assertThat(missing(explicit(file)).reason()).contains("invalid ELF header");
  }

  @Test
  void missingDependencyIsNamed() throws IOException {
    Path source = Files.writeString(temp.resolve("empty.c"), "int absent(void) { return 1; }\n");
    Path dependency =
        Gcc.build(
            temp.resolve("libabsent.so"), List.of("-Wl,-soname,libabsent.so", source.toString()));
    Path user =
        Files.writeString(
            temp.resolve("user.c"), "int absent(void); int f(void) { return absent(); }\n");
    Path library =
        Gcc.build(temp.resolve("libcudart.so"), List.of(user.toString(), dependency.toString()));
    Files.delete(dependency);
    assertThat(missing(explicit(library)).reason()).contains("libabsent.so: cannot open");
  }

  @Test
  void libraryOfAnotherKindIsRefused() throws IOException {
    Path source = Files.writeString(temp.resolve("other.c"), "int other(void) { return 1; }\n");
    Path library = Gcc.build(temp.resolve("libcudart.so"), List.of(source.toString()));
    assertThat(missing(explicit(library)).reason()).endsWith("is not a CUDA Runtime");
  }

  @Test
  void driverTooOldIsASentenceWithBothVersionsAndTheCure() {
    Path file =
        Gcc.buildDouble(temp.resolve("old.so"), "DOUBLE_DRIVER=12040", "DOUBLE_COUNT_STATUS=35");
    assertThat(missing(explicit(file)).reason())
        .contains(
            "the NVIDIA driver supports CUDA up to 12.4, but this is CUDA Runtime 13.0; update the"
                + " driver");
  }

  @Test
  void noDriverIsASentence() {
    Path file =
        Gcc.buildDouble(temp.resolve("none.so"), "DOUBLE_DRIVER=0", "DOUBLE_COUNT_STATUS=35");
    assertThat(missing(explicit(file)).reason())
        .contains("no NVIDIA driver is installed or visible here");
  }

  @Test
  void noDeviceIsASentence() {
    Path file =
        Gcc.buildDouble(temp.resolve("empty.so"), "DOUBLE_DEVICES=0", "DOUBLE_COUNT_STATUS=100");
    assertThat(missing(explicit(file)).reason())
        .contains("shows no device", "CUDA_VISIBLE_DEVICES");
  }

  @Test
  void driverThatDoesNotStartIsNamed() {
    Path file = Gcc.buildDouble(temp.resolve("sick.so"), "DOUBLE_COUNT_STATUS=803");
    assertThat(missing(explicit(file)).reason())
        .contains("cudaGetDeviceCount says cudaErrorSystemDriverMismatch (803): text of");
  }

  @Test
  void runtimeTooOldIsPassedOverForANewerOneElsewhere() {
    Gcc.buildDouble(temp.resolve("old/lib64/libcudart.so.12"), "DOUBLE_RUNTIME=12040");
    SearchPlaces onlyOld = places(Map.of(), Map.of("CUDA_HOME", temp.resolve("old").toString()));
    assertThat(missing(onlyOld).reason())
        .isEqualTo(
            "this is CUDA Runtime 12.4; linattn loads its kernels with cudaLibraryLoadData and needs"
                + " 12.8 or newer");
    Path newer =
        Gcc.buildDouble(
            temp.resolve("usr/local/cuda-12.9/lib64/libcudart.so.12"), "DOUBLE_RUNTIME=12090");
    assertThat(usable(onlyOld).file()).isEqualTo(newer.toString());
  }
}
