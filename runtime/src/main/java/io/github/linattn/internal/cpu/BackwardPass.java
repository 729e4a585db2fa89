package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.Gradients;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.Operator;
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
  final Gradients gradients;
  final TensorRows normalizer;
  final TensorRows outputGradient;
  final TensorRows query;

  final @Nullable StateGradient finalState;
  private final Parallel parallel;

  BackwardPass(BackwardCall call, Parallel parallel) {
    this.operator = call.operator();
    this.input = call.input();
    this.shape = input.shape();
    this.gradients = call.gradients();
    this.normalizer = new TensorRows(call.normalizer());
    this.outputGradient = new TensorRows(call.outputGradient());
    this.query = new TensorRows(input.q());
    this.finalState = call.finalStateGradient();
    this.parallel = parallel;
  }

  void run() {
    CoefficientGradients[] lanes = new CoefficientGradients[Segments.laneCount(input)];
    Segments.forEachLane(
        input, parallel, 2, (index, lane, scratch) -> begin(lanes, index, lane, scratch));
    double[] da = new double[shape.batch() * shape.heads()];
    double[] db = new double[da.length];
    int sequences = input.sequences().count();
    for (int i = 0; i < lanes.length; i++) { // in this order, so that equal calls give equal bits
      lanes[i].addTo(da, db, i / sequences * shape.headsPerKeyValueHead());
    }
    storeCoefficients(gradients.da(), da);
    storeCoefficients(gradients.db(), db);
  }

  private Segments.LaneWork begin(
      CoefficientGradients[] results, int index, Segments segments, Scratch scratch) {
    BackwardLane lane = new BackwardLane(this, segments, scratch);
    return (step, free) -> {
      lane.step(step, free);
      if (step == segments.steps() - 1) {
        results[index] = lane.coefficients();
      }
    };
  }

  /** da and db over a lane or a segment of one, for each query head of the lane. */
  record CoefficientGradients(double[] da, double[] db) {
    void addTo(double[] allDa, double[] allDb, int firstHead) {
      for (int member = 0; member < da.length; member++) {
        allDa[firstHead + member] += da[member];
        allDb[firstHead + member] += db[member];
      }
    }
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
}
