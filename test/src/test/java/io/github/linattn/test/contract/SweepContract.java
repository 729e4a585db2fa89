package io.github.linattn.test.contract;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.Layout;
import io.github.linattn.test.harness.Results;
import io.github.linattn.test.harness.Run;
import io.github.linattn.test.harness.Seeds;
import io.github.linattn.test.harness.Subject;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when some extent, layout, type, coefficient or packing is computed wrongly, reads or
 * writes outside its tensors, leaves an output unwritten, or gives other bits the second time.
 */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
abstract class SweepContract {

  abstract List<Subject> subjects();

  List<Arguments> casesAndSubjects() {
    List<Arguments> rows = new ArrayList<>();
    for (Case.Builder builder : cases()) {
      Case problem = builder.build();
      for (Subject subject : subjects()) {
        rows.add(Arguments.of(problem, subject));
      }
    }
    return rows;
  }

  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("casesAndSubjects")
  void agreesWithTheReference(Case problem, Subject subject) {
    if (!subject.does(problem)) {
      Refusals.assertRefused(problem, subject);
      return;
    }
    Results first = Run.of(problem, subject.backend());
    first.assertRight(problem);
    Run.of(problem, subject.backend()).assertSameBits(first, problem + " run twice");
  }

  List<Arguments> flatCasesAndSubjects() {
    List<Arguments> rows = new ArrayList<>();
    for (Case.Builder builder : cases()) {
      Case drawn = builder.build();
      for (Mode mode : modes(drawn)) {
        if (!drawn.normalize) {
          Case problem =
              drawn
                  .but("small q and k, " + mode)
                  .mode(mode)
                  .q(Case.times(drawn.q, 0x1p-7f))
                  .k(Case.times(drawn.k, 0x1p-7f))
                  .build();
          subjects().forEach(subject -> rows.add(Arguments.of(problem, subject)));
        }
      }
    }
    return rows;
  }

  /** In which a case is run that is made of this one. */
  Mode[] modes(Case drawn) {
    return new Mode[] {drawn.mode};
  }

  /** Weights hardly differ then, so that o tells little of a and b. */
  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("flatCasesAndSubjects")
  void smallQueriesAndKeysHaveCoefficientsToo(Case problem, Subject subject) {
    assertRightUnlessLeftOut(problem, subject);
  }

  static void assertRightUnlessLeftOut(Case problem, Subject subject) {
    assumeTrue(subject.does(problem), "left out: refused");
    assumeTrue(Subject.differentiates(problem, subject.backend()), "left out: no kernels for it");
    Run.of(problem, subject.backend()).assertRight(problem);
  }

  /** The shapes of every sweep; a smaller list where a kernel is slow on purpose. */
  List<Case.Builder> cases() {
    List<Case.Builder> cases = new ArrayList<>();
    addLengths(cases);
    addDims(cases);
    addHeads(cases);
    addPackings(cases);
    addNonCausal(cases);
    addCoefficients(cases);
    addLayouts(cases);
    addTypes(cases);
    addStates(cases);
    addStateGradients(cases);
    addDrawn(cases);
    return cases;
  }

  static Case.Builder of(String name, int batch, int heads, int tokens, int dim) {
    return Case.of(
        "%s B%d H%d N%d D%d".formatted(name, batch, heads, tokens, dim),
        AttentionShape.of(batch, heads, tokens, dim));
  }

  static Case.Builder of(
      String name, int batch, int heads, int keyValueHeads, int tokens, int dim, int valueDim) {
    String text = "%s B%d H%d K%d N%d D%d Dv%d";
    return Case.of(
        text.formatted(name, batch, heads, keyValueHeads, tokens, dim, valueDim),
        new AttentionShape(batch, heads, keyValueHeads, tokens, dim, valueDim));
  }

  static void addLengths(List<Case.Builder> cases) {
    for (int tokens : new int[] {1, 2, 7, 63, 64, 65, 127, 128, 1009}) {
      cases.add(of("length", 1, 2, tokens, 32));
    }
    cases.add(of("length", 1, 1, 1, 64).normalized());
    cases.add(of("length", 1, 1, 4097, 64));
    cases.add(of("length", 1, 1, 4097, 64).normalized());
    cases.add(of("length", 1, 1, 65_601, 16));
    cases.add(of("length", 1, 1, 65_601, 32).normalized());
  }

  static void addDims(List<Case.Builder> cases) {
    for (int dim : new int[] {16, 48, 80, 96, 112, 128, 144, 192, 208, 256}) {
      cases.add(of("dim", 1, 2, 97, dim));
    }
    cases.add(of("dim", 1, 1, 70, 128).normalized());
    cases.add(of("dim", 1, 1, 70, 240).normalized());
    cases.add(of("dim", 1, 1, 33, 512));
    cases.add(of("dim", 1, 2, 2, 97, 16, 48));
    cases.add(of("dim", 1, 2, 2, 97, 96, 32));
    cases.add(of("dim", 1, 1, 1, 65, 48, 512).normalized());
    cases.add(of("dim", 1, 1, 1, 65, 512, 16));
  }

