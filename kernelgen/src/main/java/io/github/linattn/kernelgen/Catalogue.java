package io.github.linattn.kernelgen;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.EnumSet;
import java.util.List;
import java.util.OptionalInt;
import java.util.Set;
import java.util.stream.Stream;

/** The kernels that are built, in the order of {@link KernelSpec#compareTo}. */
public final class Catalogue {
  /** The head dimensions that kernels are shipped for; others are generated. */
  public static final List<Integer> HEAD_DIMS = List.of(32, 64, 96, 128, 192, 256);

  /** A type of tensors, and how exactly it is computed. */
  private record Numbers(ElementType element, Precision precision) {}

  private static final List<Operation> HOPPER_OPERATIONS =
      List.of(
          Operation.FORWARD,
          Operation.NORMALIZED_FORWARD,
          Operation.STATE_SUMS,
          Operation.NORMALIZED_STATE_SUMS,
          Operation.QUERY_GRADIENT,
          Operation.KEY_VALUE_GRADIENT,
          Operation.GRADIENT_SUMS,
          Operation.NORMALIZED_QUERY_GRADIENT,
          Operation.NORMALIZED_KEY_VALUE_GRADIENT,
          Operation.NORMALIZED_GRADIENT_SUMS);

  private static final List<Numbers> NUMBERS =
      List.of(
          new Numbers(ElementType.F32, Precision.TF32),
          new Numbers(ElementType.F32, Precision.DEFAULT),
          new Numbers(ElementType.F32, Precision.ACCURATE),
          new Numbers(ElementType.BF16, Precision.NATIVE),
          new Numbers(ElementType.F16, Precision.NATIVE));

  private Catalogue() {}

  /** The architectures of the shipped kernels: Hopper, and PTX for all others. */
  public static Set<Architecture> defaultArchitectures() {
    return EnumSet.of(Architecture.SM_90, Architecture.SM_90A, Architecture.PTX);
  }

  /** Machine code for every architecture, and PTX for later ones. */
  public static Set<Architecture> allArchitectures() {
    return EnumSet.allOf(Architecture.class);
  }

  /** The shipped kernels for the {@link #defaultArchitectures}. */
  public static List<KernelSpec> defaults() {
    return defaults(defaultArchitectures());
  }

  /** The shipped kernels: both families for the {@link #HEAD_DIMS}, and those of any D. */
  public static List<KernelSpec> defaults(Set<Architecture> architectures) {
    return forHeadDims(HEAD_DIMS, architectures);
  }

  /**
   * The kernels of both families for these head dimensions, and those of any D.
   *
   * @throws IllegalArgumentException if a rule or a budget of {@link KernelSpec} is broken
   */
  public static List<KernelSpec> forHeadDims(
      Collection<Integer> headDims, Set<Architecture> architectures) {
    List<KernelSpec> specs = new ArrayList<>(anyHeadDim(architectures));
    for (int headDim : headDims) {
      specs.addAll(forHeadDim(headDim, OptionalInt.empty(), architectures));
    }
    return specs.stream().sorted().toList();
  }

  /**
   * The kernels of both families for one head dimension.
   *
   * @param slices L of the family {@code paper}; the default one where empty
   * @throws IllegalArgumentException if a rule or a budget of {@link KernelSpec} is broken
   */
  public static List<KernelSpec> forHeadDim(
      int headDim, OptionalInt slices, Set<Architecture> architectures) {
    return Stream.concat(
            paper(headDim, slices, architectures).stream(),
            chunked(headDim, architectures).stream())
        .sorted()
        .toList();
  }

  /** The kernels of the family {@code paper} for one head dimension. */
  public static List<KernelSpec> paper(
      int headDim, OptionalInt slices, Set<Architecture> architectures) {
    int chosen = slices.isPresent() ? slices.getAsInt() : KernelSpec.defaultSlices(headDim);
    Set<Architecture> portable = portable(architectures);
    if (portable.isEmpty()) {
      KernelSpec.paper(Operation.FORWARD, headDim, chosen, EnumSet.of(Architecture.PTX));
      return List.of();
    }
    return Arrays.stream(Operation.values())
        .filter(Operation::isOfPaper)
        .map(operation -> KernelSpec.paper(operation, headDim, chosen, portable))
        .sorted()
        .toList();
  }

  /** Forwards and causal gradients of the family {@code chunked} for one D; none above 256. */
  public static List<KernelSpec> chunked(int headDim, Set<Architecture> architectures) {
    List<KernelSpec> specs = new ArrayList<>();
    if (headDim > KernelSpec.MAX_CHUNKED_HEAD_DIM) {
      return specs;
    }
    Set<Architecture> portable = portable(architectures);
    for (Numbers numbers : NUMBERS) {
      if (architectures.contains(Architecture.SM_90A)) {
        Set<Architecture> hopper = EnumSet.of(Architecture.SM_90A);
        HOPPER_OPERATIONS.stream()
            .filter(
                operation ->
                    HopperPlan.exists(operation, headDim, numbers.element, numbers.precision))
            .map(operation -> chunked(operation, Technique.WGMMA, headDim, numbers, hopper))
            .forEach(specs::add);
        if (OneSweepPlan.exists(headDim, numbers.element)) {
          specs.add(chunked(Operation.ONE_SWEEP, Technique.WGMMA, headDim, numbers, hopper));
        }
      }
      Set<Architecture> mma = mmaArchitectures(headDim, numbers, portable);
      if (!mma.isEmpty() && mmaFits(headDim, numbers)) {
        specs.add(chunked(Operation.FORWARD, Technique.MMA, headDim, numbers, mma));
      }
      Set<Architecture> gradients = gradientArchitectures(headDim, numbers, portable);
      if (!gradients.isEmpty() && gradientsFit(headDim, numbers)) {
        specs.add(chunked(Operation.QUERY_GRADIENT, Technique.MMA, headDim, numbers, gradients));
        specs.add(
            chunked(Operation.KEY_VALUE_GRADIENT, Technique.MMA, headDim, numbers, gradients));
      }
    }
    return specs;
  }

