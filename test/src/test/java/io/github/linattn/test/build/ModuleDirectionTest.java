package io.github.linattn.test.build;

import static com.tngtech.archunit.core.domain.JavaAccess.Predicates.target;
import static com.tngtech.archunit.core.domain.JavaClass.Predicates.resideInAPackage;
import static com.tngtech.archunit.core.domain.JavaClass.Predicates.resideInAnyPackage;
import static com.tngtech.archunit.core.domain.JavaClass.Predicates.resideOutsideOfPackage;
import static com.tngtech.archunit.core.domain.properties.HasName.Predicates.nameMatching;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.classes;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noClasses;
import static org.assertj.core.api.Assertions.assertThat;

import com.tngtech.archunit.core.domain.JavaClass;
import com.tngtech.archunit.core.domain.JavaClasses;
import com.tngtech.archunit.core.importer.ClassFileImporter;
import com.tngtech.archunit.core.importer.ImportOption;
import com.tngtech.archunit.lang.ArchRule;
import java.util.Locale;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/**
 * Breaks when a module reaches back: kernelgen → cuda-src → runtime → cli, and bindings → runtime;
 * or when something outside bindings calls native code, or the generator looks at its surroundings.
 */
final class ModuleDirectionTest {
  private static final String BINDINGS = "io.github.linattn.bindings..";
  private static final String HOST = "io.github.linattn.bindings.host";
  private static final String CUDA_EXCEPTIONS = "io.github.linattn.cuda";
  private static final String KERNELGEN = "io.github.linattn.kernelgen..";
  private static final String KERNELS = "io.github.linattn.kernels..";
  private static final String CLI = "io.github.linattn.cli..";
  private static final String FILES = "io.github.linattn.files";
  private static final String POINTS = "io.github.linattn.cli.points..";
  private static final String FIGURES = "io.github.linattn.cli.figures..";
  private static final String[] RUNTIME = {
    "io.github.linattn",
    FILES,
    "io.github.linattn.io..",
    "io.github.linattn.reference..",
    "io.github.linattn.internal.."
  };

  private static JavaClasses all;

  @BeforeAll
  static void readClasses() {
    all =
        new ClassFileImporter()
            .withImportOption(ImportOption.Predefined.DO_NOT_INCLUDE_TESTS)
            .withImportOption(location -> !location.contains("/test-classes/"))
            .withImportOption(location -> !location.contains("-tests.jar"))
            .withImportOption(location -> !location.contains("linattn/test/"))
            .importPackages("io.github.linattn");
  }

  @Test
  void readsEveryModule() {
    for (String name :
        new String[] {
          "io.github.linattn.bindings.Cuda",
          "io.github.linattn.kernelgen.KernelSpec",
          "io.github.linattn.kernels.BuiltKernels",
          "io.github.linattn.LinearAttention",
          "io.github.linattn.cli.Main"
        }) {
      assertThat(all.contain(name)).as(name).isTrue();
    }
  }

  private static void mayUse(String[] users, String... used) {
    String[] ours = concat(users, used);
    classes()
        .that()
        .resideInAnyPackage(users)
        .should()
        .onlyDependOnClassesThat(
            resideInAnyPackage(ours)
                .or(
                    com.tngtech.archunit.base.DescribedPredicate.not(
                        resideInAnyPackage("io.github.linattn.."))))
        .check(all);
  }

  private static String[] concat(String[] x, String... y) {
    String[] both = java.util.Arrays.copyOf(x, x.length + y.length);
    System.arraycopy(y, 0, both, x.length, y.length);
    return both;
  }

  @Test
  void kernelgenUsesNoOtherModule() {
    mayUse(new String[] {KERNELGEN});
  }

  @Test
  void cudaSrcUsesKernelgenAlone() {
    mayUse(new String[] {KERNELS}, KERNELGEN);
  }

  @Test
  void bindingsUseNoOtherModule() {
    mayUse(new String[] {BINDINGS, CUDA_EXCEPTIONS});
  }

  @Test
  void runtimeUsesWhatStandsBelowIt() {
    mayUse(RUNTIME, BINDINGS, CUDA_EXCEPTIONS, KERNELS, KERNELGEN);
  }