  static void addHeads(List<Case.Builder> cases) {
    cases.add(of("heads", 3, 1, 65, 32));
    cases.add(of("heads", 1, 7, 129, 32));
    cases.add(of("heads", 8, 25, 66, 32));
    cases.add(of("heads", 1, 4, 2, 130, 32, 32));
    cases.add(of("heads", 1, 6, 1, 67, 48, 48).normalized());
    cases.add(of("heads", 2, 8, 4, 65, 16, 64));
    cases.add(of("heads", 1, 3, 1, 1100, 32, 32));
  }

  static void addPackings(List<Case.Builder> cases) {
    cases.add(of("packed", 1, 2, 193, 32).packed(1, 0, 63, 64, 65));
    cases.add(of("packed", 1, 2, 5, 48).packed(0, 0, 5));
    cases.add(of("packed", 1, 1, 3, 16).packed(1, 1, 1));
    cases.add(of("packed", 1, 1, 1214, 32).packed(1, 513, 0, 700, 0).normalized());
    cases.add(of("packed", 1, 4, 2, 131, 32, 48).packed(64, 2, 65).normalized());
  }

  static void addNonCausal(List<Case.Builder> cases) {
    cases.add(of("all", 2, 2, 1, 32).nonCausal());
    cases.add(of("all", 1, 2, 65, 48).nonCausal().normalized());
    cases.add(of("all", 1, 1, 1201, 64).nonCausal());
    cases.add(of("all", 1, 6, 2, 131, 32, 64).nonCausal().packed(0, 1, 66, 64));
    cases.add(of("all", 1, 2, 1, 1300, 16, 32).nonCausal().normalized());
    addNonCausalStates(cases);
  }

  private static void addNonCausalStates(List<Case.Builder> cases) {
    cases.add(of("all, kept", 2, 2, 70, 32).nonCausal().keepingState());
    cases.add(of("all, kept", 1, 2, 1, 1300, 16, 32).nonCausal().keepingState().normalized());
    cases.add(of("all, kept", 1, 2, 131, 32).nonCausal().packed(0, 1, 66, 64).keepingState());
    cases.add(of("all, after", 2, 2, 65, 32).nonCausal().afterTokens(37));
    cases.add(of("all, after", 1, 2, 90, 32).nonCausal().coefficients(1, 0).afterTokens(4));
    for (int tokens : new int[] {1, 66, 1300}) {
      cases.add(
          of("all, through states", 1, 4, 2, tokens, 48, 32)
              .nonCausal()
              .normalized()
              .afterTokens(20)
              .throughStates()
              .keepingState());
    }
    cases.add(of("all, through states", 1, 2, 65, 64).nonCausal().throughStates());
    cases.add(
        of("all, through states", 1, 4, 2, 130, 32, 48)
            .nonCausal()
            .packed(1, 0, 129)
            .afterTokens(9)
            .throughStates());
  }

  static void addCoefficients(List<Case.Builder> cases) {
    cases.add(of("a=1 b=0", 1, 2, 130, 32).coefficients(1, 0));
    cases.add(of("a=0 b=1", 1, 2, 130, 32).coefficients(0, 1));
    cases.add(of("a=-2 b=.7", 1, 2, 130, 32).coefficients(-2, 0.7f));
    cases.add(of("a=1 b=.001", 1, 2, 300, 64).coefficients(1, 0.001f));
    cases.add(of("a=1 b=.001 bf16", 1, 2, 300, 64).coefficients(1, 0.001f).dtype(DType.BF16));
    cases.add(of("a=1 b=-.9", 1, 2, 130, 64).coefficients(1, -0.9f).normalized());
    // the terms of da nearly cancel
    cases.add(of("f16", 1, 4, 332, 128).coefficients(3, 0.05f).normalized().dtype(DType.F16));
    cases.add(of("tf32", 1, 25, 12, 192).coefficients(2, 0.19f).normalized().mode(Mode.TF32));
    cases.add(of("tf32", 1, 16, 22, 256).coefficients(3, -0.14f).normalized().mode(Mode.TF32));
    float[] a = {1, 0, -1, 2.5f};
    float[] b = {1, 0.5f, -0.5f, 0};
    cases.add(of("per head", 2, 4, 70, 32).coefficients(a, b));
    cases.add(of("per head", 2, 4, 2, 70, 16, 32).coefficients(a, b));
    cases.add(of("per head", 1, 4, 1, 70, 16, 32).coefficients(a, b).nonCausal());
  }

