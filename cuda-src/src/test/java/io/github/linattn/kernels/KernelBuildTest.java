package io.github.linattn.kernels;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.Catalogue;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernelgen.Technique;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.OptionalInt;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class KernelBuildTest {
  private static final List<KernelSpec> SPECS =
      Catalogue.paper(48, OptionalInt.empty(), EnumSet.of(Architecture.SM_90));

  private final ByteArrayOutputStream said = new ByteArrayOutputStream();
  private final PrintStream log = new PrintStream(said, true, StandardCharsets.UTF_8);
  @TempDir Path folder;

  @Test
  void compilesOnlyWhatChanged() throws IOException {
    Nvcc.Search search = nvcc();
    SortedMap<String, String> headers = new TreeMap<>(Headers.shipped());
    KernelBuild build = new KernelBuild(headers, search, log, true);
    Path digests = folder.resolve("digests");

    assertThat(build.run(SPECS, folder, digests).compiled()).isEqualTo(9);
    KernelBuild.Summary again = build.run(SPECS, folder, digests);
    assertThat(again.compiled()).isZero();
    assertThat(again.upToDate()).isEqualTo(9);
    assertThat(said.toString(StandardCharsets.UTF_8))
        .contains("kernels: 9 up to date, 0 compiled (sm_90; nvcc ");

    Files.delete(folder.resolve(SPECS.getFirst().symbol() + ".fatbin"));
    assertThat(build.run(SPECS, folder, digests).compiled()).isEqualTo(1);

    Path record = digests.resolve(SPECS.getFirst().symbol() + ".tsv");
    String whole = Files.readString(record);
    String digest = whole.substring(0, whole.indexOf('\n'));
    for (String damaged : List.of("", digest, digest + "\n", digest + "\nlinattn")) {
      Files.writeString(record, damaged);
      assertThat(build.run(SPECS, folder, digests).compiled()).as(damaged).isEqualTo(1);
      assertThat(record).hasContent(whole);
    }
  }

  @Test
  void noKernelsWhereNoneAreAskedFor() throws IOException {
    String digests = folder.resolve("d").toString();
    KernelBuild.main(new String[] {folder.toString(), digests, "none", "64,128"});
    assertThat(BuiltKernels.load(folder).manifest().entries()).isEmpty();
  }

  @Test
  void saysWhatMayBeAskedFor() {
    assertThatThrownBy(() -> KernelBuild.main(new String[] {"a", "b", "none"}))
        .hasMessageContaining("default|all|none default|64,128");
    assertThatThrownBy(() -> KernelBuild.main(new String[] {"a", "b", "some", "default"}))
        .hasMessage("linattn.architectures is default, all or none, got 'some'");
    assertThatThrownBy(() -> KernelBuild.main(new String[] {"a", "b", "default", "64,80"}))
        .hasMessageContaining(
            "some of [32, 64, 96, 128, 192, 256] with commas between, got '64,80'");
  }

  @Test
  void kernelsOfSomeHeadDimensionsAlone() throws IOException {
    String digests = folder.resolve("d").toString();
    withoutNvcc(
        () -> KernelBuild.main(new String[] {folder.toString(), digests, "default", "256,32"}));
    try (Stream<Path> files = Files.list(folder)) {
      assertThat(files.map(file -> file.getFileName().toString()))
          .contains("la_chunked_forward_mma_d32_bf16.cu", "la_chunked_forward_mma_d256_bf16.cu")
          .contains("la_chunked_state_outputs_wgmma_f16.cu")
          .noneMatch(name -> name.contains("_d64") || name.contains("_d128"));
    }
  }

  /** The paper's first kernel, and one of each technique with machine code and PTX. */
  @Test
  void aKernelIsTheSameWhereverItIsCompiled() throws IOException {
    Nvcc.Search search = nvcc();
    List<KernelSpec> chunked = new ArrayList<>();
    chunked.addAll(Catalogue.chunked(32, Catalogue.defaultArchitectures()));
    chunked.addAll(Catalogue.anyHeadDim(Catalogue.defaultArchitectures()));
    List<KernelSpec> specs = new ArrayList<>(List.of(SPECS.getFirst()));
    for (Technique technique : Technique.values()) {
      chunked.stream().filter(s -> s.technique() == technique).findFirst().ifPresent(specs::add);
    }
    assertThat(specs).hasSize(1 + Technique.values().length);
    Path here = folder.resolve("here");
    Path there = folder.resolve("some/where/else");
    for (Path out : List.of(here, there)) {
      new KernelBuild(Headers.shipped(), search, log, true).run(specs, out, out.resolve("digests"));
    }
    for (KernelSpec spec : specs) {
      Path image = Path.of(spec.symbol() + ".fatbin");
      assertThat(here.resolve(image)).hasSameBinaryContentAs(there.resolve(image));
    }
  }

  @Test
  void digestCoversHeadersCompilerAndArchitectures() throws IOException {
    SortedMap<String, String> headers = new TreeMap<>(Headers.shipped());
    KernelDigest digests = new KernelDigest(headers);
    KernelSpec spec = SPECS.getFirst();
    String digest = digests.of(spec, "13.0.88");
    assertThat(digests.of(spec, "13.0.88")).isEqualTo(digest);
    assertThat(digests.of(spec, "13.1.0")).isNotEqualTo(digest);
    KernelSpec other =
        KernelSpec.paper(
            spec.operation(), spec.headDim(), spec.slices(), EnumSet.of(Architecture.SM_80));
    assertThat(digests.of(other, "13.0.88")).isNotEqualTo(digest);
    headers.merge("linattn/reduce.cuh", "// changed\n", String::concat);
    assertThat(digests.of(spec, "13.0.88")).isNotEqualTo(digest);
  }

  @Test
  void withoutNvccWritesTextAndOneLine() throws IOException {
    Nvcc.Search none = Nvcc.firstOf(List.of(folder.resolve("nvcc")));
    new KernelBuild(Headers.shipped(), none, log, true)
        .run(SPECS, folder, folder.resolve("digests"));
    assertThat(said.toString(StandardCharsets.UTF_8).lines())
        .singleElement()
        .asString()
        .contains("none built for CUDA", "nvcc (not there)", "install the CUDA toolkit");
    assertThat(folder.resolve(SPECS.getFirst().symbol() + ".cu")).exists();
    assertThat(folder.resolve("include/linattn/arguments.h")).exists();
    assertThat(BuiltKernels.load(folder).manifest().entries()).isEmpty();
  }

  @Test
  void generatedFoldersGrowAndLoad() throws IOException {
    nvcc();
    var architectures = EnumSet.of(Architecture.SM_90);
    KernelBuild.generate(Catalogue.paper(80, OptionalInt.of(5), architectures), folder, log);
    KernelBuild.generate(Catalogue.paper(16, OptionalInt.empty(), architectures), folder, log);
    BuiltKernels kernels = BuiltKernels.load(folder);
    assertThat(kernels.manifest().paperHeadDims()).containsExactly(16, 80);
    for (KernelEntry entry : kernels.manifest().entries()) {
      assertThat(kernels.image(entry)).isNotEmpty();
      assertThat(kernels.source(entry)).contains(entry.symbol());
      assertThat(entry.usage().get(Architecture.SM_90).registers()).isPositive();
    }
  }

  @Test
  void withoutNvccWhatWasBuiltStaysListed() throws IOException {
    nvcc();
    List<KernelSpec> specs =
        Catalogue.paper(16, OptionalInt.empty(), EnumSet.of(Architecture.SM_90));
    List<KernelEntry> built = KernelBuild.generate(specs, folder, log).manifest().entries();
    assertThat(built).isNotEmpty();
    generateWithoutNvcc(specs);
    assertThat(BuiltKernels.load(folder).manifest().entries()).isEqualTo(built);
    Files.writeString(folder.resolve(built.getFirst().sourceFile()), "// of another version");
    generateWithoutNvcc(specs);
    assertThat(BuiltKernels.load(folder).manifest().entries())
        .isEqualTo(built.subList(1, built.size()));
    Files.writeString(folder.resolve("include/linattn/arguments.h"), "// of another version");
    generateWithoutNvcc(specs);
    assertThat(BuiltKernels.load(folder).manifest().entries()).isEmpty();
  }

  private void generateWithoutNvcc(List<KernelSpec> specs) throws IOException {
    withoutNvcc(() -> KernelBuild.generate(specs, folder, log));
  }

  private interface Build {
    void run() throws IOException;
  }

  private void withoutNvcc(Build build) throws IOException {
    String named = System.getProperty(Nvcc.PROPERTY, "");
    System.setProperty(Nvcc.PROPERTY, folder.resolve("none").toString());
    try {
      build.run();
    } finally {
      System.setProperty(Nvcc.PROPERTY, named);
    }
  }

  @Test
  void namesTheKernelThatNvccRefuses() throws IOException {
    Nvcc.Search search = nvcc();
    SortedMap<String, String> headers = new TreeMap<>(Headers.shipped());
    headers.merge("linattn/arguments.h", "\n#error out of order\n", String::concat);
    assertThatThrownBy(
            () ->
                new KernelBuild(headers, search, log, true)
                    .run(SPECS, folder, folder.resolve("digests")))
        .isInstanceOf(KernelBuildException.class)
        .hasMessageContaining("nvcc refuses la_paper_forward_d48_l3_f32.cu")
        .hasMessageContaining("out of order");
  }

  @Test
  void readsWhatPtxasReports() {
    String text =
        """
        ptxas info    : 0 bytes gmem
        ptxas info    : Compiling entry function 'la' for 'sm_80'
        ptxas info    : Function properties for la
            0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
        ptxas info    : Used 40 registers, used 1 barriers, 512 bytes cmem[0]
        ptxas info    : Compiling entry function 'la' for 'sm_90'
        ptxas info    : Function properties for la
            0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
        ptxas info    : Used 42 registers, used 1 barriers, 128 bytes smem
        """;
    assertThat(PtxasLog.usage(text))
        .containsEntry(Architecture.SM_80, new KernelEntry.Usage(40, 0, 0))
        .containsEntry(Architecture.SM_90, new KernelEntry.Usage(42, 0, 128));
    assertThat(PtxasLog.flaw(text)).isEmpty();
    String spilling =
        text.substring(0, text.lastIndexOf("0 bytes stack"))
            + "16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n";
    assertThat(PtxasLog.usage(spilling))
        .containsEntry(Architecture.SM_90, new KernelEntry.Usage(0, 20, 0));
    assertThat(PtxasLog.flaw(spilling)).contains("spills 20 bytes of registers on sm_90");
    String serialized =
        "ptxas info : (C7511) Potential Performance Loss: wgmma.mma_async instructions are"
            + " serialized due to insufficient register resources\n"
            + text;
    assertThat(PtxasLog.flaw(serialized))
        .get()
        .asString()
        .startsWith("waits after each of its products: ptxas info : (C7511)");
    assertThat(PtxasLog.usage(serialized)).hasSize(2);
  }

  private static Nvcc.Search nvcc() {
    Nvcc.Search search = Nvcc.find();
    assumeTrue(search.nvcc().isPresent(), () -> "no nvcc: " + search.reason());
    return search;
  }
}
