package io.github.linattn.kernels;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.kernelgen.Catalogue;
import io.github.linattn.kernelgen.ColumnPlan;
import io.github.linattn.kernelgen.HopperPlan;
import io.github.linattn.kernelgen.OneSweepPlan;
import io.github.linattn.kernelgen.OutputsPlan;
import io.github.linattn.kernelgen.ResourcePlan;
import io.github.linattn.kernelgen.RowPlan;
import io.github.linattn.kernelgen.ScanPlan;
import io.github.linattn.kernelgen.TilePlan;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalInt;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * The device code on the host, a thread for each CUDA thread, against the quadratic form in double.
 */
@Execution(ExecutionMode.CONCURRENT)
class EmulationTest {
  @TempDir Path folder;

  @BeforeAll
  static void needsCompiler() throws Exception {
    assumeTrue(HostPrograms.canEmulate(), "no g++ for x86-64: the device code is not emulated");
  }

  @ParameterizedTest
  @CsvSource({"16,1", "48,3", "80,5", "128,4", "192,6"})
  void agreesWithTheQuadraticForm(int headDim, int slices) throws Exception {
    emulate(headDim, slices, List.of());
  }

  /** ThreadSanitizer takes a missing barrier for what it is, a data race. */
  @ParameterizedTest
  @CsvSource("32,2")
  void hasNoRaces(int headDim, int slices) throws Exception {
    emulate(headDim, slices, List.of("-fsanitize=thread", "-g"));
  }

  /** da and db of the last kernel of a backward, by rows for which the way to them is known. */
  @ParameterizedTest
  @ValueSource(strings = {"-O1", "-fsanitize=thread"})
  void coefficientsAreSummedTheWayThatKeepsDigits(String flag) throws Exception {
    run("coefficients_test", List.of(flag));
  }

  /**
   * Over arrays that end where their last state does: what is read or written behind them shows.
   */
  @Test
  void statesAreScannedWithinTheirArrays() throws Exception {
    run("state_scan_test", List.of("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover"));
  }

  private void emulate(int headDim, int slices, List<String> flags) throws Exception {
    ScanPlan scan = null;
    int lanes = 0;
    int centerThreads = 0;
    for (var spec :
        Catalogue.paper(headDim, OptionalInt.of(slices), Catalogue.defaultArchitectures())) {
      switch (ResourcePlan.of(spec)) {
        case ScanPlan one -> scan = one;
        case ColumnPlan columns -> centerThreads = columns.threads();
        case RowPlan rows -> lanes = Math.max(lanes, rows.lanesPerRow());
        case HopperPlan hopper -> throw new AssertionError(hopper);
        case OneSweepPlan sweep -> throw new AssertionError(sweep);
        case OutputsPlan outputs -> throw new AssertionError(outputs);
        case TilePlan tiles -> throw new AssertionError(tiles);
      }
    }
    List<String> withPlan = new ArrayList<>(flags);
    withPlan.addAll(
        List.of(
            "-DHEAD_DIM=" + headDim,
            "-DSLICES=" + slices,
            "-DCOLUMNS=" + scan.valueColumns(),
            "-DTOKENS=" + scan.chunkTokens(),
            "-DSPLIT_SUMS=" + scan.splitSums(),
            "-DLANES=" + lanes,
            "-DCENTER_THREADS=" + centerThreads));
    run("emulation", withPlan);
  }

  /** Compiles a program for the host, whose exit status says whether it agrees. */
  private void run(String name, List<String> flags) throws Exception {
    Path program = folder.resolve(name);
    List<String> command =
        new ArrayList<>(List.of("g++", "-std=c++20", "-O1", "-ffp-contract=off", "-pthread"));
    command.addAll(flags);
    command.addAll(
        List.of(
            "-Isrc/test/cpp",
            "-Isrc/main/cuda/include",
            "src/test/cpp/%s.cpp".formatted(name),
            "-o",
            program.toString()));
    HostPrograms.expectSuccess(command);
    HostPrograms.expectSuccess(List.of(program.toString()));
  }
}
