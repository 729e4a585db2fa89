package io.github.linattn.kernels;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.Catalogue;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernelgen.KernelText;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.Technique;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Optional;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Kernels of sm_90a without a GPU: the lanes of a cluster as fibers of the host, copies and tensor
 * cores at some time that a seed draws. Breaks where a schedule meets a barrier that is arrived at
 * too often or never, a place that is written too early or read too late, a missing fence, or other
 * numbers than sums in double.
 *
 * <p>{@code -Dlinattn.emulate=REGEX} runs all kernels with such a symbol, {@code
 * -Dlinattn.emulate.schedules=N} so many schedules of each.
 */
@Execution(ExecutionMode.CONCURRENT)
class HopperEmulationTest {
  private static final Optional<Pattern> WANTED =
      Optional.ofNullable(System.getProperty("linattn.emulate")).map(Pattern::compile);

  private static final Path SOURCES = Path.of("src/test/cpp/hopper");
  private static final Pattern PRODUCT =
      Pattern.compile(
          "(static __device__ __forceinline__ void \\w+\\(float \\(&d\\)[^{]*)\\{\\n(.*?)\\n  \\}\\n",
          Pattern.DOTALL);
  private static final Pattern INSTRUCTION = Pattern.compile("m64n(\\d+)k16\\.f32\\.(bf16|f16)");
  private static final Pattern ROWS =
      Pattern.compile("accumulate, (?<scale>-?1), 1(?:, (?<first>[01]))?(?:, (?<second>[01]))?;");
  private static final Pattern REGISTERS =
      Pattern.compile("asm volatile\\(\"setmaxnreg[^;]*;\"\\);");

  @TempDir private static Path folder;
  private static Path emulator;
  private static Path headers;

  @BeforeAll
  static void buildEmulator() throws Exception {
    assumeTrue(HostPrograms.canEmulate(), "no g++ for x86-64: kernels are not emulated");
    emulator = folder.resolve("emulator.o");
    List<String> command = compiler("-c", SOURCES.resolve("emulator.cpp").toString(), emulator);
    // built once, while each kernel is a program of its own
    command.addAll(List.of("-O3", "-march=native", "-ffp-contract=off"));
    HostPrograms.expectSuccess(command);
    // to read them takes a third of the time of a kernel
    String included = "#include \"emulator.h\"\n#include <random>\n#include <vector>\n";
    headers = Files.writeString(folder.resolve("headers.h"), included);
    HostPrograms.expectSuccess(
        compiler("-xc++-header", headers.toString(), folder.resolve("headers.h.gch")));
  }

  private static List<String> compiler(String option, String source, Path to) {
    return new ArrayList<>(
        List.of(
            "g++",
            "-std=c++20",
            "-O1",
            "-w",
            "-I" + SOURCES,
            "-Isrc/main/cuda/include",
            option,
            source,
            "-o",
            to.toString()));
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      textBlock =
          """
          a count too large               | no end in sight
          no wait for an empty place      | an arrival too many at barrier
          no wait for the copy            | no end in sight
          an arrival for another          | arrivals of other threads than the first
          a write without a fence         | sum 0, 0 is
          no wait for the products        | sum 0, 0 is
          a read under way                | may overtake a read of warp
          another number of threads       | threads are to meet where others said
          lanes at different instructions | while other lanes of the warp are at
          a copy under way at the end     | copies are under way when the blocks have ended
          an address outside              | are not in the shared memory
          """)
  void theEmulatorFinds(String fault, String sentence) throws Exception {
    HostPrograms.Output found = HostPrograms.run(List.of(faults().toString(), fault));
    assertThat(found.text()).contains(sentence);
    assertThat(found.status()).isEqualTo(1);
  }

  @Test
  void theEmulatorFindsNothingWhereThereIsNoFault() throws Exception {
    HostPrograms.expectSuccess(List.of(faults().toString(), "none"));
  }

  private static synchronized Path faults() throws Exception {
    Path program = folder.resolve("emulator_test");
    if (!Files.exists(program)) {
      List<String> command =
          compiler(emulator.toString(), SOURCES.resolve("emulator_test.cpp").toString(), program);
      HostPrograms.expectSuccess(command);
    }
    return program;
  }

