package io.github.linattn.kernelgen;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.OptionalInt;

/**
 * Plan of the forward, of sums and of the gradients of two sweeps on sm_90a: a block owns 64 or 128
 * value columns of an item of a head and keeps their state, transposed, in the registers of a
 * warpgroup for each 64; pairs of blocks of an item are clusters. A chunk has 64 tokens. {@code
 * linattn/hopper_plan.cuh} derives the same map from the same choices.
 *
 * @param keyBoxes boxes of 64 columns that hold a row of q or k
 * @param products of 16-bit operands for each product of the formula
 * @param stages chunks that are in shared memory together
 * @param slots fp32 boxes of 64 x 64 on their way to a stage; 0 where boxes land in the stage
 * @param pairs boxes of q and as many of k that are in shared memory together, where these stream
 *     and only the values of a chunk are there as a whole; else 0
 * @param weightBuffers chunks of weights between the warpgroups
 * @param outputBuffers chunks of outputs on their way out, of 64 columns each; 0 where they leave
 *     from the place of their queries, and of sums
 * @param beside warpgroups of the state; with two of a head dimension above 192, of a gradient
 *     above 128, the one of the scores has all other roles, but for the producer of a gradient
 * @param auxiliaryGroups warpgroups that sum keys; the first warp starts copies instead. Of a
 *     gradient of k and v with fp32 rows for two warpgroups of the state it weighs rows too, and
 *     the others convert them
 * @param threads 4 warps for each warpgroup
 * @param together blocks for which a multiprocessor has registers and shared memory
 * @param roles what each warpgroup does, and its registers
 * @param stateRegisters D/2, of each thread of the state role
 * @param shared the shared-memory map, in the order of offsets
 * @param sharedBytes the end of the map, and what aligning its start may take
 * @param gridRule as many blocks for each item of a head as its value columns need
 */
