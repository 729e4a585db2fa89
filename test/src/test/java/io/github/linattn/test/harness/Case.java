package io.github.linattn.test.harness;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.LinearAttention;
import io.github.linattn.Mode;
import io.github.linattn.Sequences;
import io.github.linattn.reference.Reference;
import java.util.Arrays;
import java.util.SplittableRandom;
import org.jspecify.annotations.Nullable;

/**
 * One problem with all that decides its result. Inputs come from the seed and the name and are
 * rounded to the type, so that reference and backend read the same numbers.
 *
 * <p>Rows are scaled so that the weights a + b q·k stay within about 20 % of a, or, where an a is
 * 0, drawn positive: g then keeps away from 0 and the error measured is that of the backend rather
 * than that of a badly posed quotient.
 */
public final class Case {
  public final String name;
  public final AttentionShape shape;
  public final @Nullable Sequences packing;
  public final float[] a;
  public final float[] b;
  public final boolean causal;
  public final boolean normalize;
  public final DType dtype;
  public final Mode mode;
  public final Layout layout;
  public final float[] q;
  public final float[] k;
  public final float[] v;
  public final float[] dO;
  public final @Nullable StateValues initial;

  /** Gradient of the loss with respect to the final state, where gradients go through states. */
  public final @Nullable StateGradientValues finalGradient;

  /** Whether the backward is given the final state of the forward. */
  public final boolean keepsState;

  private Reference.@Nullable Result expected;

  private Case(Builder builder) {
    this.name = builder.name;
    this.shape = builder.shape;
    this.packing = builder.packing;
    this.a = builder.a;
    this.b = builder.b;
    this.causal = builder.causal;
    this.normalize = builder.normalize;
    this.dtype = builder.dtype;
    this.mode = builder.mode;
    this.layout = builder.layout;
    SplittableRandom random = Seeds.random(name);
    this.q = rounded(builder.q, () -> rows(random, shape.q().elements()));
    this.k = rounded(builder.k, () -> rows(random, shape.k().elements()));
    this.v = rounded(builder.v, () -> gaussian(random, shape.v().elements(), 1));
    this.dO = rounded(builder.dO, () -> gaussian(random, shape.output().elements(), 1));
    this.initial = builder.initial;
    this.keepsState = builder.keepsState;
    StateGradientValues given = builder.finalGradient;
    this.finalGradient = given == null && builder.throughStates ? stateGradient(random) : given;
  }

  /** Of the size of what queries add to it, so that neither hides the other. */
  private StateGradientValues stateGradient(SplittableRandom random) {
    int keys = shape.batch() * shape.keyValueHeads() * sequences().count() * shape.keyDim();
    int values = keys / shape.keyDim() * shape.valueDim();
    return new StateGradientValues(
        gaussian(random, (long) keys * shape.valueDim(), 0.2),
        gaussian(random, keys, 0.2),
        gaussian(random, values, 0.2));
  }

  private float[] rounded(float @Nullable [] given, java.util.function.Supplier<float[]> drawn) {
    float[] values = given != null ? given.clone() : drawn.get();
    for (int i = 0; i < values.length; i++) {
      values[i] = dtype.round(values[i]);
    }
    return values;
  }

  private float[] rows(SplittableRandom random, long count) {
    if (normalize) {
      return gaussian(random, count, 1);
    }
    float smallestA = Float.MAX_VALUE;
    float largestB = 0;
    for (int i = 0; i < a.length; i++) {
      smallestA = Math.min(smallestA, Math.abs(a[i]));
      largestB = Math.max(largestB, Math.abs(b[i]));
    }
    double width = Math.sqrt(shape.keyDim());
    if (smallestA == 0) {
      float[] values = gaussian(random, count, Math.sqrt(1 / width));
      for (int i = 0; i < values.length; i++) {
        values[i] = Math.abs(values[i]);
      }
      return values;
    }
    double variance = largestB == 0 ? 1 : 0.2 * smallestA / (largestB * width);
    return gaussian(random, count, Math.sqrt(variance));
  }

  static float[] gaussian(SplittableRandom random, long count, double deviation) {
    float[] values = new float[Math.toIntExact(count)];
    for (int i = 0; i < values.length; i++) {
      values[i] = (float) (deviation * random.nextGaussian());
    }
    return values;
  }

  /** All of the values, multiplied by a factor. */
  public static float[] times(float[] values, float factor) {
    float[] changed = values.clone();
    for (int i = 0; i < changed.length; i++) {
      changed[i] *= factor;
    }
    return changed;
  }

  /** A case of fp32 values with a = b = 1, causal, head-major, in mode ACCURATE. */
  public static Builder of(String name, AttentionShape shape) {
    return new Builder(name, shape);
  }

  /** The same problem, to be changed in one respect; inputs stay unless they are replaced. */
  public Builder but(String difference) {
    Builder builder = new Builder(name + ", " + difference, shape);
    builder.packing = packing;
    builder.a = a;
    builder.b = b;
    builder.causal = causal;
    builder.normalize = normalize;
    builder.dtype = dtype;
    builder.mode = mode;
    builder.layout = layout;
    builder.q = q;
    builder.k = k;
    builder.v = v;
    builder.dO = dO;
    builder.initial = initial;
    builder.finalGradient = finalGradient;
    builder.keepsState = keepsState;
    return builder;
  }

