package io.github.linattn.test.fault;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.github.linattn.Forward;
import io.github.linattn.LinearAttention;
import io.github.linattn.Tensor;
import io.github.linattn.internal.cuda.ChunkedStructs;
import io.github.linattn.internal.cuda.GradientStructs;
import java.lang.foreign.MemoryLayout.PathElement;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;

/** Tests of the backwards of the family chunked, and what they read of its launches. */
abstract class BackwardLaunches extends OnFakeKernels {
  static final int D = FakeKernels.HEAD_DIM;
  static final String PLAN = "linattn.gradient.plan";
  static final String FORWARD_PLAN = "linattn.plan";
  static final StructLayout CHUNKED = ChunkedStructs.CHUNKED;
  static final StructLayout SCAN = ChunkedStructs.STATE_SCAN;
  static final StructLayout GRADIENT = GradientStructs.GRADIENT;
  static final StructLayout REPAIR = GradientStructs.GRADIENT_RECURRENCE;
  static final StructLayout ROWS = GradientStructs.GRADIENT_ROWS;
  static final StructLayout COEFFICIENTS = GradientStructs.COEFFICIENT_SUMS;

  @AfterEach
  void clear() {
    System.clearProperty(PLAN);
    System.clearProperty(FORWARD_PLAN);
  }

  static LinearAttention.Builder linear() {
    return LinearAttention.builder();
  }

  static long number(MemorySegment struct, StructLayout layout, String member) {
    return struct.get(JAVA_LONG, layout.byteOffset(PathElement.groupElement(member)));
  }

  static int count(MemorySegment struct, StructLayout layout, String member) {
    return struct.get(JAVA_INT, layout.byteOffset(PathElement.groupElement(member)));
  }

  static MemorySegment arguments(int launch, StructLayout layout) {
    return cudart.launchArguments(launch, layout.byteSize());
  }

  static long hopperOffset(int task, String member) {
    return GradientStructs.HOPPER_GRADIENTS.byteOffset(
        PathElement.groupElement("tasks"),
        PathElement.sequenceElement(task),
        PathElement.groupElement(member));
  }

  /** The arguments of a task behind its tensor maps. */
  static MemorySegment hopperTask(int launch, int task) {
    return arguments(launch, GradientStructs.HOPPER_GRADIENTS)
        .asSlice(hopperOffset(task, "gradient"), GRADIENT);
  }

  /** Addresses of the first tensor maps of a task. */
  static List<Long> mapped(int launch, int task, int maps) {
    MemorySegment both = arguments(launch, GradientStructs.HOPPER_GRADIENTS);
    List<Long> addresses = new ArrayList<>();
    for (int i = 0; i < maps; i++) { // the double keeps an address at byte 24 of its map
      addresses.add(both.get(JAVA_LONG, hopperOffset(task, "query") + 128L * i + 24));
    }
    return addresses;
  }

  static long address(Tensor tensor) {
    return tensor.segment().address();
  }

  static List<String> kernels(int first, int count) {
    List<String> operations = new ArrayList<>();
    for (int i = first; i < first + count; i++) {
      operations.add(cudart.launchKernel(i).replaceAll("la_chunked_|_(bf16|f32).*", ""));
    }
    return operations;
  }

  /** Addresses of query, key, value and out. */
  static List<Long> views(MemorySegment chunked) {
    return List.of(
        number(chunked, CHUNKED, "query"),
        number(chunked, CHUNKED, "key"),
        number(chunked, CHUNKED, "value"),
        number(chunked, CHUNKED, "out"));
  }

  /** What a launch of what is left to do sums. */
  static MemorySegment coefficients(int launch) {
    return arguments(launch, REPAIR).asSlice(3 * GRADIENT.byteSize(), COEFFICIENTS.byteSize());
  }

  static void backwardFrom(Forward y, BackwardFixture f) {
    linear().on(f.gpu).backwardInto(y, f.dO, null, f.gradients);
  }
}
