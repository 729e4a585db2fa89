package io.github.linattn.cli;

import static io.github.linattn.cli.Precision.BF16;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiConsumer;
import java.util.stream.Stream;

/** Cases that are often wanted together. */
enum BenchPreset {
  /** The shapes for which there are targets. */
  TARGETS,
  /** Every head dimension that is shipped, in every type and mode. */
  HEAD_DIMS,
  /** From short to long. */
  TOKENS,
  /** From one head to more than a GPU has multiprocessors. */
  HEADS,
  /** Few and many heads, short and long, narrow and wide: what the planner has to tell apart. */
  GRID,
  /** From short to long with both kinds of data, for the errors: sums of many terms, two heads. */
  ACCURACY;

  private static final AttentionShape USUAL = AttentionShape.of(4, 16, 10_000, 128);
  private static final long DECODE_CONTEXT = 1000;
  static final int[] SHIPPED = {32, 64, 96, 128, 192, 256};

  /** The order of the targets. */
  static final List<Precision> ALL =
      List.of(
          BF16,
          Precision.F16,
          Precision.TF32,
          Precision.F32,
          new Precision(DType.F32, Mode.ACCURATE));

  /**
   * The cases in the order of the table; decode steps have a forward only.
   *
   * @param precisions what was asked for; empty for the preset's own
   */
  List<BenchCase> cases(List<Precision> precisions, BenchPass pass) {
    return cases(precisions, pass.hasBackward() ? 1 : 4).stream()
        .filter(each -> !each.decode() || !pass.hasBackward())
        .map(each -> each.with(pass))
        .flatMap(each -> pass.hasBackward() ? withKeptState(each) : Stream.of(each))
        .toList();
  }

  /** Also from what a forward keeps, where that is for: one sweep, or segments. */
  private Stream<BenchCase> withKeptState(BenchCase each) {
    boolean isFewHeads = each.shape().batch() == 1;
    boolean isOneSweep =
        each.precision().dtype() != DType.F32 && each.shape().keyDim() <= USUAL.keyDim();
    return this == TARGETS && (isOneSweep || isFewHeads)
        ? Stream.of(each, each.keepingState())
        : Stream.of(each);
  }

  /**
   * The forwards.
   *
   * @param longBatch batch rows of up to 10^6 tokens: as many as fit into the memory of a GPU
   */
  private List<BenchCase> cases(List<Precision> precisions, int longBatch) {
    List<BenchCase> cases = new ArrayList<>();
    switch (this) {
      case TARGETS -> targets(precisions, cases);
      case HEAD_DIMS -> {
        for (int dim : SHIPPED) {
          add(cases, or(precisions, ALL), AttentionShape.of(4, 16, 4096, dim));
        }
      }
      case TOKENS -> {
        for (int tokens : new int[] {1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000}) {
          add(cases, or(precisions, List.of(BF16)), AttentionShape.of(longBatch, 16, tokens, 128));
        }
      }
      case HEADS -> {
        for (int heads = 1; heads <= 256; heads *= 2) {
          add(cases, or(precisions, List.of(BF16)), AttentionShape.of(1, heads, 10_000, 128));
        }
      }
      case GRID -> {
        for (int dim : new int[] {64, 128, 256}) {
          for (int heads : new int[] {1, 4, 16, 64, 256}) {
            for (int tokens : new int[] {100, 1000, 10_000, 100_000}) {
              add(cases, or(precisions, List.of(BF16)), AttentionShape.of(1, heads, tokens, dim));
            }
          }
        }
      }
      case ACCURACY -> {
        for (BenchData.Kind data : BenchData.Kind.values()) {
          for (int dim : new int[] {128, 64}) {
            for (int tokens : new int[] {1024, 16_384, 131_072, 1_048_576}) {
              for (Precision precision : or(precisions, ALL)) {
                AttentionShape shape = AttentionShape.of(1, 2, tokens, dim);
                cases.add(BenchCase.of(shape, precision).with(data));
              }
            }
          }
        }
      }
    }
    return cases;
  }

  private static List<Precision> or(List<Precision> asked, List<Precision> usual) {
    return asked.isEmpty() ? usual : asked;
  }

  private static void add(List<BenchCase> cases, List<Precision> precisions, AttentionShape shape) {
    precisions.forEach(precision -> cases.add(BenchCase.of(shape, precision)));
  }

  private static void targets(List<Precision> asked, List<BenchCase> cases) {
    BiConsumer<AttentionShape, Precision> add =
        (shape, precision) -> {
          if (asked.isEmpty() || asked.contains(precision)) {
            BenchCase added = BenchCase.of(shape, precision);
            cases.add(
                shape.tokens() == 1 ? BenchCase.decode(shape, precision, DECODE_CONTEXT) : added);
          }
        };
    ALL.forEach(precision -> add.accept(USUAL, precision));
    add.accept(AttentionShape.of(4, 16, 10_000, 64), BF16);
    add.accept(AttentionShape.of(4, 16, 10_000, 256), BF16);
    add.accept(AttentionShape.of(1, 8, 131_072, 128), BF16);
    add.accept(AttentionShape.of(1, 1, 1_048_576, 128), BF16);
    add.accept(AttentionShape.of(4, 16, 1, 128), BF16);
  }
}
