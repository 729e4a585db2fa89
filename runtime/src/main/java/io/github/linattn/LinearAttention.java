package io.github.linattn;

import io.github.linattn.cuda.CudaOutOfMemoryException;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.ClosedException;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.internal.Operator;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Linear attention with the kernel f(x) = a + b·x, exactly, in O(N·D²) time and O(N·D) memory.
 *
 * <p>For each query i, with n over the tokens it may see (n ≤ i if causal, else all of its
 * sequence):
 *
 * <pre>
 *   g_i = Σ_n (a + b q_i·k_n)          o_i = Σ_n (a + b q_i·k_n) v_n / g_i
 * </pre>
 *
 * <p>The backward is analytic: from what the forward read, o, g and dO it gives dq, dk, dv, da and
 * db, and carries gradients through states: from that of the final state to that of the initial
 * one. No epsilon is added to g: where it is 0, the row is not finite. a and b have to keep g
 * within the range of fp32, and for a backward dO / g, too: a row where they leave it means
 * nothing. NaN and infinities reach the rows they touch and no others.
 *
 * <p>Immutable and thread-safe as far as its {@link Stream} allows: one thread at a time per
 * stream. On a GPU calls return when the work is queued; tensors stay open until it is done.
 *
 * @see <a href="https://arxiv.org/abs/2510.21956">Gerami and Duraiswami, Transformer Based Linear
 *     Attention with Optimized GPU Kernel Implementation, section 3</a>
 */
public final class LinearAttention {
  private final Operator operator;
  private final boolean keepState;
  private final Backend backend;
  private final Stream stream;

  private LinearAttention(Operator operator, boolean keepState, Backend backend, Stream stream) {
    this.operator = operator;
    this.keepState = keepState;
    this.backend = backend;
    this.stream = stream;
  }

  /** Starts from a = b = 1, causal, not normalised, {@link Mode#DEFAULT}, no state kept. */
  public static Builder builder() {
    return new Builder();
  }

  /** {@link #forward(AttentionInput)} of one sequence per batch row, starting from nothing. */
  public Forward forward(Tensor q, Tensor k, Tensor v) {
    return forward(AttentionInput.of(q, k, v));
  }

  /**
   * Computes o and g, and the state after the last token where the builder asked for it, into new
   * tensors of the backend.
   *
   * @throws IllegalArgumentException if the input does not fit the operator, or a tensor is closed
   * @throws UnsupportedOperationException if the backend can't do it; says what it can
   * @throws OutOfMemoryError on the CPU, with the bytes wanted; nothing is leaked
   * @throws io.github.linattn.cuda.CudaException if the GPU refuses; nothing is leaked
   */
  public Forward forward(AttentionInput input) {
    Checks.input(operator, Checks.present("input", input), backend);
    AttentionShape shape = input.shape();
    var results = new TensorGroup();
    try {
      Tensor o = results.add(backend.allocate(input.q().dtype(), shape.output()));
      Tensor g = results.add(backend.allocate(DType.F32, shape.normalizer()));
      AttentionState state = null;
      Checkpoints checkpoints = null;
      if (keepState) {
        state = results.add(backend.unsetState(shape, input.sequences().count()));
        checkpoints = newCheckpoints(new ForwardCall(operator, input, o, g, state, null, stream));
        if (checkpoints != null) {
          results.add(checkpoints.memory());
        }
      }
      Forward y = Forward.owning(input, o, g, state, checkpoints);
      forwardInto(y);
      return y;
    } catch (RuntimeException | Error e) {
      results.closeAfter(e);
      throw e;
    }
  }

  private @Nullable Checkpoints newCheckpoints(ForwardCall call) {
    Checkpoints.Form form = backend.engine().checkpoints(call).orElse(null);
    if (form == null) {
      return null;
    }
    TensorShape elements = TensorShape.of(form.elements(call.input().shape()));
    return new Checkpoints(backend.allocate(DType.F32, elements), form);
  }