  /** Blackwell lacks the registers of the widest: its driver compiles their PTX. */
  private static Set<Architecture> mmaArchitectures(
      int headDim, Numbers numbers, Set<Architecture> portable) {
    boolean wide =
        switch (numbers.precision) {
          case ACCURATE -> headDim >= 192;
          case TF32 -> headDim >= 256;
          case NATIVE -> numbers.element == ElementType.F16 && headDim >= 192;
          case DEFAULT -> false;
        };
    if (!wide) {
      return portable;
    }
    Set<Architecture> rest = EnumSet.noneOf(Architecture.class);
    rest.addAll(portable);
    rest.removeAll(EnumSet.of(Architecture.SM_100, Architecture.SM_120));
    return rest;
  }

  /** Whether the forward by mma does without spilling; accurate serves the precision default. */
  private static boolean mmaFits(int headDim, Numbers numbers) {
    return switch (numbers.precision) {
      case DEFAULT -> false;
      case TF32 -> true;
      case ACCURATE -> headDim < 256;
      case NATIVE -> numbers.element == ElementType.BF16 || headDim <= 192;
    };
  }

  /** Those that have the registers of the causal gradients; the others compile their PTX. */
  private static Set<Architecture> gradientArchitectures(
      int headDim, Numbers numbers, Set<Architecture> portable) {
    boolean bf16 = numbers.element == ElementType.BF16;
    Set<Architecture> rest = EnumSet.noneOf(Architecture.class);
    rest.addAll(portable);
    if (!bf16 && headDim > (numbers.precision == Precision.ACCURATE ? 96 : 128)) {
      rest.removeAll(EnumSet.of(Architecture.SM_100, Architecture.SM_120));
    }
    if (!bf16 && headDim > 192) {
      rest.removeAll(EnumSet.of(Architecture.SM_80, Architecture.SM_86, Architecture.SM_89));
    }
    return rest;
  }

  /** Whether the causal gradients by mma do without spilling; accurate serves default too. */
  private static boolean gradientsFit(int headDim, Numbers numbers) {
    return switch (numbers.precision) {
      case DEFAULT -> false;
      case TF32 -> true;
      case ACCURATE -> headDim <= 128;
      case NATIVE -> numbers.element == ElementType.BF16 || headDim <= 192;
    };
  }

  /** The kernels of the family {@code chunked} that serve every head dimension. */
  public static List<KernelSpec> anyHeadDim(Set<Architecture> architectures) {
    List<KernelSpec> specs = new ArrayList<>();
    if (architectures.contains(Architecture.SM_90A)) {
      specs.addAll(hopperOutputs());
    }
    Set<Architecture> portable = portable(architectures);
    if (portable.isEmpty()) {
      return specs;
    }
    for (Numbers numbers : NUMBERS) {
      if (numbers.precision == Precision.DEFAULT) {
        continue; // served by accurate
      }
      specs.add(chunked(Operation.STATE_SUMS, Technique.MMA, 0, numbers, portable));
      specs.add(chunked(Operation.STATE_OUTPUTS, Technique.MMA, 0, numbers, portable));
      specs.add(chunked(Operation.GRADIENT_SUMS, Technique.MMA, 0, numbers, portable));
      specs.add(chunked(Operation.GRADIENT_OUTPUTS, Technique.MMA, 0, numbers, portable));
    }
    for (ElementType element : ElementType.values()) {
      Numbers exact =
          new Numbers(element, element == ElementType.F32 ? Precision.ACCURATE : Precision.NATIVE);
      specs.add(chunked(Operation.DECODE, Technique.SIMT, 0, exact, portable));
      specs.add(chunked(Operation.RECURRENCE, Technique.SIMT, 0, exact, portable));
      specs.add(chunked(Operation.GRADIENT_ROWS, Technique.SIMT, 0, exact, portable));
      specs.add(chunked(Operation.GRADIENT_RECURRENCE, Technique.SIMT, 0, exact, portable));
      specs.add(chunked(Operation.NORMALIZE_ROWS_GRADIENT, Technique.SIMT, 0, exact, portable));
    }
    Numbers states = new Numbers(ElementType.F32, Precision.ACCURATE);
    specs.add(chunked(Operation.STATE_SCAN, Technique.SIMT, 0, states, portable));
    return specs.stream().sorted().toList();
  }

  private static List<KernelSpec> hopperOutputs() {
    Set<Architecture> hopper = EnumSet.of(Architecture.SM_90A);
    return Stream.of(
            Operation.STATE_OUTPUTS,
            Operation.GRADIENT_OUTPUTS,
            Operation.NORMALIZED_GRADIENT_OUTPUTS)
        .flatMap(
            operation ->
                NUMBERS.stream()
                    .filter(numbers -> OutputsPlan.exists(operation, numbers.precision))
                    .map(numbers -> chunked(operation, Technique.WGMMA, 0, numbers, hopper)))
        .toList();
  }

  private static KernelSpec chunked(
      Operation operation,
      Technique technique,
      int headDim,
      Numbers numbers,
      Set<Architecture> architectures) {
    return KernelSpec.chunked(
        operation, technique, headDim, numbers.element, numbers.precision, architectures);
  }

  /** Those that compile everything but wgmma. */
  private static Set<Architecture> portable(Set<Architecture> architectures) {
    Set<Architecture> rest = EnumSet.noneOf(Architecture.class);
    rest.addAll(architectures);
    rest.remove(Architecture.SM_90A);
    return rest;
  }
}
