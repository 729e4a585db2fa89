package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.Gradients;
import io.github.linattn.Tensor;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.Operator;
import java.util.List;

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
 * goes back with R = Σ b q⊗Ω, r = Σ b δ q and y = Σ a Ω and finds dk and dv. δ comes from sums that
 * the first sweep holds anyway, so that the rounding of a stored o has no part in it. All of v is
 * centred first, see {@link KeyValueTile}.
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
  final float[][] deltas;

  private final Segments segments;

  BackwardPass(BackwardCall call, MatrixKernel kernel, Parallel parallel) {
    this.operator = call.operator();
    this.input = call.input();
    this.shape = input.shape();
    this.kernel = kernel;
    this.gradients = call.gradients();
    this.normalizer = new TensorRows(call.normalizer());
    this.outputGradient = new TensorRows(call.outputGradient());
    this.query = new TensorRows(input.q());
    this.deltas = new float[shape.batch() * shape.heads()][shape.tokens()];
    this.segments = Segments.of(input, parallel);
  }

  void run() {
    boolean causal = operator.causal();
    var initial = StateRows.initial(input.initialState(), shape.keyDim(), shape.valueDim());
    List<OuterSum> keyValueSums =
        segments.starts(
            causal ? Segments.Start.BEFORE : Segments.Start.WHOLE,
            lane -> keyValueTile(lane).center(initial.apply(lane)),
            segment -> keyValueTile(segment.lane()).sumOver(segment, kernel));
    QuerySweep[] sweeps = new QuerySweep[segments.count()];
    segments.forEach(
        i -> {
          sweeps[i] = new QuerySweep(this, segments.get(i), keyValueSums.get(i).transposed());
          sweeps[i].run();
        });
    storeCoefficientGradients(sweeps);
    List<OuterSum> gradientSums =
        segments.starts(
            causal ? Segments.Start.AFTER : Segments.Start.WHOLE,
            lane -> new OuterSum(shape.keyDim(), shape.valueDim()),
            segment -> new QueryTile(this).sumOver(segment));
    segments.forEach(i -> new KeyValueSweep(this, segments.get(i), gradientSums.get(i)).run());
  }

  /** Adds the segments' parts in a fixed order, so that equal calls give equal bits. */
  private void storeCoefficientGradients(QuerySweep[] sweeps) {
    double[] da = new double[shape.batch() * shape.heads()];
    double[] db = new double[da.length];
    for (int i = 0; i < sweeps.length; i++) {
      Lane lane = segments.get(i).lane();
      int group = shape.headsPerKeyValueHead();
      int first = lane.batch() * shape.heads() + lane.keyValueHead() * group;
      for (int member = 0; member < group; member++) {
        da[first + member] += sweeps[i].da[member];
        db[first + member] += sweeps[i].db[member];
      }
    }
    storeCoefficients(gradients.da(), da);
    storeCoefficients(gradients.db(), db);
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

  KeyValueTile keyValueTile(Lane lane) {
    return KeyValueTile.centered(operator, input, lane);
  }

  float[] deltas(Lane lane, int head) {
    return deltas[lane.batch() * shape.heads() + head];
  }
}