  /**
   * Computes a forward once more into its tensors, as after its input has changed, with all that it
   * keeps for a backward.
   *
   * @param y from {@link #forward} of this operator, or {@link Forward#over}
   * @throws IllegalArgumentException if a tensor is closed or does not fit; nothing is written
   * @throws UnsupportedOperationException if the backend can't do it; says what it can
   * @throws io.github.linattn.cuda.CudaException if the GPU refuses
   */
  public void forwardInto(Forward y) {
    Checks.present("y", y);
    AttentionState state = y.stateOrNull();
    y.written(forwardInto(y.input(), y.output(), y.normalizer(), state, y.checkpoints()));
  }

  /** {@link #forwardInto(AttentionInput, Tensor, Tensor, AttentionState)} without state. */
  public void forwardInto(Tensor q, Tensor k, Tensor v, Tensor o, Tensor g) {
    if (repeated(q, k, v, null, null, o, g, null, null)) {
      return;
    }
    forwardInto(AttentionInput.of(q, k, v), o, g, null);
  }

  /**
   * Computes o and g into the caller's tensors, which overlap nothing that is read. Views of one
   * buffer that interleave may be refused even where they share no element.
   *
   * <p>A call that fails after it has begun leaves in them what it had written by then. A state is
   * refused as an initial one after that, until a call has filled it: to go on, keep a copy of what
   * is replaced in place.
   *
   * @param o [batch, heads, tokens, valueDim] of the input's type, laid out as {@link
   *     AttentionInput} says
   * @param g [batch, heads, tokens], fp32; contiguous along tokens, heads and batch rows apart at
   *     will
   * @param finalState takes the state after the last token if not null; may be the initial state
   *     itself, which is then replaced, so that a backward of this input is wrong from then on, and
   *     nothing tells
   * @throws IllegalArgumentException if an argument does not fit; nothing is written
   * @throws UnsupportedOperationException if the backend can't do it; says what it can
   * @throws OutOfMemoryError on the CPU, with the bytes wanted
   * @throws io.github.linattn.cuda.CudaException if the GPU refuses
   */
  public void forwardInto(
      AttentionInput input, Tensor o, Tensor g, @Nullable AttentionState finalState) {
    forwardInto(input, o, g, finalState, null);
  }

  /** Returns whether it has written the checkpoints. */
  private boolean forwardInto(
      AttentionInput input,
      Tensor o,
      Tensor g,
      @Nullable AttentionState finalState,
      @Nullable Checkpoints checkpoints) {
    Checks.present("input", input);
    if (repeated(
        input.q(),
        input.k(),
        input.v(),
        input.packing(),
        input.initial(),
        o,
        g,
        finalState,
        checkpoints)) {
      return checkpoints != null;
    }
    Checks.input(operator, input, backend);
    AttentionShape shape = input.shape();
    Checks.output("o", o, input.q().dtype(), shape.output(), input, backend);
    Checks.output("g", g, DType.F32, shape.normalizer(), input, backend);
    Checks.requireDisjoint("g", g, "o", o);
    if (finalState != null) {
      Checks.finalState(finalState, input, o, g, backend);
    }
    var call = new ForwardCall(operator, input, o, g, finalState, null, stream);
    Checkpoints kept =
        checkpoints != null
                && backend.engine().checkpoints(call).filter(checkpoints.form()::equals).isPresent()
            ? checkpoints
            : null;
    try {
      backend.engine().forward(call.keeping(kept));
    } catch (RuntimeException | Error e) {
      tearUnlessRefused(finalState, e);
      throw e;
    }
    if (finalState != null) {
      advanceCounts(shape.tokens(), input.packing(), input.initial(), finalState);
    }
    return kept != null;
  }

  /**
   * Runs a call once more whose objects were all checked the last time; allocates nothing. Each
   * call comes here first.
   */
  private boolean repeated(
      Tensor q,
      Tensor k,
      Tensor v,
      @Nullable Sequences packing,
      @Nullable AttentionState initial,
      Tensor o,
      Tensor g,
      @Nullable AttentionState finalState,
      @Nullable Checkpoints checkpoints) {
    if (finalState != null) {
      finalState.countWrite(); // before the first launch: a call may end halfway
    }
    if (initial != null && initial.isTorn()) {
      return false;
    }
    try {
      if (!backend
          .engine()
          .repeat(operator, q, k, v, packing, initial, o, g, finalState, checkpoints, stream)) {
        return false;
      }
    } catch (RuntimeException | Error e) {
      tearUnlessRefused(finalState, e);
      throw e;
    }
    if (finalState != null) {
      advanceCounts((int) q.shape().extent(2), packing, initial, finalState);
    }
    return true;
  }

