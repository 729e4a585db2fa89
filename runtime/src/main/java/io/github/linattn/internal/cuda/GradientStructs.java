package io.github.linattn.internal.cuda;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.github.linattn.bindings.TensorMapWriter;
import io.github.linattn.internal.cuda.GradientPlan.Role;
import java.lang.foreign.Arena;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.util.ArrayList;
import java.util.List;

/**
 * The arguments of the gradients of the family {@code chunked}, laid out as in {@code
 * linattn/gradient_arguments.h} and {@code coefficient_arguments.h} and named as there.
 */
public final class GradientStructs {

  /** {@code linattn::GradientArguments}. */
  public static final StructLayout GRADIENT =
      MemoryLayout.structLayout(
          ChunkedStructs.CHUNKED.withName("chunked"),
          JAVA_LONG.withName("delta"),
          JAVA_LONG.withName("query_scale"),
          JAVA_LONG.withName("key_scale"),
          JAVA_LONG.withName("partials"),
          ChunkedStructs.TENSOR_VIEW.withName("slope_query"),
          JAVA_INT.withName("task"),
          JAVA_INT.withName("tasks"));

  /** Tasks of one repair. */
  static final int REPAIR_TASKS = 3;

  /** {@code linattn::GradientRowsArguments}. */
  public static final StructLayout GRADIENT_ROWS =
      MemoryLayout.structLayout(
          ChunkedStructs.TENSOR_VIEW.withName("query"),
          ChunkedStructs.TENSOR_VIEW.withName("key"),
          ChunkedStructs.TENSOR_VIEW.withName("out"),
          ChunkedStructs.TENSOR_VIEW.withName("out_gradient"),
          JAVA_LONG.withName("delta"),
          JAVA_LONG.withName("query_scale"),
          JAVA_LONG.withName("key_scale"),
          JAVA_INT.withName("tokens"),
          JAVA_INT.withName("heads"),
          JAVA_INT.withName("group"),
          JAVA_INT.withName("batches"),
          JAVA_INT.withName("key_dim"),
          JAVA_INT.withName("value_dim"),
          JAVA_INT.withName("scales_are_kept"),
          JAVA_INT.withName("reserved"));

  /** {@code linattn::NormalizeRowsGradientArguments}. */
  public static final StructLayout NORMALIZE_ROWS_GRADIENT =
      MemoryLayout.structLayout(
          ChunkedStructs.TENSOR_VIEW.withName("row"),
          ChunkedStructs.TENSOR_VIEW.withName("gradient"),
          JAVA_LONG.withName("scale"),
          JAVA_INT.withName("tokens"),
          JAVA_INT.withName("heads"),
          JAVA_INT.withName("batches"),
          JAVA_INT.withName("dim"));

  /** {@code linattn::CoefficientSumsArguments}. */
  public static final StructLayout COEFFICIENT_SUMS =
      MemoryLayout.structLayout(
          ChunkedStructs.TENSOR_VIEW.withName("query"),
          ChunkedStructs.TENSOR_VIEW.withName("out"),
          JAVA_LONG.withName("partials"),
          JAVA_LONG.withName("products"),
          JAVA_LONG.withName("tickets"),
          JAVA_LONG.withName("a_per_head"),
          JAVA_LONG.withName("b_per_head"),
          JAVA_LONG.withName("a_gradient"),
          JAVA_LONG.withName("b_gradient"),
          JAVA_INT.withName("count"),
          JAVA_INT.withName("heads"),
          JAVA_INT.withName("batches"),
          JAVA_INT.withName("parts"),
          JAVA_INT.withName("slope_is_summed"),
          JAVA_INT.withName("sees_all"),
          JAVA_FLOAT.withName("a"),
          JAVA_FLOAT.withName("b"));

  /** {@code linattn::GradientRecurrenceArguments}. */
  public static final StructLayout GRADIENT_RECURRENCE =
      MemoryLayout.structLayout(
          MemoryLayout.sequenceLayout(REPAIR_TASKS, GRADIENT).withName("tasks"),
          COEFFICIENT_SUMS.withName("coefficients"),
          JAVA_INT.withName("first"),
          JAVA_INT.withName("count"),
          JAVA_INT.withName("adds"),
          JAVA_INT.withName("reserved"));

  /** Tasks of one launch on Hopper. */
  static final int HOPPER_TASKS = 2;

  /** {@code linattn::hopper::HopperGradient}. */
  public static final StructLayout HOPPER_GRADIENT =
      MemoryLayout.structLayout(
              ChunkedStructs.TENSOR_MAP.withName("query"),
              ChunkedStructs.TENSOR_MAP.withName("key"),
              ChunkedStructs.TENSOR_MAP.withName("value"),
              ChunkedStructs.TENSOR_MAP.withName("out"),
              ChunkedStructs.TENSOR_MAP.withName("output_rows"),
              GRADIENT.withName("gradient"),
              MemoryLayout.paddingLayout(24))
          .withByteAlignment(TensorMapWriter.ALIGNMENT);

