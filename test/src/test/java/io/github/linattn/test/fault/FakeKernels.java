package io.github.linattn.test.fault;

import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.Family;
import io.github.linattn.kernelgen.GridRule;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernelgen.Manifest;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.SharedRule;
import io.github.linattn.kernelgen.Technique;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.TreeMap;

/** A folder of kernels that are not there, which the double of libcudart takes for real ones. */
final class FakeKernels {
  static final int HEAD_DIM = 128;

  private static final String PROPERTY = "linattn.kernels";

  private static final GridRule ROWS = new GridRule(GridRule.Per.ROWS, 32);
  private static final GridRule COLUMNS = new GridRule(GridRule.Per.VALUE_TILE, 64);
  private static final GridRule CLUSTERS = new GridRule(GridRule.Per.CLUSTER, 64);
  private static final GridRule STATES = new GridRule(GridRule.Per.STATE_TILE, 64);

  private FakeKernels() {}

  /** Every kernel of the family chunked for bf16 and fp32 tensors of D = 128. */
  static void install(Path folder) {
    List<KernelEntry> entries = new ArrayList<>();
    for (ElementType element : List.of(ElementType.BF16, ElementType.F32)) {
      boolean wide = element == ElementType.F32;
      Precision exact = wide ? Precision.ACCURATE : Precision.NATIVE;
      entries.add(entry(Operation.FORWARD, Technique.WGMMA, element, exact));
      if (wide) {
        entries.add(entry(Operation.FORWARD, Technique.WGMMA, element, Precision.DEFAULT));
      }
      entries.add(entry(Operation.FORWARD, Technique.MMA, element, exact));
      entries.add(entry(Operation.STATE_SUMS, Technique.MMA, element, exact));
      entries.add(entry(Operation.STATE_OUTPUTS, Technique.MMA, element, exact));
      entries.add(entry(Operation.DECODE, Technique.SIMT, element, exact));
      entries.add(entry(Operation.RECURRENCE, Technique.SIMT, element, exact));
      entries.addAll(gradients(element, exact));
    }
    entries.add(
        gradient(
            Operation.COEFFICIENT_SUMS,
            Technique.SIMT,
            0,
            ElementType.F32,
            Precision.ACCURATE,
            ROWS));
    entries.add(entry(Operation.STATE_SCAN, Technique.SIMT, ElementType.F32, Precision.ACCURATE));
    try {
      Files.createDirectories(folder);
      for (KernelEntry entry : entries) {
        Files.writeString(folder.resolve(entry.file()), "image of a kernel");
      }
      Files.writeString(folder.resolve(Manifest.FILE), new Manifest(entries).text());
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    System.setProperty(PROPERTY, folder.toString());
  }

  private static List<KernelEntry> gradients(ElementType element, Precision exact) {
    Operation query = Operation.QUERY_GRADIENT;
    Operation both = Operation.KEY_VALUE_GRADIENT;
    return List.of(
        gradient(Operation.GRADIENT_ROWS, Technique.SIMT, 0, element, exact, ROWS),
        gradient(query, Technique.MMA, HEAD_DIM, element, exact, COLUMNS),
        gradient(query, Technique.WGMMA, HEAD_DIM, element, exact, CLUSTERS),
        gradient(both, Technique.MMA, HEAD_DIM, element, exact, COLUMNS),
        gradient(both, Technique.WGMMA, HEAD_DIM, element, exact, CLUSTERS),
        gradient(Operation.GRADIENT_SUMS, Technique.MMA, 0, element, exact, STATES),
        gradient(Operation.GRADIENT_OUTPUTS, Technique.MMA, 0, element, exact, COLUMNS),
        gradient(Operation.NORMALIZE_ROWS_GRADIENT, Technique.SIMT, 0, element, exact, ROWS));
  }

  private static KernelEntry gradient(
      Operation operation,
      Technique technique,
      int headDim,
      ElementType element,
      Precision precision,
      GridRule rule) {
    String symbol = "la_chunked_%s_%s_%s".formatted(operation.id(), technique.id(), element.id());
    return new KernelEntry(
        symbol,
        symbol + ".fatbin",
        operation,
        Family.CHUNKED,
        technique,
        headDim,
        1,
        element,
        precision,
        256,
        new SharedRule.Fixed(0),
        rule,
        EnumSet.of(architecture(technique)),
        new TreeMap<>());
  }

  private static Architecture architecture(Technique technique) {
    return technique == Technique.WGMMA ? Architecture.SM_90A : Architecture.SM_90;
  }

  static void remove() {
    System.clearProperty(PROPERTY);
  }

  private static KernelEntry entry(
      Operation operation, Technique technique, ElementType element, Precision precision) {
    int headDim = operation == Operation.FORWARD ? HEAD_DIM : 0;
    KernelSpec spec =
        KernelSpec.chunked(
            operation, technique, headDim, element, precision, EnumSet.of(architecture(technique)));
    return KernelEntry.of(spec, new TreeMap<>());
  }
}