  /**
   * What refuses a call writes nothing, and a GPU gives memory before anything is launched; after
   * any other failure nobody knows what was written.
   */
  private static void tearUnlessRefused(@Nullable AttentionState state, Throwable failure) {
    boolean refused =
        failure instanceof IllegalArgumentException
            || failure instanceof UnsupportedOperationException
            || failure instanceof ClosedException
            || failure instanceof CudaOutOfMemoryException;
    if (state != null && !refused) {
      state.setTorn(true);
    }
  }

  private static void advanceCounts(
      int tokens,
      @Nullable Sequences packing,
      @Nullable AttentionState initial,
      AttentionState finalState) {
    for (int i = 0; i < finalState.sequences(); i++) {
      long before = initial == null ? 0 : initial.count(i);
      finalState.setCount(i, before + (packing == null ? tokens : packing.length(i)));
    }
    finalState.setTorn(false);
  }

  /**
   * Decode step: attends one new token per batch row and takes it into {@code state}.
   *
   * <p>What is written overlaps nothing else; views of one buffer that interleave may be refused
   * even where they share no element.
   *
   * <p>How many tokens came before is part of the call, so that a graph of a step is right for one
   * launch: {@link Stream#capture}.
   *
   * <p>Every call rounds the state to fp32. Those of thousands of tokens that are alike all go one
   * way, and come to some 1e-8 of the state a token, in mode {@link Mode#ACCURATE} too.
   *
   * @param q [batch, heads, 1, keyDim]
   * @param k [batch, keyValueHeads, 1, keyDim]
   * @param v [batch, keyValueHeads, 1, valueDim]
   * @param state read and replaced; from {@link Backend#newState}, {@link AttentionState#over} or a
   *     {@link Forward#state} whose forward is open
   * @param o [batch, heads, 1, valueDim] of the input's type
   * @param g [batch, heads, 1], fp32
   * @throws IllegalArgumentException if an argument does not fit, or there is more than one token;
   *     nothing is written
   * @throws UnsupportedOperationException if the backend can't do it; says what it can
   * @throws OutOfMemoryError on the CPU; the state is then refused, as by {@link
   *     #forwardInto(AttentionInput, Tensor, Tensor, AttentionState)}
   * @throws io.github.linattn.cuda.CudaException if the GPU refuses
   */
  public void decodeInto(Tensor q, Tensor k, Tensor v, AttentionState state, Tensor o, Tensor g) {
    TensorShape shape = Checks.present("q", q).shape();
    if (shape.rank() == 4 && shape.extent(2) != 1) {
      throw new IllegalArgumentException("a decode step takes one token, got " + shape.extent(2));
    }
    Checks.present("state", state);
    if (repeated(q, k, v, null, state, o, g, state, null)) {
      return;
    }
    forwardInto(AttentionInput.of(q, k, v).from(state), o, g, state);
  }

  /** {@link #backward(Forward, Tensor, StateGradient)} of a loss that does not see the state. */
  public Gradients backward(Forward y, Tensor dO) {
    return backward(y, dO, null);
  }