  /** {@code linattn::hopper::HopperGradientArguments}. */
  public static final StructLayout HOPPER_GRADIENTS =
      MemoryLayout.structLayout(
          MemoryLayout.sequenceLayout(HOPPER_TASKS, HOPPER_GRADIENT).withName("tasks"));

  /**
   * {@code linattn::hopper::HopperOneSweepArguments}: the tasks of dk and dv, dq and its marks, and
   * the states after items and before them.
   */
  public static final StructLayout HOPPER_ONE_SWEEP =
      MemoryLayout.structLayout(
          HOPPER_GRADIENTS.withName("gradients"),
          ChunkedStructs.TENSOR_MAP.withName("query_gradient"),
          JAVA_LONG.withName("last_state"),
          JAVA_LONG.withName("last_key_sum"),
          JAVA_LONG.withName("first_state"),
          JAVA_LONG.withName("first_key_sum"),
          JAVA_LONG.withName("query_marks"),
          JAVA_LONG.withName("first_value_sum"),
          JAVA_LONG.withName("end_state"),
          JAVA_LONG.withName("end_key_sum"));

  private static final long TASK_CHUNKED = ChunkedStructs.offset(GRADIENT, "chunked");

  private GradientStructs() {}

  /**
   * Offset of a member of a task in {@link #HOPPER_GRADIENTS}, with which {@link #HOPPER_ONE_SWEEP}
   * begins.
   */
  static long hopperOffset(int task, String member) {
    return task * HOPPER_GRADIENT.byteSize() + ChunkedStructs.offset(HOPPER_GRADIENT, member);
  }

  /** One struct for each role of a launch, filled in again for every call. */
  static final class OfRoles {
    private final Arguments[] plain = new Arguments[Role.values().length];
    private final Arguments[] withMaps = new Arguments[Role.values().length];
    private final List<MemorySegment> initialCounts = new ArrayList<>();

    OfRoles(Arena owner) {
      for (Role role : Role.values()) {
        plain[role.ordinal()] = allocate(owner, layout(role));
        withMaps[role.ordinal()] =
            switch (role) {
              case STATE_SUMS -> allocate(owner, ChunkedStructs.HOPPER);
              case QUERY, GRADIENT_SUMS, KEY, VALUE, KEY_AND_VALUE ->
                  allocate(owner, HOPPER_GRADIENTS);
              case ONE_SWEEP -> allocate(owner, HOPPER_ONE_SWEEP);
              default -> plain[role.ordinal()];
            };
      }
    }

    private Arguments allocate(Arena owner, StructLayout layout) {
      Arguments struct = Arguments.allocate(owner, layout);
      if (layout.equals(ChunkedStructs.CHUNKED)) {
        addInitialCount(struct, 0);
      } else if (layout.equals(ChunkedStructs.HOPPER)) {
        addInitialCount(struct, struct.offset("chunked"));
      } else if (layout.equals(GRADIENT)) {
        addInitialCount(struct, TASK_CHUNKED);
      } else if (layout.equals(GRADIENT_RECURRENCE)) {
        for (int i = 0; i < REPAIR_TASKS; i++) {
          addInitialCount(struct, i * GRADIENT.byteSize() + TASK_CHUNKED);
        }
      } else if (layout.equals(HOPPER_GRADIENTS) || layout.equals(HOPPER_ONE_SWEEP)) {
        for (int i = 0; i < HOPPER_TASKS; i++) {
          addInitialCount(struct, hopperOffset(i, "gradient") + TASK_CHUNKED);
        }
      }
      return struct;
    }

    private void addInitialCount(Arguments struct, long chunked) {
      long at = chunked + ChunkedStructs.offset(ChunkedStructs.CHUNKED, "initial_count");
      initialCounts.add(struct.memory().asSlice(at, JAVA_LONG));
    }

    private static StructLayout layout(Role role) {
      return switch (role) {
        case ROWS -> GRADIENT_ROWS;
        case STATE_SUMS, STATE_SUMS_REPAIR -> ChunkedStructs.CHUNKED;
        case STATE_SCAN, GRADIENT_SCAN -> ChunkedStructs.STATE_SCAN;
        case QUERY, GRADIENT_SUMS, GRADIENT_SUMS_REPAIR, KEY, VALUE, KEY_AND_VALUE, ONE_SWEEP ->
            GRADIENT;
        case QUERY_REPAIR, COEFFICIENTS -> GRADIENT_RECURRENCE;
        case NORMALIZED_QUERY, NORMALIZED_KEY -> NORMALIZE_ROWS_GRADIENT;
      };
    }

    /** What a kernel of this role takes. */
    Arguments of(Role role) {
      return plain[role.ordinal()];
    }

    /** Tells all that takes an initial state how many tokens it holds. */
    void setInitialCount(long count) {
      for (int i = 0; i < initialCounts.size(); i++) {
        initialCounts.get(i).set(JAVA_LONG, 0, count);
      }
    }

    /** What a kernel by wgmma of this role takes. */
    Arguments withMaps(Role role) {
      return withMaps[role.ordinal()];
    }
  }
}
