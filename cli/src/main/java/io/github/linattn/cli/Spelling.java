package io.github.linattn.cli;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.io.Tuning;
import io.github.linattn.kernelgen.Architecture;
import java.util.Arrays;
import java.util.function.Function;
import java.util.stream.Collectors;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.TypeConversionException;

/** Reads enums as the command line spells them: in lower case. */
final class Spelling {
  private Spelling() {}

  private static <E extends Enum<E>> E parse(Class<E> type, String text) {
    return parse(type, Spelling::word, text);
  }

  private static <E extends Enum<E>> E parse(
      Class<E> type, Function<? super E, String> word, String text) {
    return Arrays.stream(type.getEnumConstants())
        .filter(value -> word.apply(value).equals(text))
        .findFirst()
        .orElseThrow(() -> unknown(type, word, text));
  }

  private static <E extends Enum<E>> TypeConversionException unknown(
      Class<E> type, Function<? super E, String> word, String text) {
    String known =
        Arrays.stream(type.getEnumConstants()).map(word).collect(Collectors.joining(", "));
    return new TypeConversionException("it is one of " + known + ", not '" + text + "'");
  }

  private static String word(Enum<?> value) {
    return Text.id(value).replace('_', '-');
  }

  /** auto, cpu, cuda. */
  static final class OfBackend implements ITypeConverter<BackendChoice> {
    @Override
    public BackendChoice convert(String text) {
      return parse(BackendChoice.class, text);
    }
  }

  /** all, auto, cpu, cuda. */
  static final class OfScope implements ITypeConverter<VerifyCommand.Scope> {
    @Override
    public VerifyCommand.Scope convert(String text) {
      return parse(VerifyCommand.Scope.class, text);
    }
  }

  /** targets, head-dims, ... */
  static final class OfPreset implements ITypeConverter<BenchPreset> {
    @Override
    public BenchPreset convert(String text) {
      return parse(BenchPreset.class, text);
    }
  }

  /** tokens, head-dims, ... */
  static final class OfSweep implements ITypeConverter<PaperSweep> {
    @Override
    public PaperSweep convert(String text) {
      return parse(PaperSweep.class, text);
    }
  }

  /** f32, bf16, f16. */
  static final class OfDType implements ITypeConverter<DType> {
    @Override
    public DType convert(String text) {
      return parse(DType.class, text);
    }
  }

  /** normal, positive. */
  static final class OfData implements ITypeConverter<BenchData.Kind> {
    @Override
    public BenchData.Kind convert(String text) {
      return parse(BenchData.Kind.class, text);
    }
  }

  /** forward, backward. */
  static final class OfPass implements ITypeConverter<Tuning.Pass> {
    @Override
    public Tuning.Pass convert(String text) {
      return parse(Tuning.Pass.class, text);
    }
  }

  /** sm_80, ..., ptx. */
  static final class OfArchitecture implements ITypeConverter<Architecture> {
    @Override
    public Architecture convert(String text) {
      return parse(Architecture.class, Architecture::id, text);
    }
  }

  /** accurate, default, tf32. */
  static final class OfMode implements ITypeConverter<Mode> {
    @Override
    public Mode convert(String text) {
      return parse(Mode.class, text);
    }
  }
}