  /**
   * Computes all gradients into new tensors of the backend, with that of the initial state where
   * the input has one. Where {@code y} kept its state, a GPU may need less time: see {@link
   * #backwardInto(Forward, Tensor, StateGradient, Gradients)}.
   *
   * @param y result of {@link #forward} of this operator (of another one gradients are wrong, and
   *     nothing tells), still open, its input unchanged
   * @param dO gradient of the loss with respect to o, of its shape and type
   * @param finalState gradient of the loss with respect to the state after the last token, or null
   *     for zeros
   * @throws IllegalArgumentException if a gradient does not fit, or a tensor is closed
   * @throws UnsupportedOperationException if the backend can't do it; says what it can
   * @throws OutOfMemoryError on the CPU, with the bytes wanted; nothing is leaked
   * @throws io.github.linattn.cuda.CudaException if the GPU refuses; nothing is leaked
   */
  public Gradients backward(Forward y, Tensor dO, @Nullable StateGradient finalState) {
    AttentionInput input = Checks.present("y", y).input();
    Checks.input(operator, input, backend);
    AttentionShape shape = input.shape();
    DType dtype = input.q().dtype();
    var results = new TensorGroup();
    try {
      StateGradient initialState = null;
      if (input.initial() != null) {
        initialState = results.add(backend.unsetStateGradient(shape, input.sequences().count()));
      }
      Gradients gradients =
          Gradients.owning(
              results.add(backend.allocate(dtype, shape.q())),
              results.add(backend.allocate(dtype, shape.k())),
              results.add(backend.allocate(dtype, shape.v())),
              results.add(backend.allocate(DType.F32, shape.coefficients())),
              results.add(backend.allocate(DType.F32, shape.coefficients())),
              initialState);
      backwardInto(y, dO, finalState, gradients);
      return gradients;
    } catch (RuntimeException | Error e) {
      results.closeAfter(e);
      throw e;
    }
  }

  /**
   * Computes all gradients into the caller's tensors, as {@link #backwardInto(AttentionInput,
   * Tensor, Tensor, Tensor, StateGradient, Gradients)} does.
   *
   * <p>Where {@code y} kept its state a GPU may read each tensor once; {@link Builder#keepState}
   * says for which problems. It does not where that state is closed or another call, such as {@link
   * #decodeInto}, has written it since. What is written without such a call is not seen, and the
   * gradients are wrong: by {@link Tensor#copyFrom}, by the launch of a {@link Graph}, or through
   * another {@link AttentionState} over the same tensors.
   *
   * @param y result of a forward of this operator (of another one gradients are wrong, and nothing
   *     tells), still open, its input unchanged
   * @param dO gradient of the loss with respect to o, of its shape and type
   * @param finalState gradient of the loss with respect to the state after the last token, read, or
   *     null for zeros
   * @throws IllegalArgumentException if an argument does not fit; nothing is written
   * @throws UnsupportedOperationException if the backend can't do it; says what it can
   * @throws OutOfMemoryError on the CPU, with the bytes wanted
   * @throws io.github.linattn.cuda.CudaException if the GPU refuses
   */
  public void backwardInto(
      Forward y, Tensor dO, @Nullable StateGradient finalState, Gradients gradients) {
    Checks.present("y", y);
    backwardInto(
        y.input(),
        y.output(),
        y.normalizer(),
        dO,
        y.lastState(),
        y.keptCheckpoints(),
        finalState,
        gradients);
  }

  /**
   * {@link #backwardInto(AttentionInput, Tensor, Tensor, Tensor, StateGradient, Gradients)} of a
   * loss that does not see the final state.
   */
  public void backwardInto(
      AttentionInput input, Tensor o, Tensor g, Tensor dO, Gradients gradients) {
    backwardInto(input, o, g, dO, null, null, null, gradients);
  }

  /**
   * Computes all gradients into the caller's tensors, which overlap nothing that is read and not
   * one another; that of the initial state only where {@code gradients} has tensors for it. Views
   * of one buffer that interleave may be refused even where they share no element.
   *
   * @param o output of the forward, [batch, heads, tokens, valueDim] of the input's type
   * @param g normalizer of the forward, [batch, heads, tokens], fp32
   * @param dO gradient of the loss with respect to o, of its shape and type
   * @param finalState gradient of the loss with respect to the state after the last token, read, or
   *     null for zeros
   * @throws IllegalArgumentException if an argument does not fit; nothing is written
   * @throws UnsupportedOperationException if the backend can't do it; says what it can
   * @throws OutOfMemoryError on the CPU, with the bytes wanted
   * @throws io.github.linattn.cuda.CudaException if the GPU refuses
   */
  public void backwardInto(
      AttentionInput input,
      Tensor o,
      Tensor g,
      Tensor dO,
      @Nullable StateGradient finalState,
      Gradients gradients) {
    backwardInto(input, o, g, dO, null, null, finalState, gradients);
  }

