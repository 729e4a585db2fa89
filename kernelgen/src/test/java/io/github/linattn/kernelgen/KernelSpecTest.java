package io.github.linattn.kernelgen;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatIllegalArgumentException;

import java.util.EnumSet;
import java.util.List;
import java.util.OptionalInt;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class KernelSpecTest {
  private static final int WGMMA = 10 * 6 * 5;

  private static final int ONE_SWEEP = 3;
  private static final int OUTPUTS = 3 * 4;
  private static final int MMA = (4 * 6 - 2) + 2 * (4 * 6 - 3); // the forward, two gradients
  private static final int STATES = 4 * 4 + 5 * 3 + 1;

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "0   | 1   | multiple of 16",
        "8   | 1   | multiple of 16",
        "40  | 1   | multiple of 16",
        "528 | 33  | multiple of 16",
        "-16 | 1   | multiple of 16",
        "128 | 0   | slices divide the head dimension",
        "128 | -4  | slices divide the head dimension",
        "128 | 3   | slices divide the head dimension",
        "128 | 1   | at least 2 slices",
        "512 | 4   | at most 64 registers of state",
        "32  | 16  | 4 columns at a time",
        "48  | 8   | 4 columns at a time",
        "512 | 128 | at most 1024 threads",
      })
  void refusesWithTheReason(int headDim, int slices, String reason) {
    assertThatIllegalArgumentException()
        .isThrownBy(() -> spec(Operation.FORWARD, headDim, slices))
        .withMessageContaining(reason);
  }

  @Test
  void refusesNoArchitecture() {
    assertThatIllegalArgumentException()
        .isThrownBy(() -> KernelSpec.paper(Operation.FORWARD, 64, 2, Set.of()))
        .withMessageContaining("at least one architecture");
  }

  @ParameterizedTest
  @CsvSource({"16,1", "32,1", "48,3", "80,5", "96,3", "112,7", "128,4", "192,6", "256,8", "512,16"})
  void defaultSlices(int headDim, int slices) {
    assertThat(KernelSpec.defaultSlices(headDim)).isEqualTo(slices);
  }

  @Test
  void everyHeadDimensionHasAPlanWithItsDefaultSlices() {
    for (int headDim = 16; headDim <= 512; headDim += 16) {
      for (KernelSpec spec :
          Catalogue.paper(headDim, OptionalInt.empty(), EnumSet.of(Architecture.SM_90))) {
        ResourcePlan plan = ResourcePlan.of(spec);
        assertThat(plan.threads()).as(spec.symbol()).isBetween(32, 1024);
        assertThat(plan.sharedBytes()).as(spec.symbol()).isLessThanOrEqualTo(48 * 1024);
      }
    }
  }

  @Test
  void sharedRegionsLieBehindOneAnother() {
    ScanPlan plan = ScanPlan.of(128, 4);
    int end = 0;
    for (SharedRegion region : plan.shared()) {
      assertThat(region.offset()).isEqualTo(end);
      end += region.bytes();
    }
    assertThat(plan.sharedBytes()).isEqualTo(end);
  }

  @Test
  void gridRules() {
    assertThat(new GridRule(GridRule.Per.HEAD, 4).blocks(64, 0, 0)).isEqualTo(256);
    assertThat(new GridRule(GridRule.Per.ROWS, 8).blocks(17, 0, 0)).isEqualTo(3);
    assertThat(GridRule.parse("per_head:4")).isEqualTo(new GridRule(GridRule.Per.HEAD, 4));
    assertThat(GridRule.parse("per_rows:8")).isEqualTo(new GridRule(GridRule.Per.ROWS, 8));
    GridRule cluster = new GridRule(GridRule.Per.CLUSTER, 64);
    assertThat(cluster.blocks(10, 128, 130)).isEqualTo(30);
    assertThat(cluster.cluster(64)).isEqualTo(1);
    assertThat(cluster.cluster(128)).isEqualTo(2);
    assertThat(cluster.cluster(130)).as("of three").isEqualTo(1);
    assertThat(cluster.cluster(256)).as("of four").isEqualTo(2);
    assertThat(new GridRule(GridRule.Per.VALUE_TILE, 64).blocks(10, 128, 130)).isEqualTo(30);
    assertThat(new GridRule(GridRule.Per.VALUE_TILE, 64).cluster(130)).isEqualTo(1);
    assertThat(new GridRule(GridRule.Per.WALKED_TILES, 32).blocks(10, 128, 130)).isEqualTo(50);
    GridRule turns = new GridRule(GridRule.Per.CLUSTER_IN_TURNS, 64);
    assertThat(turns.blocks(10, 128, 130)).isEqualTo(30);
    assertThat(turns.cluster(128)).isEqualTo(2);
    assertThat(new GridRule(GridRule.Per.STATE_TILE, 64).blocks(2, 96, 130)).isEqualTo(12);
    assertThat(new GridRule(GridRule.Per.STATE_ELEMENTS, 256).blocks(2, 16, 16)).isEqualTo(4);
    for (GridRule rule :
        List.of(
            cluster,
            new GridRule(GridRule.Per.VALUE_TILE, 32),
            turns,
            new GridRule(GridRule.Per.WALKED_TILES, 32),
            new GridRule(GridRule.Per.STATE_TILE, 64),
            new GridRule(GridRule.Per.STATE_ELEMENTS, 256))) {
      assertThat(GridRule.parse(rule.text())).isEqualTo(rule);
    }
    for (String wrong : List.of("", "per_head", "per_block:3", "per_head:0", "per_rows:x")) {
      assertThatIllegalArgumentException().isThrownBy(() -> GridRule.parse(wrong));
    }
  }

  @Test
  void theCatalogueIsSortedAndNamesEachKernelOnce() {
    List<KernelSpec> specs = Catalogue.defaults();
    assertThat(specs).hasSize(54 + WGMMA + MMA + STATES + ONE_SWEEP + OUTPUTS).isSorted();
    assertThat(specs.stream().map(KernelSpec::symbol)).doesNotHaveDuplicates();
  }

  @Test
  void theWidestForwardsByMmaAreLeftToPtxWhereTheyWouldSpill() {
    assertThat(Catalogue.defaults(Catalogue.allArchitectures()))
        .filteredOn(spec -> spec.symbol().equals("la_chunked_forward_mma_d192_f32_accurate"))
        .singleElement()
        .satisfies(
            spec ->
                assertThat(spec.architectures())
                    .contains(Architecture.SM_80, Architecture.SM_89, Architecture.PTX)
                    .doesNotContain(Architecture.SM_100, Architecture.SM_120));
  }

  @Test
  void causalGradientsThatWouldSpillAreNotBuilt() {
    List<KernelSpec> specs = Catalogue.defaults(Catalogue.allArchitectures());
    assertThat(specs)
        .extracting(KernelSpec::symbol)
        .contains(
            "la_chunked_query_gradient_mma_d128_f32_accurate",
            "la_chunked_query_gradient_wgmma_d256_f32_accurate",
            "la_chunked_key_value_gradient_mma_d256_bf16")
        .doesNotContain(
            "la_chunked_query_gradient_mma_d192_f32_accurate",
            "la_chunked_key_value_gradient_mma_d256_f16");
    assertThat(specs)
        .filteredOn(spec -> spec.symbol().equals("la_chunked_query_gradient_mma_d256_f32_tf32"))
        .singleElement()
        .satisfies(
            spec ->
                assertThat(spec.architectures())
                    .containsExactlyInAnyOrder(Architecture.SM_90, Architecture.PTX));
  }

  private static KernelSpec spec(Operation operation, int headDim, int slices) {
    return KernelSpec.paper(operation, headDim, slices, EnumSet.of(Architecture.SM_90));
  }
}
