package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.Gradients;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.Operator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.jspecify.annotations.Nullable;

/**
 * Backward of one call in two sweeps. With Ω = dO/g, δ_i = o_i·Ω_i and e_in = Ω_i·v_n − δ_i, the
 * gradient of the weight w_in = a + b q_i·k_n:
 *
 * <pre>
 *   dq_i = b Σ_n e_in k_n      dk_n = b Σ_i e_in q_i      dv_n = Σ_i w_in Ω_i
 *   da = Σ e_in                db = Σ e_in q_i·k_n
 * </pre>
 *
 * <p>{@link QuerySweep} goes forward with S, z, u and finds dq, δ, da and db; {@link KeyValueSweep}
 * goes back with R = Σ b q⊗Ω, r = Σ b δ q and y = Σ a Ω and finds dk and dv. R, −r and y start as
 * the gradients of the final state and end as those of the initial one. δ comes from sums that the
 * first sweep holds anyway, so that the rounding of a stored o has no part in it. v is centred
 * first, and k in the first sweep, see {@link KeyValueTile}.
 */
final class BackwardPass {
  final Operator operator;
  final AttentionInput input;
  final AttentionShape shape;
  final MatrixKernel kernel;
  final Gradients gradients;
  final TensorRows normalizer;
  final TensorRows outputGradient;
  final TensorRows query;

  /** δ of every query, [batch · heads][tokens]; written by the first sweep, read by the second. */
  final double[][] deltas;

  private final Map<Lane, Center> centers = new ConcurrentHashMap<>();
  private final @Nullable StateGradient finalState;
  private final Parallel parallel;

  BackwardPass(BackwardCall call, MatrixKernel kernel, Parallel parallel) {
    this.operator = call.operator();
    this.input = call.input();
    this.shape = input.shape();
    this.kernel = kernel;
    this.gradients = call.gradients();
    this.normalizer = new TensorRows(call.normalizer());
    this.outputGradient = new TensorRows(call.outputGradient());
    this.query = new TensorRows(input.q());
    this.deltas = new double[shape.batch() * shape.heads()][shape.tokens()];
    this.finalState = call.finalStateGradient();
    this.parallel = parallel;
  }

  void run() {
    double[] da = new double[shape.batch() * shape.heads()];
    double[] db = new double[da.length];
    for (Segments wave : Segments.waves(input, parallel)) {
      run(wave, da, db);
    }
    storeCoefficients(gradients.da(), da);
    storeCoefficients(gradients.db(), db);
  }

  private void run(Segments wave, double[] da, double[] db) {
    boolean causal = operator.causal();
    var initial = StateRows.initial(input.initialState(), shape.keyDim(), shape.valueDim());
    List<OuterSum> keyValueSums =
        wave.starts(
            causal ? Segments.Start.BEFORE : Segments.Start.WHOLE,
            lane -> centered(lane).center(initial.apply(lane)),
            segment -> centered(segment.lane()).sumOver(segment));
    CoefficientGradients[] parts = new CoefficientGradients[wave.count()];
    wave.forEach(
        i -> parts[i] = new QuerySweep(this, wave.get(i), keyValueSums.get(i).transposed()).run());
    for (int i = 0; i < parts.length; i++) { // in this order, so that equal calls give equal bits
      parts[i].addTo(da, db, firstHead(wave.get(i).lane()));
    }
    List<OuterSum> gradientSums =
        wave.starts(
            causal ? Segments.Start.AFTER : Segments.Start.WHOLE,
            this::afterLane,
            segment -> new QueryTile(this).sumOver(segment));
    wave.forEach(i -> new KeyValueSweep(this, wave.get(i), gradientSums.get(i)).run());
  }

  /** R, r and y after the last token of a lane. */
  private OuterSum afterLane(Lane lane) {
    OuterSum sum = new OuterSum(shape.keyDim(), shape.valueDim());
    if (finalState == null) {
      return sum;
    }
    StateRows.load(finalState, lane, sum);
    return withCenteredValues(lane).exchange(sum);
  }

  /** da and db over one segment, for each query head of its lane. */
  record CoefficientGradients(double[] da, double[] db) {
    private void addTo(double[] allDa, double[] allDb, int firstHead) {
      for (int member = 0; member < da.length; member++) {
        allDa[firstHead + member] += da[member];
        allDb[firstHead + member] += db[member];
      }
    }
  }

  private int firstHead(Lane lane) {
    return lane.batch() * shape.heads() + lane.keyValueHead() * shape.headsPerKeyValueHead();
  }

  private void storeCoefficients(Tensor tensor, double[] values) {
    float[] row = new float[shape.heads()];
    for (int batch = 0; batch < shape.batch(); batch++) {
      for (int head = 0; head < row.length; head++) {
        row[head] = (float) values[batch * row.length + head];
      }
      tensor.dtype().encode(row, 0, tensor.segment(), batch * tensor.stride(0), row.length);
    }
  }

  /** Tiles of k and v, both centred. */
  KeyValueTile centered(Lane lane) {
    return KeyValueTile.centered(kernel, operator, input, lane, center(lane));
  }

  /** Tiles of k as it is and v centred. */
  KeyValueTile withCenteredValues(Lane lane) {
    return KeyValueTile.centered(kernel, operator, input, lane, center(lane).ofValues());
  }

  /** What centred tiles of a lane lack. */
  Center center(Lane lane) {
    return centers.computeIfAbsent(
        lane, missing -> KeyValueTile.of(kernel, operator, input, missing).findCenter());
  }

  double[] deltas(Lane lane, int head) {
    return deltas[lane.batch() * shape.heads() + head];
  }
}
