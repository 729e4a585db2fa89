package io.github.linattn.internal.cuda;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.github.linattn.bindings.TensorMapWriter;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemoryLayout.PathElement;
import java.lang.foreign.StructLayout;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The arguments of the kernels of the family {@code chunked}, laid out as in {@code
 * linattn/chunked_arguments.h} and named as there.
 */
public final class ChunkedStructs {

  /** {@code linattn::Divisor}. */
  public static final StructLayout DIVISOR =
      MemoryLayout.structLayout(
          JAVA_INT.withName("value"), JAVA_INT.withName("multiplier"), JAVA_INT.withName("shift"));

  /** {@code linattn::TensorView}. */
  public static final StructLayout TENSOR_VIEW =
      MemoryLayout.structLayout(
          JAVA_LONG.withName("address"),
          JAVA_LONG.withName("batch_stride"),
          JAVA_LONG.withName("head_stride"),
          JAVA_LONG.withName("token_stride"));

  /** {@code linattn::Item}. */
  public static final StructLayout ITEM =
      MemoryLayout.structLayout(
          JAVA_INT.withName("start"),
          JAVA_INT.withName("tokens"),
          JAVA_INT.withName("slot"),
          JAVA_INT.withName("reserved"),
          JAVA_LONG.withName("count"));

  /** {@code linattn::Span}. */
  public static final StructLayout SPAN =
      MemoryLayout.structLayout(JAVA_INT.withName("first"), JAVA_INT.withName("num_items"));

  /** {@code linattn::ChunkedArguments}. */
  public static final StructLayout CHUNKED =
      MemoryLayout.structLayout(
          TENSOR_VIEW.withName("query"),
          TENSOR_VIEW.withName("key"),
          TENSOR_VIEW.withName("value"),
          TENSOR_VIEW.withName("out"),
          TENSOR_VIEW.withName("normalizer"),
          JAVA_LONG.withName("items"),
          JAVA_LONG.withName("a_per_head"),
          JAVA_LONG.withName("b_per_head"),
          JAVA_LONG.withName("state_in"),
          JAVA_LONG.withName("key_sum_in"),
          JAVA_LONG.withName("value_sum_in"),
          JAVA_LONG.withName("state_out"),
          JAVA_LONG.withName("key_sum_out"),
          JAVA_LONG.withName("value_sum_out"),
          JAVA_LONG.withName("marks"),
          JAVA_LONG.withName("initial_count"),
          JAVA_INT.withName("tokens"),
          JAVA_INT.withName("item_tokens"),
          JAVA_INT.withName("slots"),
          JAVA_INT.withName("key_dim"),
          JAVA_INT.withName("value_dim"),
          JAVA_INT.withName("normalize"),
          DIVISOR.withName("num_items"),
          DIVISOR.withName("heads"),
          DIVISOR.withName("kv_heads"),
          DIVISOR.withName("group"),
          JAVA_FLOAT.withName("a"),
          JAVA_FLOAT.withName("b"),
          JAVA_INT.withName("batches"),
          JAVA_INT.withName("turns"),
          JAVA_INT.withName("slot_step"),
          JAVA_INT.withName("reserved"),
          JAVA_LONG.withName("tickets"));

  /** {@code linattn::StateScanArguments}. */
  public static final StructLayout STATE_SCAN =
      MemoryLayout.structLayout(
          JAVA_LONG.withName("state"),
          JAVA_LONG.withName("key_sum"),
          JAVA_LONG.withName("value_sum"),
          JAVA_LONG.withName("state_in"),
          JAVA_LONG.withName("key_sum_in"),
          JAVA_LONG.withName("value_sum_in"),
          JAVA_LONG.withName("state_out"),
          JAVA_LONG.withName("key_sum_out"),
          JAVA_LONG.withName("value_sum_out"),
          JAVA_LONG.withName("spans"),
          JAVA_INT.withName("num_items"),
          JAVA_INT.withName("num_sequences"),
          JAVA_INT.withName("key_dim"),
          JAVA_INT.withName("value_dim"),
          JAVA_INT.withName("backwards"),
          JAVA_INT.withName("totals_only"));

  /** {@code CUtensorMap}. */
  static final MemoryLayout TENSOR_MAP =
      MemoryLayout.sequenceLayout(TensorMapWriter.BYTES, JAVA_BYTE);

  /** {@code linattn::hopper::HopperArguments}: a multiple of 64 bytes. */
  public static final StructLayout HOPPER =
      MemoryLayout.structLayout(
              TENSOR_MAP.withName("query"),
              TENSOR_MAP.withName("key"),
              TENSOR_MAP.withName("value"),
              TENSOR_MAP.withName("out"),
              CHUNKED.withName("chunked"),
              JAVA_LONG.withName("row_scales"),
              MemoryLayout.paddingLayout(24))
          .withByteAlignment(TensorMapWriter.ALIGNMENT);

  /** By the very layouts: comparing them member by member would be slow as well. */
  private static final Map<StructLayout, Map<String, Long>> OFFSETS =
      Collections.synchronizedMap(new IdentityHashMap<>());

  private ChunkedStructs() {}

  /** Offset of a member that the struct has; kept, because a layout is slow to tell it. */
  static long offset(StructLayout struct, String member) {
    Map<String, Long> known = OFFSETS.computeIfAbsent(struct, key -> new ConcurrentHashMap<>());
    Long offset = known.get(member);
    if (offset == null) {
      offset = struct.byteOffset(PathElement.groupElement(member));
      known.put(member, offset);
    }
    return offset;
  }
}
