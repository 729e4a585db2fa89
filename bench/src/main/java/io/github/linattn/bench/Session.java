package io.github.linattn.bench;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Event;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;

/** Operands and results of one shape on one backend, so that a benchmark measures calls alone. */
final class Session implements AutoCloseable {
  private final Backend backend;
  private final boolean ownsBackend;
  private final Stream stream;
  private final AttentionShape shape;
  private final LinearAttention attention;
  private final AttentionInput input;
  private final Tensor o;
  private final Tensor g;
  private final Tensor dO;
  private final Gradients gradients;
  private final List<Tensor> tensors = new ArrayList<>();
  private final Random random = new Random(20251);

  private Session(Backend backend, boolean ownsBackend, AttentionShape shape) {
    this.backend = backend;
    this.ownsBackend = ownsBackend;
    this.stream = backend.newStream();
    this.shape = shape;
    this.attention = LinearAttention.builder().normalizeQueriesAndKeys(true).on(backend, stream);
    this.input = AttentionInput.of(filled(shape.q()), filled(shape.k()), filled(shape.v()));
    this.dO = filled(shape.output());
    this.o = empty(shape.output());
    this.g = empty(shape.normalizer());
    this.gradients =
        Gradients.over(
            empty(shape.q()),
            empty(shape.k()),
            empty(shape.v()),
            empty(shape.coefficients()),
            empty(shape.coefficients()));
  }

  /** Takes over the backend. */
  static Session of(Backend backend, AttentionShape shape) {
    return new Session(backend, true, shape);
  }

  /** On a stream of its own beside others. */
  static Session onStreamOf(Backend shared, AttentionShape shape) {
    return new Session(shared, false, shape);
  }

  private Tensor empty(TensorShape extents) {
    Tensor tensor = backend.allocate(DType.F32, extents);
    tensors.add(tensor);
    return tensor;
  }

  private Tensor filled(TensorShape extents) {
    float[] values = new float[Math.toIntExact(extents.elements())];
    for (int i = 0; i < values.length; i++) {
      values[i] = (float) random.nextGaussian();
    }
    Tensor tensor = empty(extents);
    tensor.copyFrom(values);
    return tensor;
  }

  AttentionShape shape() {
    return shape;
  }

  AttentionInput input() {
    return input;
  }

  Tensor outputGradient() {
    return dO;
  }

  Tensor output() {
    return o;
  }

  Gradients gradients() {
    return gradients;
  }

  /** Queues a forward; on the CPU, runs it. */
  void forward() {
    attention.forwardInto(input, o, g, null);
  }

  /** Queues a backward of the last forward; on the CPU, runs it. */
  void backward() {
    attention.backwardInto(input, o, g, dO, gradients);
  }

  void synchronize() {
    attention.synchronize();
  }

  /** Marks the stream. */
  Event record() {
    return stream.record();
  }

  @Override
  public void close() {
    tensors.forEach(Tensor::close);
    stream.close();
    if (ownsBackend) {
      backend.close();
    }
  }
}