  private void backwardInto(
      AttentionInput input,
      Tensor o,
      Tensor g,
      Tensor dO,
      @Nullable AttentionState lastState,
      @Nullable Checkpoints checkpoints,
      @Nullable StateGradient finalState,
      Gradients gradients) {
    Checks.present("input", input);
    Checks.present("gradients", gradients);
    AttentionState initial = input.initial();
    boolean torn = initial != null && initial.isTorn();
    if (!torn
        && backend
            .engine()
            .repeatBackward(
                operator, input, o, g, dO, lastState, checkpoints, finalState, gradients, stream)) {
      return;
    }
    Checks.input(operator, input, backend);
    AttentionShape shape = input.shape();
    DType dtype = input.q().dtype();
    List<Checks.Named> read = new ArrayList<>();
    read.add(Checks.expect("o", o, dtype, shape.output(), backend));
    read.add(Checks.expect("g", g, DType.F32, shape.normalizer(), backend));
    read.add(Checks.expect("dO", dO, dtype, shape.output(), backend));
    if (lastState != null) {
      read.addAll(Checks.state("final", lastState, input, backend));
    }
    if (finalState != null) {
      read.addAll(Checks.stateGradient("final", finalState, input, backend));
    }
    List<Checks.Named> written = new ArrayList<>();
    written.add(Checks.expect("dq", gradients.dq(), dtype, shape.q(), backend));
    written.add(Checks.expect("dk", gradients.dk(), dtype, shape.k(), backend));
    written.add(Checks.expect("dv", gradients.dv(), dtype, shape.v(), backend));
    written.add(Checks.expect("da", gradients.da(), DType.F32, shape.coefficients(), backend));
    written.add(Checks.expect("db", gradients.db(), DType.F32, shape.coefficients(), backend));
    StateGradient initialState = gradients.initialState().orElse(null);
    if (initialState != null) {
      written.addAll(Checks.stateGradient("initial", initialState, input, backend));
    }
    Checks.outputs(written, read, input);
    backend
        .engine()
        .backward(
            new BackwardCall(
                operator, input, o, g, dO, lastState, checkpoints, finalState, gradients, stream));
  }

  /**
   * What a forward and a backward of this shape would run and take, without running them; where the
   * builder keeps the state after the last token, the forward gives it and the backward has it. It
   * is of calls without an initial state and without a gradient of the final one, which may take
   * more. A backward that this backend can't do has no steps, and its reason says why.
   *
   * @throws IllegalArgumentException if the operator and the type don't fit together
   * @throws UnsupportedOperationException if this backend can't do the forward
   */
  public Plan plan(AttentionShape shape, DType dtype) {
    return planOf(shape, dtype, null);
  }

  /**
   * The same of sequences packed along the token axis, as {@link AttentionInput#packed} reads them.
   * Of the CPU the workspace is what it takes at most.
   *
   * @throws IllegalArgumentException also if batch is not 1 or the lengths don't sum to the tokens
   * @throws UnsupportedOperationException if this backend can't do the forward
   */
  public Plan plan(AttentionShape shape, DType dtype, Sequences packing) {
    Checks.packing(Checks.present("packing", packing), Checks.present("shape", shape));
    return planOf(shape, dtype, packing);
  }

  private Plan planOf(AttentionShape shape, DType dtype, @Nullable Sequences packing) {
    Checks.coefficients(operator, Checks.present("shape", shape));
    Checks.mode(operator, Checks.present("dtype", dtype));
    return new Plan(
        backend.name(),
        backend.engine().planForward(operator, shape, dtype, packing, keepState),
        planBackward(shape, dtype, packing));
  }

  private Plan.Pass planBackward(AttentionShape shape, DType dtype, @Nullable Sequences packing) {
    try {
      return backend.engine().planBackward(operator, shape, dtype, packing, keepState);
    } catch (UnsupportedOperationException refused) {
      return new Plan.Pass(List.of(), 0, 0, 0, "", String.valueOf(refused.getMessage()));
    }
  }