  /** The packing, or one sequence over all tokens. */
  public Sequences sequences() {
    return packing != null ? packing : Sequences.ofLengths(shape.tokens());
  }

  /** The operator of this problem, before it is put on a backend. */
  public LinearAttention.Builder operator() {
    return LinearAttention.builder()
        .coefficients(a, b)
        .causal(causal)
        .normalizeQueriesAndKeys(normalize)
        .keepState(keepsState)
        .mode(mode);
  }

  /** The reference's answer, found once. */
  public synchronized Reference.Result expected() {
    if (expected == null) {
      expected = Reference.of(problem(dO));
    }
    return expected;
  }

  /** This problem as the reference takes it. */
  public Reference.Problem problem(float @Nullable [] outputGradient) {
    return new Reference.Problem(
        shape,
        sequences(),
        a,
        b,
        causal,
        normalize,
        q,
        k,
        v,
        outputGradient,
        initial == null ? null : initial.asDoubles(),
        finalGradient == null ? null : finalGradient.asDoubles());
  }

  /** Whether the loss sees the final state, and the gradient of the initial one is asked for. */
  public boolean goesThroughStates() {
    return finalGradient != null;
  }

  /** Whether the kernels of the paper family do the forward of this. */
  public boolean isForPaperKernels() {
    return dtype == DType.F32
        && causal
        && packing == null
        && layout == Layout.HEAD_MAJOR
        && shape.keyDim() == shape.valueDim()
        && shape.heads() == shape.keyValueHeads()
        && Arrays.asList(32, 64, 96, 128, 192, 256).contains(shape.keyDim());
  }

  @Override
  public String toString() {
    return name;
  }

  /** Chooses a problem. */
  public static final class Builder {
    private final String name;
    private final AttentionShape shape;
    private @Nullable Sequences packing;
    private float[] a = {1};
    private float[] b = {1};
    private boolean causal = true;
    private boolean normalize;
    private DType dtype = DType.F32;
    private Mode mode = Mode.ACCURATE;
    private Layout layout = Layout.HEAD_MAJOR;
    private float @Nullable [] q;
    private float @Nullable [] k;
    private float @Nullable [] v;
    private float @Nullable [] dO;
    private @Nullable StateValues initial;
    private @Nullable StateGradientValues finalGradient;
    private boolean throughStates;
    private boolean keepsState;

    private Builder(String name, AttentionShape shape) {
      this.name = name;
      this.shape = shape;
    }

    public Builder packed(int... lengths) {
      this.packing = Sequences.ofLengths(lengths);
      return this;
    }

    public Builder coefficients(float a, float b) {
      return coefficients(new float[] {a}, new float[] {b});
    }

    public Builder coefficients(float[] a, float[] b) {
      this.a = a;
      this.b = b;
      return this;
    }

    public Builder nonCausal() {
      this.causal = false;
      return this;
    }

    public Builder normalized() {
      this.normalize = true;
      return this;
    }

    /** Type of the tensors; 16-bit types know the mode DEFAULT only. */
    public Builder dtype(DType dtype) {
      this.dtype = dtype;
      this.mode = dtype == DType.F32 ? Mode.ACCURATE : Mode.DEFAULT;
      return this;
    }

    public Builder mode(Mode mode) {
      this.mode = mode;
      return this;
    }

    public Builder layout(Layout layout) {
      this.layout = layout;
      return this;
    }

    public Builder q(float[] values) {
      this.q = values;
      return this;
    }

    public Builder k(float[] values) {
      this.k = values;
      return this;
    }

    public Builder v(float[] values) {
      this.v = values;
      return this;
    }

    public Builder dO(float[] values) {
      this.dO = values;
      return this;
    }

    public Builder from(@Nullable StateValues state) {
      this.initial = state;
      return this;
    }

    /** Gives the final state a random gradient and asks for that of the initial one. */
    public Builder throughStates() {
      this.throughStates = true;
      return this;
    }

    /** Gives the backward the final state of the forward. */
    public Builder keepingState() {
      this.keepsState = true;
      return this;
    }

    /** Gives the final state this gradient and asks for that of the initial one. */
    public Builder finalGradient(@Nullable StateGradientValues gradient) {
      this.finalGradient = gradient;
      return this;
    }

    /** Continues from the state after {@code tokens} other tokens of every sequence. */
    public Builder afterTokens(int tokens) {
      int sequences = packing == null ? 1 : packing.count();
      int[] lengths = new int[sequences];
      Arrays.fill(lengths, tokens);
      AttentionShape before =
          new AttentionShape(
              shape.batch(),
              shape.heads(),
              shape.keyValueHeads(),
              tokens * sequences,
              shape.keyDim(),
              shape.valueDim());
      Builder earlier = new Builder(name + ", before", before);
      earlier.packing = packing == null ? null : Sequences.ofLengths(lengths);
      earlier.a = a;
      earlier.b = b;
      earlier.normalize = normalize;
      Case prefix = earlier.build();
      return from(StateValues.rounded(Reference.of(prefix.problem(null)).state()));
    }

    public Case build() {
      return new Case(this);
    }
  }
}