  /** One of each role and of each way that tiles take. */
  private static Stream<KernelSpec> kernels() {
    if (WANTED.isPresent()) {
      return wanted().filter(spec -> spec.headDim() > 0);
    }
    return Stream.of(
        kernel(Operation.FORWARD, 64, ElementType.BF16, Precision.NATIVE),
        kernel(Operation.FORWARD, 96, ElementType.F32, Precision.DEFAULT),
        kernel(Operation.FORWARD, 144, ElementType.F32, Precision.DEFAULT),
        kernel(Operation.FORWARD, 256, ElementType.F32, Precision.DEFAULT),
        kernel(Operation.NORMALIZED_FORWARD, 64, ElementType.F16, Precision.NATIVE),
        kernel(Operation.NORMALIZED_FORWARD, 64, ElementType.F32, Precision.TF32),
        kernel(Operation.NORMALIZED_FORWARD, 96, ElementType.F32, Precision.DEFAULT),
        kernel(Operation.STATE_SUMS, 112, ElementType.F16, Precision.NATIVE),
        kernel(Operation.STATE_SUMS, 128, ElementType.BF16, Precision.NATIVE),
        kernel(Operation.STATE_SUMS, 64, ElementType.F32, Precision.TF32),
        kernel(Operation.STATE_SUMS, 64, ElementType.F32, Precision.ACCURATE),
        kernel(Operation.STATE_SUMS, 96, ElementType.F32, Precision.DEFAULT),
        kernel(Operation.STATE_SUMS, 144, ElementType.F32, Precision.DEFAULT),
        kernel(Operation.NORMALIZED_STATE_SUMS, 64, ElementType.BF16, Precision.NATIVE),
        kernel(Operation.NORMALIZED_STATE_SUMS, 64, ElementType.F32, Precision.ACCURATE),
        kernel(Operation.NORMALIZED_STATE_SUMS, 128, ElementType.F16, Precision.NATIVE),
        kernel(Operation.QUERY_GRADIENT, 64, ElementType.BF16, Precision.NATIVE),
        kernel(Operation.QUERY_GRADIENT, 128, ElementType.F32, Precision.ACCURATE),
        kernel(Operation.QUERY_GRADIENT, 144, ElementType.BF16, Precision.NATIVE),
        kernel(Operation.QUERY_GRADIENT, 144, ElementType.F32, Precision.DEFAULT),
        kernel(Operation.QUERY_GRADIENT, 256, ElementType.F32, Precision.DEFAULT),
        kernel(Operation.KEY_VALUE_GRADIENT, 64, ElementType.F32, Precision.DEFAULT),
        kernel(Operation.KEY_VALUE_GRADIENT, 96, ElementType.F16, Precision.NATIVE),
        kernel(Operation.KEY_VALUE_GRADIENT, 96, ElementType.F32, Precision.TF32),
        kernel(Operation.KEY_VALUE_GRADIENT, 112, ElementType.F32, Precision.ACCURATE),
        kernel(Operation.KEY_VALUE_GRADIENT, 144, ElementType.F16, Precision.NATIVE),
        kernel(Operation.KEY_VALUE_GRADIENT, 256, ElementType.F32, Precision.DEFAULT),
        kernel(Operation.NORMALIZED_KEY_VALUE_GRADIENT, 208, ElementType.BF16, Precision.NATIVE),
        kernel(Operation.NORMALIZED_GRADIENT_SUMS, 64, ElementType.BF16, Precision.NATIVE),
        kernel(Operation.NORMALIZED_GRADIENT_SUMS, 64, ElementType.F32, Precision.TF32),
        kernel(Operation.GRADIENT_SUMS, 64, ElementType.F16, Precision.NATIVE),
        kernel(Operation.GRADIENT_SUMS, 64, ElementType.F32, Precision.DEFAULT),
        kernel(Operation.GRADIENT_SUMS, 96, ElementType.F16, Precision.NATIVE),
        kernel(Operation.GRADIENT_SUMS, 144, ElementType.F32, Precision.DEFAULT),
        kernel(Operation.ONE_SWEEP, 64, ElementType.BF16, Precision.NATIVE),
        kernel(Operation.ONE_SWEEP, 128, ElementType.BF16, Precision.NATIVE),
        kernel(Operation.ONE_SWEEP, 128, ElementType.F16, Precision.NATIVE),
        kernel(Operation.NORMALIZED_QUERY_GRADIENT, 64, ElementType.F16, Precision.NATIVE),
        kernel(Operation.NORMALIZED_KEY_VALUE_GRADIENT, 96, ElementType.BF16, Precision.NATIVE));
  }