public record HopperPlan(
    int keyBoxes,
    int products,
    int stages,
    int slots,
    int pairs,
    int weightBuffers,
    int outputBuffers,
    int beside,
    int auxiliaryGroups,
    int threads,
    int together,
    Roles roles,
    int stateRegisters,
    List<SharedRegion> shared,
    int sharedBytes,
    GridRule gridRule)
    implements ResourcePlan {

  private static final int WARPGROUP = 128;
  private static final int ROW_BYTES = 128;
  private static final int BOX_BYTES = KernelSpec.CHUNK * ROW_BYTES;
  private static final int EXTRA_BYTES = 8 * ROW_BYTES;
  private static final int SLOT_BYTES = 2 * BOX_BYTES;
  private static final int SCALE_BYTES = 128;
  private static final int ALIGNMENT = 1024;

  private static final int REGISTER_FILE = 64 * 1024;
  private static final int REGISTER_STEP = 8;

  /** A multiple of the step of which two warpgroups have enough. */
  private static final int MOST_REGISTERS = 248;

  /** Above, blocks of 64 columns would read q and k more often than memory can give them. */
  private static final int MAX_SINGLE_HEAD_DIM = 192;

  /** The same of gradients, which read more. */
  private static final int MAX_SINGLE_GRADIENT = 128;

  /** The same of sums, which hold little else. */
  private static final int MAX_SINGLE_SUM = 128;

  /** Whose state leaves a few registers of its role to other warps. */
  private static final int MAX_SPARING_HEAD_DIM = 240;

  /** Above, a state that divides rows needs the registers of warps that would form d. */
  private static final int MAX_DIVIDED_BESIDE = 192;

  /** Above, the parts of a chunk are brought and given back one by one. */
  private static final int MAX_WHOLE_HEAD_DIM = 128;

  /** Beyond, registers for the sum of S over a chunk, and for its halves, are of a part of it. */
  private static final int MAX_SPLIT_AS_WHOLE = 128;

  /** Two doubles of each of at most 16 warps. */
  private static final int PARTIAL_BYTES = 16 * 2 * Double.BYTES;

  private static final int CONVERTING_WARPS = 4;

  private static final int UNIT_BYTES = 16;

  /** Of tiles of 16 x 8 that weights stand in. */
  private static final int SCORE_BYTES = 20 * 16 * 8 * Float.BYTES;

  /** Of chunks whose rows are asked for before their stage is free. */
  private static final int ROW_PLACES_AHEAD = 3;

  /** The same where parts of d come from the other block of the cluster too. */
  private static final int SENT_ROW_PLACES_AHEAD = 2;

  /** Sizes to try, the best first. */
  private record Buffers(int stages, int slots, int pairs, int weights, int outputs) {
    Buffers(int stages, int slots, int weights, int outputs) {
      this(stages, slots, 0, weights, outputs);
    }
  }

  private static final List<Buffers> NATIVE =
      List.of(
          new Buffers(6, 0, 2, 3),
          new Buffers(4, 0, 2, 3),
          new Buffers(3, 0, 2, 3),
          new Buffers(2, 0, 2, 3));

  /** With two warpgroups of the state. */
  private static final List<Buffers> BESIDE = List.of(new Buffers(2, 0, 2, 2));

  /** The same of the gradient of q with a producer of its own, whose state has few registers. */
  private static final List<Buffers> BESIDE_PRODUCER = List.of(new Buffers(2, 0, 2, 1));

  private static final List<Buffers> CONVERTED =
      List.of(
          new Buffers(2, 8, 2, 1),
          new Buffers(2, 7, 2, 1),
          new Buffers(2, 6, 2, 1),
          new Buffers(2, 5, 2, 1),
          new Buffers(2, 4, 2, 1),
          new Buffers(1, 8, 2, 1),
          new Buffers(1, 7, 2, 1),
          new Buffers(1, 6, 2, 1));
  private static final List<Buffers> SPLIT =
      List.of(new Buffers(2, 0, 2, 1), new Buffers(2, 0, 1, 1), new Buffers(1, 0, 2, 1));

  /**
   * Boxes of q, and as many of k, where these stream: all that fit. Where warps sum boxes of k,
   * each the same ones of every chunk, as many as a chunk has: so the same threads arrive at a
   * barrier of a place each time.
   */
  private static final int MOST_PAIRS = 4;

  /** With two warpgroups of the state. */
  private static final List<Buffers> COMPACT_CONVERTED = List.of(new Buffers(2, 5, 1, 1));

  /** The same where outputs leave from the place of the queries. */
  private static final List<Buffers> COMPACT_SPLIT = List.of(new Buffers(2, 0, 1, 0));

  /** For sums, which have no weights and no outputs. */
  private static final List<Buffers> SUMS_NATIVE =
      List.of(new Buffers(6, 0, 0, 0), new Buffers(4, 0, 0, 0));

  /** The same of blocks of which a multiprocessor has two. */
  private static final List<Buffers> SUMS_TOGETHER =
      List.of(new Buffers(6, 0, 0, 0), new Buffers(5, 0, 0, 0), new Buffers(4, 0, 0, 0));

  private static final List<Buffers> SUMS_CONVERTED =
      List.of(new Buffers(2, 8, 0, 0), new Buffers(2, 6, 0, 0), new Buffers(2, 4, 0, 0));

  private static final List<Buffers> SUMS_SPLIT =
      List.of(new Buffers(4, 0, 0, 0), new Buffers(3, 0, 0, 0), new Buffers(2, 0, 0, 0));

  /**
   * Registers of the threads of each role; multiples of 8, their sum at most what the register file
   * has for a thread of each warpgroup.
   *
   * @param auxiliary warps that sum keys, and convert values where boxes stream; 0 where the scores
   *     do it and start copies; few where the scores do it and one of the warps starts copies
   * @param score weights and normalizer of a chunk
   * @param state outputs, and the state
   * @param rows fp32 boxes to 16-bit ones, lengths of rows; 0 where there is none of either
   */
  public record Roles(int auxiliary, int score, int state, int rows) {
    /** All of them. */
    int sum(int auxiliaryGroups, int beside) {
      return auxiliaryGroups * auxiliary + score + beside * state + rows;
    }
  }

  public HopperPlan {
    shared = List.copyOf(shared);
  }

  static HopperPlan of(KernelSpec spec) {
    return of(spec.operation(), spec.headDim(), spec.elementType(), spec.precision());
  }

  static HopperPlan of(Operation operation, int headDim, ElementType element, Precision precision) {
    boolean sums = isSums(operation);
    boolean converted = element == ElementType.F32;
    int products = precision.products();
    boolean rows = converted || findsLengths(operation);
    boolean reverse = isReverse(operation);
    boolean compact = isCompact(operation, headDim, element);
    int beside =
        compact ? 2 : rows ? 1 : reverse ? besideOfReverse(headDim) : beside(operation, headDim);
    boolean apart = !sums && headDim > MAX_WHOLE_HEAD_DIM;
    int together = together(operation, headDim, element, precision);
    int auxiliaryGroups = rows || apart || reverse ? 1 : 2;
    boolean merged = merges(operation, headDim, beside);
    Roles roles = roles(operation, headDim, element, precision);
    int auxiliaries = roles.auxiliary == 0 ? 0 : auxiliaryGroups;
    int groups = auxiliaries + (sums ? 0 : 1) + beside + (rows && !compact ? 1 : 0);
    int threads = groups * WARPGROUP;
    if (roles.sum(auxiliaryGroups, beside) > groups * launchRegisters(threads * together)) {
      throw new IllegalArgumentException("the roles need more registers than there are: " + roles);
    }
    List<Buffers> choices;
    if (compact) {
      choices = compact(products);
    } else if (streams(operation, headDim, products)) {
      choices = List.of(new Buffers(2, 0, reverse ? MOST_PAIRS : boxes(headDim), 1, 1));
    } else if (merged) {
      choices = isQueryGradient(operation) ? BESIDE_PRODUCER : BESIDE;
    } else {
      choices = choices(converted, products, sums, together);
    }
    for (Buffers choice : choices) {
      List<SharedRegion> map = map(operation, headDim, element, precision, choice, beside);
      OptionalInt bytes = sharedBytes(map, together);
      if (bytes.isPresent()) {
        return new HopperPlan(
            boxes(headDim),
            products,
            choice.stages,
            choice.slots,
            choice.pairs,
            choice.weights,
            choice.outputs,
            beside,
            auxiliaryGroups,
            threads,
            together,
            roles,
            headDim / 2,
            map,
            bytes.getAsInt(),
            new GridRule(
                takesTurns(headDim, rows || sums || reverse)
                    ? GridRule.Per.CLUSTER_IN_TURNS
                    : GridRule.Per.CLUSTER,
                beside * KernelSpec.BOX_COLUMNS));
      }
    }
    throw tooLarge(headDim, element, precision);
  }

  /**
   * The end of a map, and what aligning its start may take; empty where a block of sm_90a has less,
   * or so many of a multiprocessor have.
   */
  static OptionalInt sharedBytes(List<SharedRegion> map, int together) {
    int bytes = map.getLast().offset() + map.getLast().bytes() + ALIGNMENT;
    boolean fits = bytes <= SharedRule.share(Architecture.SM_90A.sharedBytes(), together);
    return fits ? OptionalInt.of(bytes) : OptionalInt.empty();
  }

  static IllegalArgumentException tooLarge(int headDim, ElementType element, Precision precision) {
    return new IllegalArgumentException(
        String.format(
            Locale.ROOT,
            "a block of sm_90a has %d bytes of shared memory: head dimension %d, %s %s needs more",
            Architecture.SM_90A.sharedBytes(),
            headDim,
            element.id(),
            precision.id()));
  }

  /**
   * Blocks for which a multiprocessor has registers and shared memory: two of sums, of which one
   * begins or ends while the other adds up. Those for gradients in ACCURATE, and all of fp32 above
   * 64 columns, would spill; those for gradients above 64, and of k and v in TF32, are slower so
   * where there is a multiprocessor for each block.
   */
  static int together(Operation operation, int headDim, ElementType element, Precision precision) {
    boolean gradient = isGradientSums(operation);
    boolean narrow = gradient || element == ElementType.F32;
    int most = narrow ? KernelSpec.BOX_COLUMNS : MAX_SINGLE_SUM;
    boolean alone = precision == (gradient ? Precision.ACCURATE : Precision.TF32);
    return isSums(operation) && headDim <= most && !alone ? 2 : 1;
  }

  /** Whether the warps of the scores do what auxiliary warps do elsewhere. */
  boolean merges(KernelSpec spec) {
    return merges(spec.operation(), spec.headDim(), beside);
  }

  /** Whether rows of z get their weights in the registers of the state. */
  boolean weighsInState(KernelSpec spec) {
    boolean weighs =
        isReverse(spec.operation())
            ? beside > 1
            : isQueryGradient(spec.operation()) && scalesRows(spec.operation());
    return weighs && spec.elementType() != ElementType.F32;
  }

  /** Whether rows of k are not divided by their lengths, but scores, z and S take these. */
  static boolean weighsKeys(Operation operation, ElementType element) {
    return findsLengths(operation) && element != ElementType.F32;
  }

  private static boolean merges(Operation operation, int headDim, int beside) {
    return beside > 1 && !isSums(operation) && headDim > mostSingle(operation);
  }

  private static int beside(Operation operation, int headDim) {
    return headDim > mostSingle(operation) ? 2 : 1;
  }

  private static int mostSingle(Operation operation) {
    return isSums(operation)
        ? MAX_SINGLE_SUM
        : isGradient(operation) ? MAX_SINGLE_GRADIENT : MAX_SINGLE_HEAD_DIM;
  }

  /** Of the gradients of k and v: two heads fill the GPU as one of a forward does. */
  private static int besideOfReverse(int headDim) {
    return headDim > KernelSpec.BOX_COLUMNS ? 2 : 1;
  }

  /**
   * Whether fp32 rows are brought for two warpgroups of the state: those of the scores and of the
   * copies, which convert them too, are all that there is room for.
   */
  private static boolean isCompact(Operation operation, int headDim, ElementType element) {
    return isReverse(operation)
        && element == ElementType.F32
        && headDim <= MAX_WHOLE_HEAD_DIM
        && besideOfReverse(headDim) > 1;
  }

  /**
   * Whether boxes of q and k stream: split rows of which no two chunks fit. Rows that are divided
   * by their own lengths are wanted as a whole.
   */
  private static boolean streams(Operation operation, int headDim, int products) {
    return products == 3
        && headDim > MAX_SPLIT_AS_WHOLE
        && !isSums(operation)
        && !findsLengths(operation);
  }

  /** Whether two blocks of an item may share the scores of a chunk: each has half of the boxes. */
  private static boolean sharesScores(Operation operation, int headDim, int products) {
    return streams(operation, headDim, products) && headDim % (2 * KernelSpec.BOX_COLUMNS) == 0;
  }

  /** Whether it forms d = o . dO itself, of rows for which there is room beside the others. */
  static boolean formsDelta(KernelSpec spec) {
    return formsDelta(spec.operation(), spec.headDim(), spec.elementType(), spec.precision());
  }

  static boolean formsDelta(
      Operation operation, int headDim, ElementType element, Precision precision) {
    return isQueryGradient(operation)
        && (headDim <= MAX_WHOLE_HEAD_DIM
            || isDeltaBeside(operation, headDim, element)
            || streams(operation, headDim, precision.products()));
  }

  /**
   * Whether the warps beside the producer form it. Where {@link #MAX_DIVIDED_BESIDE} is passed the
   * state that divides rows has their registers.
   */
  private static boolean isDeltaBeside(Operation operation, int headDim, ElementType element) {
    return isQueryGradient(operation)
        && headDim > MAX_SINGLE_GRADIENT
        && !(scalesRows(operation) && headDim > MAX_DIVIDED_BESIDE)
        && element != ElementType.F32;
  }

  /** Whether z and u, or their gradients, are sums of rows on their way to operands. */
  private static boolean sumsOnTheWay(Operation operation, ElementType element, int products) {
    return isSums(operation)
        && element == ElementType.F32
        && (isGradientSums(operation) || (products == 3 && !operation.normalizes()));
  }

  /** Whether it is a gradient of q, or of k and v, or the sums for these. */
  static boolean isGradient(Operation operation) {
    return isQueryGradient(operation) || weighsRows(operation);
  }

  static boolean isQueryGradient(Operation operation) {
    return operation.plain() == Operation.QUERY_GRADIENT;
  }

  /** Whether it is the gradient of k and v, which walks from the last chunk on. */
  static boolean isReverse(Operation operation) {
    return operation.plain() == Operation.KEY_VALUE_GRADIENT;
  }

  static boolean isGradientSums(Operation operation) {
    return operation.plain() == Operation.GRADIENT_SUMS;
  }

  /** Whether a warpgroup finds the lengths of rows of q and k, which are divided by them. */
  static boolean findsLengths(Operation operation) {
    return operation.normalizes() && !isGradient(operation);
  }

  /** Whether rows are divided by lengths that it is given. */
  static boolean scalesRows(Operation operation) {
    return operation.normalizes() && isGradient(operation);
  }

  /** Lengths that come with g and d: of rows of z, and of rows of x in the reverse. */
  private static int scaleParts(
      Operation operation, int headDim, ElementType element, int products) {
    boolean dividedOnTheirWay = element == ElementType.F32 && isQueryGradient(operation);
    boolean noRoom = isCompact(operation, headDim, element) && products == 1;
    if (!scalesRows(operation) || dividedOnTheirWay || noRoom) {
      return 0;
    }
    return isReverse(operation) ? 2 : 1;
  }

  /** Whether rows come multiplied by b / g. */
  private static boolean weighsRows(Operation operation) {
    return isReverse(operation) || isGradientSums(operation);
  }

  /** Where all of a chunk lands at once, and nothing is done to it before the products. */
  private static boolean takesTurns(int headDim, boolean otherwise) {
    return headDim <= MAX_WHOLE_HEAD_DIM && !otherwise;
  }

  private static List<Buffers> compact(int products) {
    return products == 3 ? COMPACT_SPLIT : COMPACT_CONVERTED;
  }

  private static List<Buffers> choices(
      boolean converted, int products, boolean sums, int together) {
    if (products == 3) {
      return sums ? SUMS_SPLIT : SPLIT;
    }
    if (converted) {
      return sums ? SUMS_CONVERTED : CONVERTED;
    }
    return together > 1 ? SUMS_TOGETHER : sums ? SUMS_NATIVE : NATIVE;
  }

  /** Whether S, z and u of the items, or their gradients, are all that is wanted. */
  static boolean isSums(Operation operation) {
    return operation.plain() == Operation.STATE_SUMS || isGradientSums(operation);
  }

  /** Whether the registers and the shared memory suffice. */
  static boolean exists(
      Operation operation, int headDim, ElementType element, Precision precision) {
    try {
      of(operation, headDim, element, precision);
      return true;
    } catch (IllegalArgumentException refused) {
      return false;
    }
  }

  /**
   * Whether one product of a chunk starts from zero and S takes it in rounded to nearest, as it
   * does with three: an accumulator of the tensor cores truncates what it adds. That costs nothing
   * where tensors of fp32 take their time, and registers hold S twice up to 128 columns.
   */
  public static boolean addsChunks(Operation operation, int headDim, Precision precision) {
    return precision == Precision.TF32
        && (operation == Operation.FORWARD || operation == Operation.NORMALIZED_FORWARD)
        && headDim <= 128;
  }

  /**
   * After how many chunks S is put by, in fp32 rounded to nearest, and starts from zero beside it;
   * 0 where it never is. Items of no more chunks pay nothing for it, while {@linkplain #addsChunks
   * taking in each chunk} costs fp16 4 to 5 % of their time. What is promised of bf16 bears the
   * truncation; with D = 32 the larger kernel costs 2 %.
   */
  public static int putByChunks(Operation operation, int headDim, ElementType element) {
    boolean puts = element == ElementType.F16 && operation == Operation.FORWARD;
    return puts && headDim > 32 && headDim <= 128 ? 512 : 0;
  }

  private static Roles roles(
      Operation operation, int headDim, ElementType element, Precision precision) {
    boolean converted = element == ElementType.F32;
    boolean rows = converted || findsLengths(operation);
    boolean reverse = isReverse(operation);
    if (isSums(operation)) {
      return together(operation, headDim, element, precision) > 1
          ? sumRolesTogether(operation, headDim, precision)
          : sumRoles(operation, headDim, rows, precision.products());
    }
    if (precision.products() == 3 && headDim > MAX_SPLIT_AS_WHOLE) {
      if (findsLengths(operation)) {
        return new Roles(64, 112, 248, 88);
      }
      if (isGradient(operation)) {
        return new Roles(64, 112, 256, 80);
      }
      boolean sparing = headDim > 192 && headDim <= MAX_SPARING_HEAD_DIM;
      return sparing ? new Roles(72, 104, 248, 88) : new Roles(64, 104, 256, 88);
    }
    if (isGradient(operation) && !rows && headDim > MAX_SINGLE_GRADIENT) {
      boolean whole = headDim > MAX_SPARING_HEAD_DIM;
      if (isDeltaBeside(operation, headDim, element)) {
        return whole ? new Roles(32, 96, 192, 0) : new Roles(32, 112, 184, 0);
      }
      return whole || reverse ? new Roles(24, 88, 200, 0) : new Roles(24, 104, 192, 0);
    }
    if (reverse && !rows) {
      return reverseRoles(headDim);
    }
    if (!rows && formsDelta(operation, headDim, element, precision)) {
      return new Roles(56, 160, 240, 0);
    }
    if (isGradient(operation) && precision.products() == 3) {
      return splitGradientRoles(operation, headDim, precision);
    }
    if (isCompact(operation, headDim, element)) {
      return new Roles(88, 88, 168, 0);
    }
    if (isQueryGradient(operation) && converted) {
      return headDim > 128 ? new Roles(64, 120, 248, 80) : new Roles(72, 120, 200, 120);
    }
    if (addsChunks(operation, headDim, precision)) {
      return new Roles(64, 120, 216, 112); // keeps S twice
    }
    return roles(headDim, converted, findsLengths(operation), precision.products());
  }

  /**
   * The same of sums, which have no role of scores; all that a thread starts with where that
   * suffices.
   */
  private static Roles sumRoles(Operation operation, int headDim, boolean rows, int products) {
    if (headDim <= MAX_SINGLE_SUM) {
      return new Roles(168, 0, 168, rows ? 168 : 0);
    }
    if (!rows) {
      if (!isGradientSums(operation)) {
        return new Roles(56, 0, 200, 0);
      }
      return headDim > 224 ? new Roles(96, 0, 160, 0) : new Roles(88, 0, 168, 0);
    }
    if (products == 3) {
      return new Roles(64, 0, 248, 192);
    }
    return operation == Operation.GRADIENT_SUMS
        ? new Roles(88, 0, 232, 184)
        : new Roles(104, 0, 232, 168);
  }

  /** The same of blocks of which a multiprocessor has two. */
  private static Roles sumRolesTogether(Operation operation, int headDim, Precision precision) {
    boolean normalized = findsLengths(operation);
    if (precision == Precision.TF32) {
      return new Roles(56, 0, 80, 104);
    }
    if (precision.products() == 3) {
      if (normalized) {
        return new Roles(64, 0, 96, 80);
      }
      return headDim <= 32 ? new Roles(24, 0, 72, 144) : new Roles(24, 0, 88, 128);
    }
    if (headDim <= KernelSpec.BOX_COLUMNS) {
      return normalized ? new Roles(72, 0, 96, 72) : new Roles(80, 0, 80, 0);
    }
    if (!normalized) {
      return new Roles(72, 0, 96, 0);
    }
    return headDim <= 96 ? new Roles(64, 0, 112, 64) : new Roles(56, 0, 128, 56);
  }

  /** What each role needs without spilling; the measurements chose among those that suffice. */
  private static Roles roles(int headDim, boolean converted, boolean normalized, int products) {
    boolean wide = headDim > 128;
    if (!converted && !normalized) {
      if (headDim > MAX_SINGLE_HEAD_DIM) {
        return new Roles(0, 104, 200, 0);
      }
      if (wide) {
        return new Roles(96, 152, 248, 0);
      }
      return new Roles(56, 160, 240, 0);
    }
    if (products == 3) {
      return new Roles(72, 128, 224, 88);
    }
    if (wide) {
      return converted ? new Roles(80, 104, 248, 80) : new Roles(72, 104, 248, 88);
    }
    return converted ? new Roles(80, 120, 200, 112) : new Roles(80, 144, 176, 112);
  }

  /**
   * The same of the gradients of k and v of 16-bit tensors, whose warps that sum keys weigh rows or
   * tell the state their weights.
   */
  private static Roles reverseRoles(int headDim) {
    return besideOfReverse(headDim) > 1 ? new Roles(56, 88, 184, 0) : new Roles(104, 152, 240, 0);
  }

  private static Roles splitGradientRoles(Operation operation, int headDim, Precision precision) {
    boolean reverse = isReverse(operation);
    if (reverse && besideOfReverse(headDim) > 1) {
      return scalesRows(operation) ? new Roles(80, 80, 176, 0) : new Roles(96, 80, 168, 0);
    }
    if (reverse) {
      return new Roles(64, 136, 216, 96);
    }
    return precision == Precision.DEFAULT && headDim == MAX_SPLIT_AS_WHOLE
        ? new Roles(64, 136, 240, 72)
        : new Roles(64, 128, 232, 88);
  }

  /** Registers of every thread before the roles share them out anew. */
  int launchRegisters() {
    return launchRegisters(threads * together);
  }

  private static int launchRegisters(int threads) {
    return Math.min(MOST_REGISTERS, REGISTER_FILE / threads / REGISTER_STEP * REGISTER_STEP);
  }

  private static int boxes(int headDim) {
    return Math.ceilDiv(headDim, KernelSpec.BOX_COLUMNS);
  }

  private static List<SharedRegion> map(
      Operation operation,
      int headDim,
      ElementType element,
      Precision precision,
      Buffers buffers,
      int beside) {
    int products = precision.products();
    boolean sums = isSums(operation);
    boolean delta = formsDelta(operation, headDim, element, precision);
    boolean splitsDelta = delta && products == 3;
    boolean deltaBeside = isDeltaBeside(operation, headDim, element);
    boolean sendsDelta = splitsDelta || deltaBeside;
    boolean sharesScores = sharesScores(operation, headDim, products);
    boolean deltaInHalves = splitsDelta && sharesScores;
    int halves = products == 3 ? 2 : 1;
    int boxes = boxes(headDim);
    int plainBox = halves * BOX_BYTES;
    int weightBox = plainBox + EXTRA_BYTES;
    boolean hasSums = buffers.pairs == 0 || !isReverse(operation); // z behind keys
    int keyBox = hasSums ? plainBox + EXTRA_BYTES : plainBox;
    String pair = halves == 2 ? ", upper and lower halves" : "";
    List<SharedRegion> map = new ArrayList<>();
    for (int slot = 0; slot < buffers.slots; slot++) {
      add(map, "slot " + slot + ": fp32 box [64 x 64]", SLOT_BYTES);
    }
    for (int place = 0; place < buffers.pairs; place++) {
      String keys = hasSums ? ": keys and z [72 x 64]" : ": keys [64 x 64]";
      add(map, "pair " + place + keys + pair, keyBox);
      add(map, "pair " + place + ": queries [64 x 64]" + pair, plainBox);
    }
    for (int stage = 0; stage < buffers.stages; stage++) {
      String prefix = "stage " + stage + ": ";
      if (buffers.pairs == 0) {
        add(map, prefix + "keys and z [72 x 64] x " + boxes + pair, boxes * keyBox);
        if (!sums) {
          add(map, prefix + "queries [64 x 64] x " + boxes + pair, boxes * plainBox);
        }
      }
      String values = beside > 1 ? " x " + beside : "";
      add(map, prefix + "values [64 x 64]" + values + pair, beside * plainBox);
      if (delta && element != ElementType.F32 && !deltaBeside) {
        add(map, prefix + "outputs of the forward [64 x 64] x " + boxes, boxes * BOX_BYTES);
      }
    }
    for (int i = 0; i < beside * buffers.outputs; i++) {
      add(
          map,
          "outputs " + i + " [64 x 64]",
          KernelSpec.CHUNK * KernelSpec.BOX_COLUMNS * element.bytes());
    }
    if (sendsDelta) {
      String ofForward =
          deltaInHalves
              ? "fp32 box [64 x 32]"
              : splitsDelta ? "fp32 box [64 x 64]" : "[64 x 64] x 2";
      add(map, "outputs of the forward: " + ofForward, deltaInHalves ? BOX_BYTES : SLOT_BYTES);
    }
    for (int i = 0; i < buffers.weights; i++) {
      add(map, "weights " + i + " and ones [72 x 64]" + pair, weightBox);
    }
    if (sharesScores) {
      int sumBytes = isReverse(operation) ? 0 : KernelSpec.CHUNK * UNIT_BYTES;
      add(map, "scores of the other block, of 20 tiles [16 x 8]", SCORE_BYTES + sumBytes);
    }
    if (buffers.weights > 0) {
      add(
          map,
          "factors of the outputs [64 x 2]",
          buffers.weights * 2 * KernelSpec.CHUNK * Float.BYTES);
    }
    add(map, "lengths of the rows of q [64]", buffers.stages * KernelSpec.CHUNK * Float.BYTES);
    boolean weighsKeys = weighsKeys(operation, element);
    if (weighsKeys) {
      int parts = 3 * (KernelSpec.CHUNK * Short.BYTES + 16);
      add(
          map,
          "1 / lengths of the rows of k [64], and in three parts of 16 bits",
          buffers.stages * (KernelSpec.CHUNK * Float.BYTES + parts));
    }
    if (weighsRows(operation)) {
      add(
          map,
          sums
              ? "factors of rows [64] each, the unit of a chunk"
              : "constants of columns [64], the unit of a chunk",
          buffers.stages * ((sums ? 2 : 1) * KernelSpec.CHUNK * Float.BYTES + 16));
    }
    int slots = buffers.pairs > 0 ? 1 : (sums ? 1 : 2) * boxes + beside;
    int barriers = barriers(element, products, slots, buffers);
    int ahead = sendsDelta ? SENT_ROW_PLACES_AHEAD : ROW_PLACES_AHEAD;
    int places = isGradient(operation) ? buffers.stages + ahead : 0;
    if (places > 0) {
      int parts =
          deltaInHalves ? 2 : splitsDelta ? boxes : deltaBeside ? Math.ceilDiv(boxes, 2) : 1;
      String inParts = parts > 1 ? ", d in " + parts + " parts" : "";
      int scales = scaleParts(operation, headDim, element, products);
      String lengths = scales > 0 ? ", and 1 / lengths of " + (scales > 1 ? "z and x" : "z") : "";
      add(
          map,
          "g and d of rows [64] each" + inParts + lengths,
          places * (1 + parts + scales) * KernelSpec.CHUNK * Float.BYTES);
    }
    boolean query = isQueryGradient(operation);
    if (query) {
      add(map, "partial sums of the gradients of a and b", PARTIAL_BYTES);
    }
    if (sumsOnTheWay(operation, element, products)) {
      add(
          map,
          "sums of rows, of each warp that converts",
          CONVERTING_WARPS * (boxes + 1) * KernelSpec.BOX_COLUMNS * Float.BYTES);
    }
    int read = !sums && buffers.outputs == 0 ? buffers.stages : 0;
    if (weighsKeys) {
      int columns = Math.ceilDiv(headDim, 16) * 16 + (sums ? beside * KernelSpec.BOX_COLUMNS : 0);
      add(map, sums ? "z and u of the columns" : "z", columns * Float.BYTES);
    }
    int lengths = weighsKeys ? buffers.stages : 0;
    int sent = (sendsDelta ? 2 : 0) + (sharesScores ? 2 : 0);
    boolean inParts = products == 3 && headDim > MAX_SPLIT_AS_WHOLE;
    int apart = inParts && sumsOnTheWay(operation, element, products) ? buffers.stages * boxes : 0;
    int others = places + (query ? 1 : 0) + sent + read + lengths + apart;
    int barrierBytes = (barriers + others) * Long.BYTES;
    add(map, "barriers, scales, the item", barrierBytes + SCALE_BYTES);
    return map;
  }

  private static int barriers(ElementType element, int products, int slots, Buffers buffers) {
    int slotBarriers = 0;
    if (element == ElementType.F32) {
      slotBarriers = products == 3 ? buffers.stages * slots : 2 * buffers.slots;
    }
    return slotBarriers + 7 * buffers.stages + 3 * buffers.pairs + 2 * buffers.weights;
  }

  /** Adds a region behind the others. */
  static void add(List<SharedRegion> map, String name, int bytes) {
    int offset = map.isEmpty() ? 0 : map.getLast().offset() + map.getLast().bytes();
    map.add(new SharedRegion(name, offset, bytes));
  }
}
