package io.github.linattn.internal.cuda;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.github.linattn.AttentionShape;
import io.github.linattn.Tensor;
import io.github.linattn.internal.Operator;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;

/** A struct of arguments, filled in by the names of its members. */
record Arguments(StructLayout layout, MemorySegment memory) {

  static Arguments allocate(Arena owner, StructLayout layout) {
    return new Arguments(layout, owner.allocate(layout));
  }

  /** Sets every member to 0 or null. */
  Arguments clear() {
    memory.fill((byte) 0);
    return this;
  }

  /** A pointer is a device address, 0 for null. */
  Arguments set(String member, long value) {
    memory.set(JAVA_LONG, offset(member), value);
    return this;
  }

  Arguments set(String member, int value) {
    memory.set(JAVA_INT, offset(member), value);
    return this;
  }

  Arguments set(String member, float value) {
    memory.set(JAVA_FLOAT, offset(member), value);
    return this;
  }

  /**
   * Sets a {@link ChunkedStructs#DIVISOR}: for {@code 0 <= n < 2^31} the quotient {@code n / value}
   * is {@code (2 n * multiplier >> 32) >> shift}, with the shift {@code ceil(log2 value)} and the
   * multiplier {@code ceil(2^(31 + shift) / value)}, which has 32 bits (T. Granlund, P. L.
   * Montgomery: Division by invariant integers using multiplication, 1994).
   *
   * @param value positive
   */
  Arguments setDivisor(String member, int value) {
    int shift = Integer.SIZE - Integer.numberOfLeadingZeros(value - 1);
    long multiplier = Math.ceilDiv(1L << (31 + shift), value);
    long at = offset(member);
    memory.set(JAVA_INT, at, value);
    memory.set(JAVA_INT, at + 4, (int) multiplier);
    memory.set(JAVA_INT, at + 8, shift);
    return this;
  }

  /** Sets a {@link ChunkedStructs#TENSOR_VIEW} of [batch, head, token] or of rows of these. */
  Arguments set(String member, Tensor tensor) {
    long at = offset(member);
    memory.set(JAVA_LONG, at, tensor.segment().address());
    memory.set(JAVA_LONG, at + 8, tensor.stride(0));
    memory.set(JAVA_LONG, at + 16, tensor.stride(1));
    memory.set(JAVA_LONG, at + 24, tensor.stride(2));
    return this;
  }

  /** Sets what every kernel of a call is told in its {@link ChunkedStructs#CHUNKED}. */
  Arguments setProblem(
      Operator operator, AttentionShape shape, long initialCount, DeviceLists lists) {
    return setCoefficients(operator, lists)
        .set("initial_count", initialCount)
        .set("tokens", shape.tokens())
        .setDivisor("heads", shape.heads())
        .setDivisor("kv_heads", shape.keyValueHeads())
        .setDivisor("group", shape.headsPerKeyValueHead())
        .set("key_dim", shape.keyDim())
        .set("value_dim", shape.valueDim())
        .set("normalize", operator.normalize() ? 1 : 0)
        .set("batches", shape.batch())
        .set("turns", 1)
        .set("slot_step", 1);
  }

  /** Sets a and b of all heads, or pointers to those of each. */
  Arguments setCoefficients(Operator operator, DeviceLists lists) {
    boolean uniform = operator.isUniform();
    return set("a_per_head", uniform ? 0 : lists.floats(operator.a()))
        .set("b_per_head", uniform ? 0 : lists.floats(operator.b()))
        .set("a", uniform ? operator.a(0) : 0)
        .set("b", uniform ? operator.b(0) : 0);
  }

  /** Sets which items there are, and states of a head. */
  Arguments setItems(Cut cut, int slots) {
    return set("item_tokens", cut.itemTokens())
        .setDivisor("num_items", cut.items())
        .set("slots", slots);
  }

  /** Sets an item for each sequence, with the state of that. */
  Arguments setSequences(Cut cut, long[] counts, DeviceLists lists) {
    return setItems(cut, cut.sequences())
        .set("items", cut.isRegular() ? 0 : lists.itemsOfSequences(cut, counts));
  }

  /** Sets items that have a state each, among so many of a head. */
  Arguments setSegments(Cut cut, int slots, long[] counts, DeviceLists lists) {
    return setItems(cut, slots)
        .set("items", cut.isRegular() ? 0 : lists.itemsOfSegments(cut, counts, 0));
  }

  /** Sets items that read the sums over all tokens of their sequence. */
  Arguments setOutputs(Cut cut, long[] counts, DeviceLists lists) {
    return setItems(cut, cut.sequences()).set("items", lists.itemsOfTotals(cut, counts));
  }

  /** Sets the rows that a chunk multiplies, x, y and z, and what comes of them. */
  Arguments setRows(Tensor x, Tensor y, Tensor z, Tensor out, Tensor normalizer) {
    return set("query", x)
        .set("key", y)
        .set("value", z)
        .set("out", out)
        .set("normalizer", normalizer);
  }

  /** Sets the heads of sums of k and v, which know no query heads. */
  Arguments setKeyValueHeads(AttentionShape shape) {
    return setDivisor("heads", shape.keyValueHeads())
        .setDivisor("group", 1)
        .set("a_per_head", 0L)
        .set("b_per_head", 0L);
  }

  /** Sets a scan of the states of {@code slots} items in place. */
  Arguments setScan(
      StateArrays items, Cut cut, int slots, AttentionShape shape, DeviceLists lists) {
    return setState("", items)
        .set("spans", cut.isRegular() ? 0 : lists.spans(cut))
        .set("num_items", slots)
        .set("num_sequences", cut.sequences())
        .set("key_dim", shape.keyDim())
        .set("value_dim", shape.valueDim());
  }

  /** Sets where a scan is to leave the totals of sequences, and nothing else. */
  Arguments setTotals(StateArrays totals) {
    return setState("_out", totals).set("totals_only", 1);
  }

  /** Sets the three pointers to a state whose names end so. */
  Arguments setState(String suffix, StateArrays state) {
    return set("state" + suffix, state.s())
        .set("key_sum" + suffix, state.z())
        .set("value_sum" + suffix, state.u());
  }

  Arguments copyOf(Arguments other) {
    MemorySegment.copy(other.memory, 0, memory, 0, other.memory.byteSize());
    return this;
  }

  /** A struct that is a member of this one, in the same memory. */
  Arguments inner(String member, StructLayout of) {
    return slice(offset(member), of);
  }

  /** A struct that lies in this one. */
  Arguments slice(long offset, StructLayout of) {
    return new Arguments(of, memory.asSlice(offset, of.byteSize()));
  }

  long offset(String member) {
    return ChunkedStructs.offset(layout, member);
  }
}
