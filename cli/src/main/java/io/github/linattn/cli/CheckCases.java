package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import java.util.ArrayList;
import java.util.List;

/** The problems that {@code verify} sweeps. */
final class CheckCases {
  private static final int[] TOKENS = {1, 2, 63, 64, 65, 127, 1009};
  private static final int LONG = 4097;

  /** Chunks of 64 tokens, the last with 10: more than D = 64, 128 and 256 have stages. */
  private static final int NINE_CHUNKS = 522;

  private static final int SIX_CHUNKS = 330;
  private static final int FOUR_CHUNKS = 202;

  /** So many that a multiprocessor of an H200 has several blocks of what is read from a state. */
  private static final int FILLING_HEADS = 268;

  /** More than an H200 has multiprocessors, so that a block has all chunks of its head. */
  private static final int MANY_HEADS = 140;

  private CheckCases() {}

  /**
   * A few problems: one for each head dimension that is shipped, one for each capability, and some
   * of more chunks than a kernel has stages of shared memory, so that stages are used again.
   */
  static List<CheckCase> quick() {
    List<CheckCase> cases = new ArrayList<>();
    for (int dim : new int[] {32, 64, 96, 128, 192, 256}) {
      cases.add(plain(1, 2, 65, dim));
    }
    cases.add(plain(1, 1, 1, 128));
    for (int dim : new int[] {64, 128}) {
      int tokens = dim == 64 ? NINE_CHUNKS : SIX_CHUNKS;
      cases.add(plain(1, 1, tokens, dim));
      cases.add(named("normalised", AttentionShape.of(1, 1, tokens, dim)).normalized());
    }
    cases.add(plain(1, 1, FOUR_CHUNKS, 256));
    cases.add(named("non-causal", AttentionShape.of(1, 1, NINE_CHUNKS, 128)).nonCausal());
    cases.add(named("non-causal", AttentionShape.of(1, MANY_HEADS, NINE_CHUNKS, 32)).nonCausal());
    AttentionShape filling = AttentionShape.of(1, FILLING_HEADS, 130, 144).withValueDim(16);
    cases.add(named("non-causal normalised", filling).nonCausal().normalized());
    cases.add(flat(NINE_CHUNKS));
    cases.addAll(features(64, 70));
    cases.add(named("grouped heads", AttentionShape.of(1, 4, 70, 192).withKeyValueHeads(2)));
    return cases;
  }

  /** Every head dimension and every capability. */
  static List<CheckCase> full() {
    List<CheckCase> cases = new ArrayList<>();
    for (int dim = 16; dim <= 256; dim += AttentionShape.DIM_STEP) {
      cases.add(plain(1, 2, TOKENS[dim / AttentionShape.DIM_STEP % (TOKENS.length - 1)], dim));
    }
    for (int tokens : TOKENS) {
      cases.add(plain(2, 3, tokens, 64));
    }
    cases.add(plain(1, 1, LONG, 64));
    cases.add(flat(LONG));
    cases.add(plain(1, 40, 33, 32));
    cases.addAll(features(48, 131));
    cases.addAll(features(128, 257));
    cases.addAll(features(192, 197));
    return cases;
  }

  private static CheckCase plain(int batch, int heads, int tokens, int dim) {
    return named("plain", AttentionShape.of(batch, heads, tokens, dim));
  }

  /** Has db summed behind the sweeps, by blocks of which each has some of the tokens. */
  private static CheckCase flat(int tokens) {
    float[] a = {1};
    float[] b = {0.07f};
    return named("flat weights", AttentionShape.of(1, 1, tokens, 64)).coefficients(a, b);
  }

  private static List<CheckCase> features(int dim, int tokens) {
    AttentionShape two = AttentionShape.of(2, 2, tokens, dim);
    AttentionShape one = AttentionShape.of(1, 2, tokens, dim);
    AttentionShape grouped = AttentionShape.of(1, 4, tokens, dim).withKeyValueHeads(2);
    float[] a = {1, 2};
    float[] slopes = {0.5f, 0};
    return List.of(
        named("normalised", two).normalized(),
        named("a, b per head, one b=0", two).coefficients(a, slopes),
        named("non-causal", two).nonCausal(),
        named("non-causal normalised", two).nonCausal().normalized(),
        named("strided [B,N,H,D]", two).strided(),
        named("value dim", two.withValueDim(dim + 32)),
        named("grouped heads", AttentionShape.of(2, 4, tokens, dim).withKeyValueHeads(2)),
        named("one key/value head", AttentionShape.of(1, 4, tokens, dim).withKeyValueHeads(1)),
        named("packed", one).packed(1, 0, tokens - 20, 0, 19),
        named("packed normalised", one).packed(tokens - 1, 1).normalized(),
        named("packed non-causal", one).packed(tokens - 7, 0, 7).nonCausal(),
        named("state in and out", two).after(tokens / 2),
        named("state, normalised", two).after(3).normalized(),
        named("state, one more token", AttentionShape.of(2, 2, 1, dim)).after(tokens),
        named("through states", two).after(tokens / 2).gradientsThroughStates(),
        named("through states, normalised", two).after(3).normalized().gradientsThroughStates(),
        named("through states, packed", one).packed(1, 0, tokens - 1).gradientsThroughStates(),
        named("through states, grouped", grouped).after(9).gradientsThroughStates(),
        named("through states, non-causal", two).nonCausal().after(5).gradientsThroughStates(),
        named("through states, packed non-causal", one)
            .packed(tokens - 7, 0, 7)
            .nonCausal()
            .gradientsThroughStates());
  }

  private static CheckCase named(String what, AttentionShape shape) {
    String name =
        Text.format(
            "%s B%d H%d%s N%d D%d%s",
            what,
            shape.batch(),
            shape.heads(),
            shape.keyValueHeads() == shape.heads() ? "" : "/" + shape.keyValueHeads(),
            shape.tokens(),
            shape.keyDim(),
            shape.valueDim() == shape.keyDim() ? "" : " Dv" + shape.valueDim());
    return CheckCase.of(name, shape);
  }
}
