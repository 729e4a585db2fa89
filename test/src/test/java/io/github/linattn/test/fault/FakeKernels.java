package io.github.linattn.test.fault;

import io.github.linattn.internal.cuda.ChunkedStructs;
import io.github.linattn.internal.cuda.GradientStructs;
import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernelgen.Manifest;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.Technique;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.StructLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.TreeMap;

/** A folder of kernels that are not there, which the double of libcudart takes for real ones. */
final class FakeKernels {
  static final int HEAD_DIM = 128;

  /** That of {@code bench paper --quick}. */
  private static final int QUICK_HEAD_DIM = 32;

  /** Of a forward in bf16 that has no backward. */
  static final int FORWARD_HEAD_DIM = 80;

  private static final String PROPERTY = "linattn.kernels";

  private FakeKernels() {}

  /** Every kernel of the family chunked for bf16 and fp32 tensors of D = 128 and of D = 32. */
  static void install(Path folder) {
    var entries = new LinkedHashSet<KernelEntry>(); // some serve every head dimension
    for (int headDim : List.of(HEAD_DIM, QUICK_HEAD_DIM)) {
      entries.addAll(kernels(headDim, ElementType.BF16, Precision.NATIVE));
      entries.addAll(kernels(headDim, ElementType.F32, Precision.ACCURATE));
      entries.add(
          entry(Operation.FORWARD, Technique.WGMMA, headDim, ElementType.F32, Precision.DEFAULT));
    }
    entries.addAll(outputs(ElementType.F32, Precision.DEFAULT));
    entries.add(
        entry(Operation.ONE_SWEEP, Technique.WGMMA, HEAD_DIM, ElementType.BF16, Precision.NATIVE));
    entries.add(
        entry(Operation.STATE_SCAN, Technique.SIMT, 0, ElementType.F32, Precision.ACCURATE));
    write(folder, List.copyOf(entries));
  }

  /** A forward of bf16 tensors of D = 80 without a backward. */
  static void installForward(Path folder) {
    write(
        folder,
        List.of(
            entry(
                Operation.FORWARD,
                Technique.MMA,
                FORWARD_HEAD_DIM,
                ElementType.BF16,
                Precision.NATIVE)));
  }

  private static void write(Path folder, List<KernelEntry> entries) {
    try {
      Files.createDirectories(folder);
      for (KernelEntry entry : entries) {
        long bytes = arguments(entry).byteSize();
        Files.writeString(folder.resolve(entry.file()), "arguments of %d bytes".formatted(bytes));
      }
      Files.writeString(folder.resolve(Manifest.FILE), new Manifest(entries).text());
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    System.setProperty(PROPERTY, folder.toString());
  }

  private static List<KernelEntry> kernels(int headDim, ElementType element, Precision exact) {
    List<KernelEntry> entries = new ArrayList<>(outputs(element, exact));
    for (Operation operation :
        List.of(Operation.FORWARD, Operation.QUERY_GRADIENT, Operation.KEY_VALUE_GRADIENT)) {
      entries.add(entry(operation, Technique.MMA, headDim, element, exact));
      entries.add(entry(operation, Technique.WGMMA, headDim, element, exact));
      entries.add(entry(operation.normalized(), Technique.WGMMA, headDim, element, exact));
    }
    for (Operation operation : List.of(Operation.STATE_SUMS, Operation.GRADIENT_SUMS)) {
      entries.add(entry(operation, Technique.MMA, 0, element, exact));
      entries.add(entry(operation, Technique.WGMMA, headDim, element, exact));
      entries.add(entry(operation.normalized(), Technique.WGMMA, headDim, element, exact));
    }
    for (Operation operation : List.of(Operation.STATE_OUTPUTS, Operation.GRADIENT_OUTPUTS)) {
      entries.add(entry(operation, Technique.MMA, 0, element, exact));
    }
    for (Operation operation :
        List.of(
            Operation.DECODE,
            Operation.RECURRENCE,
            Operation.GRADIENT_ROWS,
            Operation.GRADIENT_RECURRENCE,
            Operation.NORMALIZE_ROWS_GRADIENT)) {
      entries.add(entry(operation, Technique.SIMT, 0, element, exact));
    }
    return entries;
  }

  private static List<KernelEntry> outputs(ElementType element, Precision precision) {
    return List.of(
        entry(Operation.STATE_OUTPUTS, Technique.WGMMA, 0, element, precision),
        entry(Operation.GRADIENT_OUTPUTS, Technique.WGMMA, 0, element, precision),
        entry(Operation.NORMALIZED_GRADIENT_OUTPUTS, Technique.WGMMA, 0, element, precision));
  }

  /** What a kernel takes by value. */
  private static StructLayout arguments(KernelEntry entry) {
    boolean tensorMaps = entry.takesTensorMaps();
    return switch (entry.operation()) {
      case STATE_SCAN -> ChunkedStructs.STATE_SCAN;
      case GRADIENT_ROWS -> GradientStructs.GRADIENT_ROWS;
      case NORMALIZE_ROWS_GRADIENT -> GradientStructs.NORMALIZE_ROWS_GRADIENT;
      case GRADIENT_RECURRENCE -> GradientStructs.GRADIENT_RECURRENCE;
      case ONE_SWEEP -> GradientStructs.HOPPER_ONE_SWEEP;
      case FORWARD,
          NORMALIZED_FORWARD,
          STATE_SUMS,
          NORMALIZED_STATE_SUMS,
          STATE_OUTPUTS,
          DECODE,
          RECURRENCE ->
          tensorMaps ? ChunkedStructs.HOPPER : ChunkedStructs.CHUNKED;
      default -> tensorMaps ? GradientStructs.HOPPER_GRADIENTS : GradientStructs.GRADIENT;
    };
  }

  private static Architecture architecture(Technique technique) {
    return technique == Technique.WGMMA ? Architecture.SM_90A : Architecture.SM_90;
  }

  static void remove() {
    System.clearProperty(PROPERTY);
  }

  private static KernelEntry entry(
      Operation operation,
      Technique technique,
      int headDim,
      ElementType element,
      Precision precision) {
    KernelSpec spec =
        KernelSpec.chunked(
            operation, technique, headDim, element, precision, EnumSet.of(architecture(technique)));
    return KernelEntry.of(spec, new TreeMap<>());
  }
}
