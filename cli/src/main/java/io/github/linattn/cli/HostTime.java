package io.github.linattn.cli;

import com.sun.management.ThreadMXBean;
import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.LinearAttention;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import java.lang.management.ManagementFactory;
import java.util.Arrays;

/**
 * What a call costs the host, on a shape so small that the GPU is no slower.
 *
 * @param micros of one call, the median over queues of {@link #CALLS}
 * @param heapBytes that one call allocates in the steady state
 */
record HostTime(DType dtype, double micros, double heapBytes) {
  /** Calls between two waits. */
  static final int CALLS = 100;

  static final AttentionShape SHAPE = AttentionShape.of(1, 4, 64, 64);

  private static final int WARM_UP_QUEUES = 300;
  private static final int QUEUES = 51;

  static HostTime measure(Backend gpu, DType dtype) {
    return measure(gpu, dtype, WARM_UP_QUEUES);
  }

  static HostTime measure(Backend gpu, DType dtype, int warmUpQueues) {
    try (Resources owned = new Resources()) {
      Tensor q = zeros(owned, gpu, dtype, SHAPE.q());
      Tensor k = zeros(owned, gpu, dtype, SHAPE.k());
      Tensor v = zeros(owned, gpu, dtype, SHAPE.v());
      Tensor o = zeros(owned, gpu, dtype, SHAPE.output());
      Tensor g = zeros(owned, gpu, DType.F32, SHAPE.normalizer());
      LinearAttention attention = LinearAttention.builder().on(gpu);
      for (int i = 0; i < warmUpQueues; i++) {
        queue(attention, q, k, v, o, g);
        attention.synchronize();
      }
      var threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
      long[] nanos = new long[QUEUES];
      long bytes = 0;
      for (int i = 0; i < QUEUES; i++) {
        long bytesBefore = threads.getCurrentThreadAllocatedBytes();
        long start = System.nanoTime();
        queue(attention, q, k, v, o, g);
        nanos[i] = System.nanoTime() - start;
        bytes += threads.getCurrentThreadAllocatedBytes() - bytesBefore;
        attention.synchronize();
      }
      Arrays.sort(nanos);
      return new HostTime(
          dtype, nanos[QUEUES / 2] * 1e-3 / CALLS, (double) bytes / (QUEUES * CALLS));
    }
  }

  private static void queue(
      LinearAttention attention, Tensor q, Tensor k, Tensor v, Tensor o, Tensor g) {
    for (int i = 0; i < CALLS; i++) {
      attention.forwardInto(q, k, v, o, g);
    }
  }

  private static Tensor zeros(Resources owned, Backend gpu, DType dtype, TensorShape shape) {
    Tensor tensor = owned.add(gpu.allocate(dtype, shape));
    tensor.copyFrom(new float[Math.toIntExact(shape.elements())]);
    return tensor;
  }
}