  private static Stream<KernelSpec> wanted() {
    return Catalogue.defaults().stream()
        .filter(spec -> spec.technique() == Technique.WGMMA)
        .filter(spec -> WANTED.orElseThrow().matcher(spec.symbol()).find());
  }

  private static KernelSpec kernel(
      Operation operation, int headDim, ElementType element, Precision precision) {
    return KernelSpec.chunked(
        operation, Technique.WGMMA, headDim, element, precision, EnumSet.of(Architecture.SM_90A));
  }

  @ParameterizedTest(allowZeroInvocations = true)
  @MethodSource("kernels")
  void agreesWithSumsInDoubleUnderAnySchedule(KernelSpec spec) throws Exception {
    expectAgreement(spec);
  }

  /** What is read from a state alone, of any head dimension. */
  private static Stream<KernelSpec> outputs() {
    if (WANTED.isPresent()) {
      return wanted().filter(spec -> spec.headDim() == 0);
    }
    return Stream.of(
        kernel(Operation.STATE_OUTPUTS, 0, ElementType.BF16, Precision.NATIVE),
        kernel(Operation.STATE_OUTPUTS, 0, ElementType.F32, Precision.DEFAULT),
        kernel(Operation.GRADIENT_OUTPUTS, 0, ElementType.F16, Precision.NATIVE),
        kernel(Operation.GRADIENT_OUTPUTS, 0, ElementType.F32, Precision.ACCURATE),
        kernel(Operation.NORMALIZED_GRADIENT_OUTPUTS, 0, ElementType.BF16, Precision.NATIVE),
        kernel(Operation.NORMALIZED_GRADIENT_OUTPUTS, 0, ElementType.F32, Precision.DEFAULT));
  }

  @ParameterizedTest(allowZeroInvocations = true)
  @MethodSource("outputs")
  void outputsAgreeWithSumsInDoubleUnderAnySchedule(KernelSpec spec) throws Exception {
    expectAgreement(spec, "outputs_test.cpp");
  }

  private static void expectAgreement(KernelSpec spec) throws Exception {
    expectAgreement(spec, "kernel_test.cpp");
  }

  private static void expectAgreement(KernelSpec spec, String test) throws Exception {
    Path text = folder.resolve(spec.symbol() + ".cuh");
    Path program = folder.resolve(spec.symbol());
    Files.writeString(text, forEmulator(KernelText.emit(spec)));
    List<String> command = compiler(emulator.toString(), SOURCES.resolve(test).toString(), program);
    command.addAll(List.of("-include", headers.toString()));
    command.add("-DKERNEL=\"" + text.toAbsolutePath() + "\"");
    HostPrograms.expectSuccess(command);
    String schedules = System.getProperty("linattn.emulate.schedules", "1");
    HostPrograms.expectSuccess(List.of(program.toString(), error(spec), schedules));
    Files.delete(program);
  }

  /** What one rounding of the operands costs, and what three products leave. */
  private static String error(KernelSpec spec) {
    return switch (spec.precision()) {
      case NATIVE -> spec.elementType() == ElementType.BF16 ? "1e-2" : "1.5e-3";
      case TF32 -> "1.5e-3";
      case DEFAULT -> "1e-5";
      case ACCURATE -> "2e-6";
    };
  }

  /** The products are handed to the emulator; registers are the compiler's. */
  private static String forEmulator(String text) {
    String products = PRODUCT.matcher(text).replaceAll(HopperEmulationTest::product);
    return REGISTERS.matcher(products).replaceAll("");
  }

  private static String product(MatchResult function) {
    String head = function.group(1);
    String body = function.group(2);
    boolean fragment = head.contains("const uint32_t* a");
    Matcher instruction = INSTRUCTION.matcher(body);
    Matcher rows = ROWS.matcher(body);
    if (!instruction.find() || !rows.find()) {
      throw new AssertionError("not the text of a product: " + body);
    }
    return Matcher.quoteReplacement(
        "%s{ emulator::issue({emulator::Operand16::%s, %s, d, %s, %s, b, add != 0, %s, %s, %s}); }\n"
            .formatted(
                head,
                instruction.group(2).equals("bf16") ? "kBf16" : "kF16",
                instruction.group(1),
                fragment ? "a" : "nullptr",
                fragment ? "0" : "a",
                fragment ? "0" : rows.group("first"),
                fragment ? rows.group("first") : rows.group("second"),
                rows.group("scale").equals("-1")));
  }
}