  /** Waits until every call made so far is done. */
  public void synchronize() {
    stream.synchronize();
  }

  /** Chooses the operator. Not thread-safe. */
  public static final class Builder {
    private float[] a = {1};
    private float[] b = {1};
    private boolean causal = true;
    private boolean normalize;
    private boolean keepState;
    private Mode mode = Mode.DEFAULT;

    private Builder() {}

    /** The same a and b for every query head; both finite. */
    public Builder coefficients(float a, float b) {
      return coefficients(new float[] {a}, new float[] {b});
    }

    /**
     * One a and one b for each query head of a batch row.
     *
     * @throws IllegalArgumentException if the lengths differ or are 0, or a value is not finite
     */
    public Builder coefficients(float[] a, float[] b) {
      Checks.present("a", a);
      Checks.present("b", b);
      if (a.length == 0 || a.length != b.length) {
        throw new IllegalArgumentException(
            "a and b need one value each, or one for each query head; got %d and %d"
                .formatted(a.length, b.length));
      }
      requireFinite("a", a);
      requireFinite("b", b);
      this.a = a.clone();
      this.b = b.clone();
      return this;
    }

    private static void requireFinite(String name, float[] values) {
      for (float value : values) {
        if (!Float.isFinite(value)) {
          throw new IllegalArgumentException(
              "coefficient %s must be finite, got %s".formatted(name, value));
        }
      }
    }

    /**
     * Whether a query sees only itself and earlier tokens, and not all of its sequence. Those of an
     * initial state every query sees.
     */
    public Builder causal(boolean causal) {
      this.causal = causal;
      return this;
    }

    /**
     * Whether q and k rows are divided by their Euclidean norm first (section 3.3 of the paper). A
     * row of zeros stays zero. Gradients are with respect to the raw rows.
     */
    public Builder normalizeQueriesAndKeys(boolean normalize) {
      this.normalize = normalize;
      return this;
    }

    /**
     * Whether {@link #forward} gives the state after the last token. From there a causal backward
     * on a GPU of compute capability 9.0 reads each tensor once, for bf16 with Dk = Dv = 64 or 128,
     * fp16 with 128, rows that are not normalised, as many key/value heads as query heads, |b| ≥
     * |a| / 16 and up to 16,384 tokens of bf16, 10,240 of fp16, not packed. Without causality the
     * state is what every token has seen, and a backward on any GPU need not sum k and v again.
     *
     * <p>A causal {@link #forward} keeps more, too, if it takes at most a tenth of the memory of q,
     * k and v, so that its backward need not compute it again. States before segments of the
     * tokens: where a GPU cuts the tokens of few heads, not packed, and, of many heads, every so
     * many tokens up to 327,680 of bf16 and 65,536 of fp16, so that longer sequences are read once
     * as well. Lengths of rows that are normalised: on a GPU of compute capability 9.0. All this is
     * part of {@link Plan.Pass#resultBytes} and belongs to the {@link Forward}, which is planned so
     * that it and its backward together take least, unless it was tuned. For other problems the
     * state changes nothing.
     */
    public Builder keepState(boolean keepState) {
      this.keepState = keepState;
      return this;
    }

    /** Exactness of fp32 products. */
    public Builder mode(Mode mode) {
      this.mode = Checks.present("mode", mode);
      return this;
    }

    /** Runs on the backend's own stream. */
    public LinearAttention on(Backend backend) {
      return on(backend, Checks.present("backend", backend).stream());
    }

    /**
     * Runs on a stream of the backend.
     *
     * @throws IllegalArgumentException if the stream is another backend's
     */
    public LinearAttention on(Backend backend, Stream stream) {
      Checks.present("backend", backend);
      Checks.present("stream", stream);
      if (!backend.engine().owns(stream)) {
        throw new IllegalArgumentException("the stream belongs to another backend than " + backend);
      }
      Operator operator = new Operator(a, b, causal, normalize, mode);
      return new LinearAttention(operator, keepState, backend, stream);
    }
  }
}