  static void addLayouts(List<Case.Builder> cases) {
    for (Layout layout : List.of(Layout.TOKEN_MAJOR, Layout.INTERLEAVED)) {
      cases.add(of(layout + "", 2, 3, 67, 32).layout(layout));
      cases.add(of(layout + "", 2, 4, 2, 67, 48, 48).layout(layout).normalized());
      cases.add(of(layout + "", 1, 2, 1, 130, 32, 32).layout(layout).packed(65, 0, 65));
    }
    cases.add(of("TOKEN_MAJOR", 1, 2, 2, 1090, 32, 64).layout(Layout.TOKEN_MAJOR).nonCausal());
    cases.add(of("TOKEN_MAJOR", 1, 2, 2, 65, 32, 64).layout(Layout.TOKEN_MAJOR).dtype(DType.F16));
  }

  static void addTypes(List<Case.Builder> cases) {
    for (DType dtype : List.of(DType.BF16, DType.F16)) {
      cases.add(of(dtype + "", 1, 2, 1, 32).dtype(dtype));
      cases.add(of(dtype + "", 1, 2, 193, 64).dtype(dtype));
      cases.add(of(dtype + "", 1, 2, 193, 64).dtype(dtype).normalized());
      cases.add(of(dtype + "", 1, 4, 2, 97, 48, 32).dtype(dtype).nonCausal());
      cases.add(of(dtype + "", 1, 1, 2000, 32).dtype(dtype).packed(700, 1, 1299));
    }
  }

  static void addStates(List<Case.Builder> cases) {
    cases.add(of("state", 2, 2, 65, 32).afterTokens(37));
    cases.add(of("state", 1, 2, 1, 64).afterTokens(5).normalized());
    cases.add(of("state", 1, 1, 1100, 32).afterTokens(100));
    cases.add(of("state", 1, 4, 2, 130, 32, 48).packed(1, 0, 129).afterTokens(9).normalized());
    cases.add(of("state", 1, 2, 66, 32).dtype(DType.BF16).afterTokens(20));
    cases.add(of("state", 1, 2, 66, 32).coefficients(1.5f, -0.5f).afterTokens(3));
  }

  static void addStateGradients(List<Case.Builder> cases) {
    cases.add(of("through states", 2, 2, 65, 32).throughStates());
    cases.add(of("through states", 1, 2, 1, 64).throughStates());
    cases.add(of("through states", 2, 2, 129, 32).afterTokens(37).throughStates());
    cases.add(of("through states", 1, 2, 64, 64).afterTokens(5).normalized().throughStates());
    cases.add(of("through states", 1, 1, 2100, 128).afterTokens(100).throughStates());
    cases.add(of("through states", 1, 6, 2, 1100, 32, 32).afterTokens(70).throughStates());
    cases.add(
        of("through states", 1, 4, 2, 130, 32, 48)
            .packed(1, 0, 129)
            .afterTokens(9)
            .normalized()
            .throughStates());
    cases.add(of("through states", 1, 4, 1, 67, 96, 32).layout(Layout.TOKEN_MAJOR).throughStates());
    cases.add(of("through states", 1, 2, 90, 32).coefficients(1, 0).afterTokens(4).throughStates());
    cases.add(of("through states", 1, 2, 90, 32).coefficients(0, 1).afterTokens(4).throughStates());
    for (DType dtype : List.of(DType.BF16, DType.F16)) {
      cases.add(of("through states " + dtype, 1, 2, 131, 64).dtype(dtype).throughStates());
      cases.add(
          of("through states " + dtype, 1, 2, 66, 32).dtype(dtype).afterTokens(20).throughStates());
    }
  }

  /** Shapes that the seed chooses. */
  static void addDrawn(List<Case.Builder> cases) {
    SplittableRandom random = Seeds.random("drawn shapes");
    for (int i = 0; i < 12; i++) {
      int keyValueHeads = random.nextInt(1, 4);
      int[] lengths = new int[random.nextInt(1, 4)];
      for (int j = 0; j < lengths.length; j++) {
        lengths[j] = random.nextInt(j == 0 ? 1 : 0, 200);
      }
      int tokens = Arrays.stream(lengths).sum();
      int batch = lengths.length > 1 ? 1 : random.nextInt(1, 4);
      Case.Builder builder =
          of(
              "drawn " + i,
              batch,
              keyValueHeads * random.nextInt(1, 4),
              keyValueHeads,
              tokens,
              16 * random.nextInt(1, 9),
              16 * random.nextInt(1, 9));
      if (lengths.length > 1) {
        builder.packed(lengths);
      }
      if (random.nextBoolean()) {
        builder.normalized();
      }
      if (random.nextInt(4) == 0) {
        builder.nonCausal();
      } else if (random.nextBoolean()) {
        builder.throughStates();
      }
      if (random.nextInt(3) == 0) {
        builder.layout(Layout.TOKEN_MAJOR);
      }
      builder.coefficients(random.nextInt(1, 4), (float) random.nextDouble(-1, 1));
      cases.add(builder);
    }
  }
}
