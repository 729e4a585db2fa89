package io.github.linattn.cli;

import com.sun.management.ThreadMXBean;
import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import java.lang.management.ManagementFactory;
import java.util.Arrays;

/**
 * What a call costs the host, on a shape so small that the GPU is no slower.
 *
 * @param pass forward or backward
 * @param micros of one call, the median over queues of {@link #CALLS}
 * @param heapBytes that one call allocates in the steady state
 */
record HostTime(DType dtype, BenchPass pass, double micros, double heapBytes) {
  /** Calls between two waits. */
  static final int CALLS = 100;

  static final AttentionShape SHAPE = AttentionShape.of(1, 4, 64, 64);

  private static final int WARM_UP_QUEUES = 300;
  private static final int QUEUES = 51;

  static HostTime measure(Backend gpu, DType dtype, BenchPass pass) {
    return measure(gpu, dtype, pass, WARM_UP_QUEUES);
  }

  static HostTime measure(Backend gpu, DType dtype, BenchPass pass, int warmUpQueues) {
    try (Resources owned = new Resources()) {
      Tensor q = zeros(owned, gpu, dtype, SHAPE.q());
      Tensor k = zeros(owned, gpu, dtype, SHAPE.k());
      Tensor v = zeros(owned, gpu, dtype, SHAPE.v());
      Tensor o = zeros(owned, gpu, dtype, SHAPE.output());
      Tensor g = zeros(owned, gpu, DType.F32, SHAPE.normalizer());
      LinearAttention attention = LinearAttention.builder().on(gpu);
      Runnable call = () -> attention.forwardInto(q, k, v, o, g);
      if (pass.hasBackward()) {
        call.run();
        call = backward(owned, gpu, attention, AttentionInput.of(q, k, v), o, g);
      }
      for (int i = 0; i < warmUpQueues; i++) {
        queue(call);
        attention.synchronize();
      }
      var threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
      long[] nanos = new long[QUEUES];
      long bytes = 0;
      for (int i = 0; i < QUEUES; i++) {
        long bytesBefore = threads.getCurrentThreadAllocatedBytes();
        long start = System.nanoTime();
        queue(call);
        nanos[i] = System.nanoTime() - start;
        bytes += threads.getCurrentThreadAllocatedBytes() - bytesBefore;
        attention.synchronize();
      }
      Arrays.sort(nanos);
      return new HostTime(
          dtype, pass, nanos[QUEUES / 2] * 1e-3 / CALLS, (double) bytes / (QUEUES * CALLS));
    }
  }

  private static Runnable backward(
      Resources owned,
      Backend gpu,
      LinearAttention attention,
      AttentionInput input,
      Tensor o,
      Tensor g) {
    DType dtype = o.dtype();
    Tensor dO = zeros(owned, gpu, dtype, SHAPE.output());
    Gradients gradients =
        Gradients.over(
            zeros(owned, gpu, dtype, SHAPE.q()),
            zeros(owned, gpu, dtype, SHAPE.k()),
            zeros(owned, gpu, dtype, SHAPE.v()),
            zeros(owned, gpu, DType.F32, SHAPE.coefficients()),
            zeros(owned, gpu, DType.F32, SHAPE.coefficients()));
    return () -> attention.backwardInto(input, o, g, dO, gradients);
  }

  private static void queue(Runnable call) {
    for (int i = 0; i < CALLS; i++) {
      call.run();
    }
  }

  private static Tensor zeros(Resources owned, Backend gpu, DType dtype, TensorShape shape) {
    Tensor tensor = owned.add(gpu.allocate(dtype, shape));
    tensor.copyFrom(new float[Math.toIntExact(shape.elements())]);
    return tensor;
  }
}