  /** A call never compiles: the runtime finds kernels, and whoever was asked builds them. */
  @Test
  void runtimeKnowsNoCompiler() {
    noClasses()
        .that()
        .resideInAnyPackage(RUNTIME)
        .should()
        .dependOnClassesThat()
        .haveNameMatching(".*\\.kernels\\.(KernelBuild|Nvcc).*")
        .check(all);
  }

  @Test
  void onlyTheCudaEngineAndTheDiagnosticsKnowCuda() {
    noClasses()
        .that()
        .resideInAnyPackage(RUNTIME)
        .and()
        .resideOutsideOfPackage("io.github.linattn.internal.cuda..")
        .and()
        .doNotHaveFullyQualifiedName("io.github.linattn.Diagnostics")
        .and()
        .haveNameNotMatching(".*Diagnostics\\$.*")
        .should()
        .dependOnClassesThat(resideInAPackage(BINDINGS).and(resideOutsideOfPackage(HOST)))
        .check(all);
  }

  @Test
  void onlyTheCpuEngineAsksWhereAnArrayLies() {
    noClasses()
        .that()
        .resideOutsideOfPackages(HOST, "io.github.linattn.internal.cpu")
        .should()
        .dependOnClassesThat()
        .resideInAPackage(HOST)
        .check(all);
  }

  @Test
  void theCommandLineTouchesNoInternals() {
    noClasses()
        .that()
        .resideInAPackage(CLI)
        .should()
        .dependOnClassesThat()
        .resideInAnyPackage("io.github.linattn.internal..", "..generated..")
        .check(all);
  }

  @Test
  void pointsAndFiguresKnowNothingOfMeasuring() {
    mayUse(new String[] {POINTS}, FILES);
    mayUse(new String[] {FIGURES}, POINTS, FILES);
  }

  @Test
  void onlyBindingsCallNativeCode() {
    noClasses()
        .that()
        .resideOutsideOfPackage(BINDINGS)
        .should()
        .dependOnClassesThat()
        .haveFullyQualifiedName("java.lang.foreign.Linker")
        .orShould()
        .dependOnClassesThat()
        .haveFullyQualifiedName("java.lang.foreign.SymbolLookup")
        .orShould()
        .callMethod(System.class, "load", String.class)
        .orShould()
        .callMethod(System.class, "loadLibrary", String.class)
        .check(all);
    noClasses()
        .that()
        .resideOutsideOfPackage(BINDINGS)
        .should()
        .dependOnClassesThat()
        .resideInAPackage("..generated..")
        .check(all);
  }

  /**
   * Its text must be the same on every machine, at every time and in every language; it may write
   * it.
   */
  @Test
  void theGeneratorLooksAtNothingAroundIt() {
    ArchRule rule =
        noClasses()
            .that()
            .resideInAPackage(KERNELGEN)
            .should()
            .dependOnClassesThat()
            .resideInAnyPackage("java.lang.foreign..", "java.time..", "java.net..")
            .orShould()
            .callMethodWhere(
                target(nameMatching("getenv|getProperty|getProperties|currentTimeMillis|nanoTime"))
                    .and(target(ownedBy(System.class))))
            .orShould()
            .callMethod(String.class, "format", String.class, Object[].class)
            .orShould()
            .callMethod(String.class, "formatted", Object[].class)
            .orShould()
            .callMethod(String.class, "toLowerCase")
            .orShould()
            .callMethod(String.class, "toUpperCase")
            .orShould()
            .callMethod(Locale.class, "getDefault");
    rule.check(all);
  }

  private static com.tngtech.archunit.base.DescribedPredicate<
          com.tngtech.archunit.core.domain.AccessTarget>
      ownedBy(Class<?> owner) {
    return com.tngtech.archunit.base.DescribedPredicate.describe(
        "of " + owner.getSimpleName(), target -> target.getOwner().isEquivalentTo(owner));
  }

  @Test
  void everyPackageSaysWhatItIsFor() {
    all.stream()
        .filter(type -> !type.getPackageName().contains("generated"))
        .map(JavaClass::getPackage)
        .distinct()
        .forEach(
            javaPackage ->
                assertThat(javaPackage.isAnnotatedWith(org.jspecify.annotations.NullMarked.class))
                    .as("%s has a package-info with @NullMarked", javaPackage.getName())
                    .isTrue());
  }
}
