package io.github.linattn.kernelgen;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatIllegalArgumentException;

import java.util.List;
import java.util.OptionalInt;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

class ManifestTest {
  private static final Manifest MANIFEST =
      new Manifest(
          Stream.of(
                  Catalogue.paper(128, OptionalInt.of(8), Catalogue.defaultArchitectures()),
                  Catalogue.defaults())
              .flatMap(List::stream)
              .map(ManifestTest::entry)
              .toList());

  @Test
  void readsWhatItWrote() {
    assertThat(Manifest.parse(MANIFEST.text())).isEqualTo(MANIFEST);
    assertThat(Manifest.parse(new Manifest(List.of()).text()).entries()).isEmpty();
  }

  @Test
  void findsTheDefaultSlicesFirst() {
    assertThat(MANIFEST.findPaper(Operation.FORWARD, 128))
        .hasValueSatisfying(
            entry -> {
              assertThat(entry.symbol()).isEqualTo("la_paper_forward_d128_l4_f32");
              assertThat(entry.tiles()).isEqualTo(4);
            });
    assertThat(MANIFEST.findPaper(Operation.FORWARD, 80)).isEmpty();
    assertThat(
            MANIFEST.find(
                Operation.FORWARD, Technique.MMA, 128, ElementType.BF16, Precision.NATIVE, 90))
        .hasValueSatisfying(
            entry -> assertThat(entry.symbol()).isEqualTo("la_chunked_forward_mma_d128_bf16"));
    assertThat(
            MANIFEST.find(
                Operation.DECODE, Technique.SIMT, 0, ElementType.F16, Precision.NATIVE, 75))
        .isEmpty();
    assertThat(MANIFEST.paperHeadDims()).containsExactly(32, 64, 96, 128, 192, 256);
  }

  @Test
  void refusesWrongLinesWithTheirNumber() {
    String text = MANIFEST.text();
    refused("", "starts with");
    refused("linattn-kernels 2\n", "rebuild the kernels");
    refused(text.replace("head_dim", "headdim"), "names the columns");
    refused(text + "a\tb\n", "has 2 columns instead of 14");
    refused(text.replaceFirst("per_head:4", "per_head:four"), "kernel manifest: For input");
    refused(text.replaceFirst("sm_80=", "sm_81="), "no Architecture \"sm_81\"");
    refused(text.replaceFirst("sm_80=9/0/0", "sm_80=9"), "usage is");
    refused(text + text.lines().toList().getLast() + "\n", "names each kernel once");
  }

  private static void refused(String text, String reason) {
    assertThatIllegalArgumentException()
        .isThrownBy(() -> Manifest.parse(text))
        .withMessageContaining(reason);
  }

  private static KernelEntry entry(KernelSpec spec) {
    var usage = new TreeMap<Architecture, KernelEntry.Usage>();
    usage.put(Architecture.SM_80, new KernelEntry.Usage(9, 0, 0));
    usage.put(Architecture.SM_90, new KernelEntry.Usage(10, 0, 16));
    return KernelEntry.of(spec, usage);
  }
}
