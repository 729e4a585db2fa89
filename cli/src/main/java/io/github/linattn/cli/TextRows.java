package io.github.linattn.cli;

import io.github.linattn.Tensor;
import java.util.random.RandomGenerator;
import java.util.random.RandomGeneratorFactory;
import java.util.stream.IntStream;

/**
 * Rows as a language model makes them of text: each byte has a fixed random vector, which is mixed
 * with those of the two bytes before it and projected, for each head by another random matrix. So
 * rows repeat and correlate as real ones do.
 */
final class TextRows {
  private static final int BYTES = 256;
  private static final float PREVIOUS = 0.5f;
  private static final float BEFORE = 0.25f;

  private final byte[] text;
  private final int dim;
  private final float[] table;

  TextRows(byte[] text, int dim) {
    this.text = text.clone();
    this.dim = dim;
    this.table = normal(BYTES, 0, 1);
  }

  /** [heads, tokens, dim], the text repeated as often as needed. */
  float[] rows(long seed, int heads, int tokens) {
    float[] rows = new float[Math.multiplyExact(Math.multiplyExact(heads, tokens), dim)];
    IntStream.range(0, heads)
        .parallel()
        .forEach(head -> mix(projected(seed * heads + head), rows, head * tokens, tokens));
    return rows;
  }

  /** Fills a tensor [1, heads, tokens, dim]. */
  void fill(Tensor tensor, long seed) {
    tensor.copyFrom(rows(seed, (int) tensor.shape().extent(1), (int) tensor.shape().extent(2)));
  }

  /** The byte table times a random matrix of this seed. */
  private float[] projected(long seed) {
    float[] matrix = normal(dim, seed + 1, 1 / Math.sqrt(dim));
    float[] product = new float[table.length];
    for (int row = 0; row < BYTES; row++) {
      for (int i = 0; i < dim; i++) {
        float factor = table[row * dim + i];
        for (int j = 0; j < dim; j++) {
          product[row * dim + j] += factor * matrix[i * dim + j];
        }
      }
    }
    return product;
  }

  /** Mixing after the projection gives the same as before it, and costs less. */
  private void mix(float[] vectors, float[] rows, int firstRow, int tokens) {
    for (int token = 0; token < tokens; token++) {
      int now = byteAt(token) * dim;
      int previous = byteAt(token - 1) * dim;
      int before = byteAt(token - 2) * dim;
      int target = (firstRow + token) * dim;
      for (int j = 0; j < dim; j++) {
        rows[target + j] =
            vectors[now + j] + PREVIOUS * vectors[previous + j] + BEFORE * vectors[before + j];
      }
    }
  }

  private int byteAt(int token) {
    return Byte.toUnsignedInt(text[Math.floorMod(token, text.length)]);
  }

  private float[] normal(int rows, long seed, double deviation) {
    RandomGenerator random = RandomGeneratorFactory.of("L64X128MixRandom").create(seed);
    float[] values = new float[rows * dim];
    for (int i = 0; i < values.length; i++) {
      values[i] = (float) (deviation * random.nextGaussian());
    }
    return values;
  }
}
