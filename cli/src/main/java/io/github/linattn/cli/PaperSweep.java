package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/** One axis of the paper's evaluation, or of what users ask beside it. */
enum PaperSweep {
  /** Figures 2 and 3, the upper halves, and table 1: time and memory against tokens. */
  TOKENS(Precision.ALL, List.of(Precision.BF16, Precision.F32)) {
    @Override
    Stream<AttentionShape> shapes(boolean quick) {
      return quick
          ? IntStream.of(256, 1024).mapToObj(PaperSweep::small)
          : IntStream.of(1000, 3000, 10_000, 30_000, 100_000, 300_000).mapToObj(PaperSweep::usual);
    }

    /** In table 1 a peer stands beside every type; curves of all of them would hide one another. */
    @Override
    List<BenchCase> peers(boolean quick) {
      List<BenchCase> cases = new ArrayList<>(super.peers(quick));
      if (!quick) {
        cases.addAll(
            passes(List.of(Precision.F16, Precision.TF32), Stream.of(usual(PaperTable.TOKENS))));
      }
      return cases;
    }
  },
  /** Figures 2 and 3, the lower halves: time and memory against the head dimension. */
  HEAD_DIMS(Precision.ALL, List.of(Precision.BF16, Precision.F32)) {
    @Override
    Stream<AttentionShape> shapes(boolean quick) {
      return quick
          ? IntStream.of(16, 64).mapToObj(dim -> AttentionShape.of(1, 2, 256, dim))
          : IntStream.of(32, 64, 96, 128, 192, 256)
              .mapToObj(dim -> AttentionShape.of(4, 16, 4096, dim));
    }
  },
  /** Few heads of many tokens, which a GPU has to cut into segments. */
  FEW_HEADS(Precision.ALL, List.of(Precision.BF16)) {
    @Override
    Stream<AttentionShape> shapes(boolean quick) {
      return quick
          ? Stream.of(AttentionShape.of(1, 1, 2048, 32))
          : Stream.of(
              AttentionShape.of(1, 8, 131_072, 128), AttentionShape.of(1, 1, 1_048_576, 128));
    }
  },
  /** Short sequences, where softmax attention may be faster. */
  CROSSOVER(List.of(Precision.BF16), List.of(Precision.BF16)) {
    @Override
    Stream<AttentionShape> shapes(boolean quick) {
      return quick
          ? IntStream.of(64, 256).mapToObj(PaperSweep::small)
          : IntStream.of(128, 256, 512, 1024, 2048, 4096, 8192, 16_384).mapToObj(PaperSweep::usual);
    }
  },
  /** Errors of a forward against tokens, of sums that cancel and of sums that grow. */
  ACCURACY(List.of(), List.of()) {
    @Override
    List<BenchCase> ours(boolean quick) {
      int[] tokens =
          quick ? new int[] {512, 1024} : new int[] {1024, 8192, 65_536, 262_144, 1_048_576};
      return Arrays.stream(tokens)
          .mapToObj(count -> AttentionShape.of(1, 2, count, quick ? 32 : 128))
          .flatMap(shape -> Precision.ALL.stream().map(each -> BenchCase.of(shape, each)))
          .flatMap(each -> Arrays.stream(BenchData.Kind.values()).map(each::with))
          .toList();
    }
  },
  /** One token against the tokens before it. */
  DECODE(List.of(), List.of()) {
    @Override
    List<BenchCase> ours(boolean quick) {
      AttentionShape step = quick ? small(1) : usual(1);
      return IntStream.of(quick ? new int[] {100, 1000} : new int[] {1000, 10_000, 100_000})
          .mapToObj(context -> BenchCase.decode(step, Precision.BF16, context))
          .toList();
    }

    @Override
    List<BenchCase> peers(boolean quick) {
      return ours(quick);
    }
  },
  /** Figure 4: what moves between a GPU and its memory, which ncu counts; nothing is timed here. */
  MOVEMENT(List.of(), List.of()) {
    @Override
    List<BenchCase> ours(boolean quick) {
      return TOKENS.ours(quick).stream()
          .filter(each -> each.shape().tokens() <= MOST_COUNTED)
          .toList();
    }
  };

  /** The profiler saves and restores what a kernel writes. */
  private static final int MOST_COUNTED = 100_000;

  private final List<Precision> ours;
  private final List<Precision> peers;

  /** Where forwards and backwards of {@link #shapes} are timed, their types, and those of peers. */
  PaperSweep(List<Precision> ours, List<Precision> peers) {
    this.ours = ours;
    this.peers = peers;
  }

  /** What forwards and backwards are timed of; {@code quick} for what a CPU does in seconds. */
  Stream<AttentionShape> shapes(boolean quick) {
    return Stream.empty();
  }

  /** What is timed here; {@code quick} for what a CPU does in seconds. */
  List<BenchCase> ours(boolean quick) {
    return passes(ours, shapes(quick));
  }

  /** What peers are asked for. */
  List<BenchCase> peers(boolean quick) {
    return passes(peers, shapes(quick));
  }

  /** As points call it. */
  String title() {
    return Text.id(this).replace('_', '-');
  }

  private static AttentionShape usual(int tokens) {
    return AttentionShape.of(4, 16, tokens, 128);
  }

  private static AttentionShape small(int tokens) {
    return AttentionShape.of(1, 2, tokens, 32);
  }

  /** Forwards, and backwards from the state as in training, short sequences first. */
  private static List<BenchCase> passes(List<Precision> precisions, Stream<AttentionShape> shapes) {
    List<BenchCase> cases = new ArrayList<>();
    shapes.forEach(
        shape ->
            precisions.forEach(
                precision -> {
                  BenchCase forward = BenchCase.of(shape, precision);
                  cases.add(forward);
                  cases.add(forward.with(BenchPass.BACKWARD).keepingState());
                }));
    return cases;
  }
}
