package io.github.linattn.test.fault;

import io.github.linattn.internal.cuda.ChunkedStructs;
import io.github.linattn.internal.cuda.GradientStructs;
import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.Catalogue;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.Family;
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
import java.util.List;
import java.util.TreeMap;

/** A folder of kernels that are not there, which the double of libcudart takes for real ones. */
final class FakeKernels {
  static final int HEAD_DIM = 128;

  private static final int QUICK_HEAD_DIM = 32;

  /** Of a forward in bf16 that has no backward. */
  static final int FORWARD_HEAD_DIM = 80;

  private static final String PROPERTY = "linattn.kernels";

  private FakeKernels() {}

  /** Every kernel of the family chunked for bf16 and fp32 tensors of D = 128. */
  static void install(Path folder) {
    write(folder, kernels());
  }

  /** The same, and those of D = 32, as quick runs have it, which a build may leave out. */
  static void installForQuickRuns(Path folder) {
    List<KernelEntry> entries = new ArrayList<>(kernels());
    Catalogue.defaults().stream()
        .filter(spec -> spec.family() == Family.CHUNKED && spec.headDim() == QUICK_HEAD_DIM)
        .forEach(spec -> entries.add(KernelEntry.of(spec, new TreeMap<>())));
    write(folder, entries);
  }

  private static List<KernelEntry> kernels() {
    List<KernelEntry> entries = new ArrayList<>();
    for (ElementType element : List.of(ElementType.BF16, ElementType.F32)) {
      boolean wide = element == ElementType.F32;
      Precision exact = wide ? Precision.ACCURATE : Precision.NATIVE;
      entries.add(entry(Operation.FORWARD, Technique.WGMMA, element, exact));
      if (wide) {
        entries.add(entry(Operation.FORWARD, Technique.WGMMA, element, Precision.DEFAULT));
        entries.addAll(outputs(element, Precision.DEFAULT));
      }
      entries.addAll(outputs(element, exact));
      entries.add(entry(Operation.FORWARD, Technique.MMA, element, exact));
      entries.add(entry(Operation.STATE_SUMS, Technique.MMA, element, exact));
      entries.add(entry(Operation.NORMALIZED_FORWARD, Technique.WGMMA, HEAD_DIM, element, exact));
      entries.add(entry(Operation.STATE_SUMS, Technique.WGMMA, HEAD_DIM, element, exact));
      entries.add(
          entry(Operation.NORMALIZED_STATE_SUMS, Technique.WGMMA, HEAD_DIM, element, exact));
      entries.add(entry(Operation.STATE_OUTPUTS, Technique.MMA, element, exact));
      entries.add(entry(Operation.DECODE, Technique.SIMT, element, exact));
      entries.add(entry(Operation.RECURRENCE, Technique.SIMT, element, exact));
      entries.addAll(gradients(element, exact));
    }
    entries.add(entry(Operation.ONE_SWEEP, Technique.WGMMA, ElementType.BF16, Precision.NATIVE));
    entries.add(entry(Operation.STATE_SCAN, Technique.SIMT, ElementType.F32, Precision.ACCURATE));
    return entries;
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

  private static List<KernelEntry> outputs(ElementType element, Precision precision) {
    return List.of(
        entry(Operation.STATE_OUTPUTS, Technique.WGMMA, element, precision),
        entry(Operation.GRADIENT_OUTPUTS, Technique.WGMMA, element, precision),
        entry(Operation.NORMALIZED_GRADIENT_OUTPUTS, Technique.WGMMA, element, precision));
  }

  private static List<KernelEntry> gradients(ElementType element, Precision exact) {
    Operation query = Operation.QUERY_GRADIENT;
    Operation both = Operation.KEY_VALUE_GRADIENT;
    return List.of(
        entry(Operation.GRADIENT_ROWS, Technique.SIMT, element, exact),
        entry(query, Technique.MMA, element, exact),
        entry(query, Technique.WGMMA, element, exact),
        entry(both, Technique.MMA, element, exact),
        entry(both, Technique.WGMMA, element, exact),
        entry(Operation.GRADIENT_SUMS, Technique.MMA, element, exact),
        entry(Operation.GRADIENT_SUMS, Technique.WGMMA, HEAD_DIM, element, exact),
        entry(query.normalized(), Technique.WGMMA, HEAD_DIM, element, exact),
        entry(both.normalized(), Technique.WGMMA, HEAD_DIM, element, exact),
        entry(Operation.NORMALIZED_GRADIENT_SUMS, Technique.WGMMA, HEAD_DIM, element, exact),
        entry(Operation.GRADIENT_OUTPUTS, Technique.MMA, element, exact),
        entry(Operation.GRADIENT_RECURRENCE, Technique.SIMT, element, exact),
        entry(Operation.NORMALIZE_ROWS_GRADIENT, Technique.SIMT, element, exact));
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
      Operation operation, Technique technique, ElementType element, Precision precision) {
    int headDim =
        switch (operation) {
          case FORWARD, QUERY_GRADIENT, KEY_VALUE_GRADIENT, ONE_SWEEP -> HEAD_DIM;
          default -> 0;
        };
    return entry(operation, technique, headDim, element, precision);
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
