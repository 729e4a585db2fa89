package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionShape;

/**
 * Weights of the tokens of one chunk for one another, and what their gradients are made of; both
 * sweeps of the backward form them. One worker's own.
 */
final class ChunkWeights {
  private final AttentionShape shape;
  private final MatrixKernel kernel;
  private final float[] keyTransposed;
  private final float[] valueTransposed;

  /** W = T∘(a + b Q Kᵀ), rows {@link Tiles#CHUNK} apart. */
  final float[] weights = new float[Tiles.CHUNK * Tiles.CHUNK];

  /** Ω Vᵀ, from which a sweep takes δ. */
  final float[] gradients = new float[Tiles.CHUNK * Tiles.CHUNK];

  private final double[] sums = new double[Tiles.CHUNK];

  ChunkWeights(BackwardPass pass) {
    this.shape = pass.shape;
    this.kernel = pass.kernel;
    this.keyTransposed = new float[shape.keyDim() * Tiles.CHUNK];
    this.valueTransposed = new float[shape.valueDim() * Tiles.CHUNK];
  }

  /** Takes the chunk's keys and values. */
  void load(KeyValueTile keyValue, int rows) {
    transpose(keyValue.k, rows, shape.keyDim(), keyTransposed);
    transpose(keyValue.v, rows, shape.valueDim(), valueTransposed);
  }

  private void transpose(float[] tile, int rows, int width, float[] transposed) {
    kernel.transpose(rows, width, tile, width, transposed, Tiles.CHUNK);
  }

  /** Vᵀ, rows {@link Tiles#CHUNK} apart. */
  float[] valueTransposed() {
    return valueTransposed;
  }

  /** Forms both products for the chunk's queries of one head. */
  void form(QueryTile query, float a, float b, int rows) {
    Tiles.multiplyLower(kernel, query.q, shape.keyDim(), keyTransposed, rows, weights);
    kernel.lower(rows, b, Tiles.repeated(a, rows), weights, Tiles.CHUNK, sums);
    Tiles.multiplyLower(kernel, query.omega, shape.valueDim(), valueTransposed, rows, gradients);
  }

  /** Row sums of W∘Ω Vᵀ; valid until the next call. */
  double[] weightedGradients(int rows) {
    kernel.dots(rows, rows, true, weights, Tiles.CHUNK, gradients, Tiles.CHUNK, sums);
    return sums;
  }

  /** Turns Ω Vᵀ into E = T∘(Ω Vᵀ − δ 1ᵀ) and returns its row sums; valid until the next call. */
  double[] shift(double[] minusDeltas, int rows) {
    kernel.lower(rows, 1, minusDeltas, gradients, Tiles.CHUNK, sums);
    return sums;
  }
}
