package io.github.linattn.test.fault;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.catchThrowable;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Forward;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.Tensor;
import io.github.linattn.cuda.CudaException;
import io.github.linattn.cuda.CudaOutOfMemoryException;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/**
 * Breaks when a failed CUDA call of a forward and backward is passed over, becomes another
 * exception, leaks something, or spoils the calls after it. Kernels do not compute here.
 */
final class FaultInjectionTest {
  private static final int ILLEGAL_ADDRESS = 700;
  private static final int MEMORY_ALLOCATION = 2;
  private static final Pattern RELEASE = Pattern.compile("Free|Destroy|Unload|Unregister");
  private static final AttentionShape SHAPE = AttentionShape.of(1, 2, 5, 64);

  private static CudartDouble cudart;
  private static List<String> calls;

  @BeforeAll
  static void recordTheCallsOfOneRun() {
    CudartDouble.assumeBuiltKernels();
    cudart = CudartDouble.load();
    run(); // what is asked once per process is asked here
    cudart.reset();
    run();
    calls = new ArrayList<>();
    for (long i = 0; i < cudart.calls(); i++) {
      calls.add(cudart.call(i));
    }
  }

  /** Opens the GPU, allocates, copies, attends forward and backward from and to a state, closes. */
  private static void run() {
    try (Backend gpu = Backend.cuda(0);
        Tensor q = gpu.allocate(DType.F32, SHAPE.q());
        Tensor k = gpu.allocate(DType.F32, SHAPE.k());
        Tensor v = gpu.allocate(DType.F32, SHAPE.v());
        Tensor dO = gpu.allocate(DType.F32, SHAPE.output())) {
      float[] values = new float[Math.toIntExact(SHAPE.q().elements())];
      q.copyFrom(values);
      k.copyFrom(values);
      v.copyFrom(values);
      dO.copyFrom(values);
      float[] perHead = {1, 2};
      LinearAttention attention =
          LinearAttention.builder()
              .coefficients(perHead, perHead)
              .normalizeQueriesAndKeys(true)
              .keepState(true)
              .on(gpu);
      try (Forward first = attention.forward(q, k, v);
          Forward next =
              attention.forward(AttentionInput.of(q, k, v).from(first.state().orElseThrow()));
          Gradients gradients = attention.backward(first, dO)) {
        attention.synchronize();
        gradients.dq().toFloats();
        next.state().orElseThrow().s().toFloats();
      }
    }
  }

  @Test
  void aTensorThatWasFreedThoughWaitingFailedIsClosed() {
    cudart.reset();
    try (Backend gpu = Backend.cuda(0)) {
      Tensor tensor = gpu.allocate(DType.F32, SHAPE.q());
      long before = cudart.calls();
      cudart.failAt(2, ILLEGAL_ADDRESS); // behind cudaSetDevice
      assertThatThrownBy(tensor::close).isInstanceOf(CudaException.class);
      assertThat(cudart.call(before + 1)).isEqualTo("cudaDeviceSynchronize");
      cudart.failAt(0, 0);
      assertThatThrownBy(tensor::toFloats)
          .isInstanceOf(IllegalStateException.class)
          .hasMessageContaining("is closed");
      long calls = cudart.calls();
      tensor.close();
      assertThat(cudart.calls()).isEqualTo(calls);
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void aRunLaunchesKernelsAndReleasesAll() {
    cudart.reset();
    run();
    assertThat(cudart.launches()).isGreaterThanOrEqualTo(8);
    assertThat(cudart.live()).isZero();
    assertThat(calls).contains("cudaLaunchKernelExC", "cudaLibraryLoadData");
  }

  @Test
  void eachFailedCallSurfacesFreesEverythingAndLeavesTheNextRunWhole() {
    for (int k = 1; k <= calls.size(); k++) {
      String call = calls.get(k - 1);
      cudart.reset();
      cudart.failAt(k, ILLEGAL_ADDRESS);
      Throwable thrown = catchThrowable(FaultInjectionTest::run);
      cudart.failAt(0, 0);
      String where = "call %d, %s".formatted(k, call);
      if (!RELEASE.matcher(call).find()) {
        assertThat(thrown).as(where).isInstanceOf(CudaException.class).hasMessageContaining(call);
      } else if (thrown != null) { // a release may only warn, but must not become something else
        assertThat(thrown).as(where).isInstanceOf(CudaException.class);
      }
      assertThat(cudart.live()).as("left alive after " + where).isZero();
      cudart.reset();
      assertThat(catchThrowable(FaultInjectionTest::run)).as("the run after " + where).isNull();
      assertThat(cudart.live()).as("left alive by the run after " + where).isZero();
    }
  }

  @Test
  void eachRefusedAllocationSaysHowMuchWasNeededAndFree() {
    int allocations = 0;
    for (int k = 1; k <= calls.size(); k++) {
      String call = calls.get(k - 1);
      if (!call.contains("Malloc")) {
        continue;
      }
      allocations++;
      cudart.reset();
      cudart.failAt(k, MEMORY_ALLOCATION);
      Throwable thrown = catchThrowable(FaultInjectionTest::run);
      cudart.failAt(0, 0);
      assertThat(thrown)
          .as("call %d, %s", k, call)
          .isInstanceOf(CudaOutOfMemoryException.class)
          .hasMessageMatching("(?s).*\\d+.* bytes.*free.*|(?s).*needed.*free.*");
      assertThat(cudart.live()).as("left alive after call %d, %s", k, call).isZero();
    }
    assertThat(allocations).isGreaterThanOrEqualTo(8);
  }
}
