package io.github.linattn.test.fault;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.catchThrowable;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Graph;
import io.github.linattn.LinearAttention;
import io.github.linattn.Plan;
import io.github.linattn.Sequences;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.cuda.CudaException;
import io.github.linattn.internal.cuda.ChunkedStructs;
import java.lang.foreign.MemoryLayout.PathElement;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.IntConsumer;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/**
 * Breaks when a forward of the family chunked launches something else than its plan, leaks, or
 * passes over a failed CUDA call. Kernels do not compute here.
 */
final class ChunkedForwardTest extends OnFakeKernels {
  private static final int ILLEGAL_ADDRESS = 700;
  private static final int OUT_OF_MEMORY = 2;
  private static final Pattern RELEASE = Pattern.compile("Free|Destroy|Unload|Unregister");
  private static final int D = FakeKernels.HEAD_DIM;
  private static final StructLayout CHUNKED = ChunkedStructs.CHUNKED;

  /** Tensors of one shape on one GPU. */
  private static final class Fixture implements AutoCloseable {
    final Backend gpu;
    final Tensor q;
    final Tensor k;
    final Tensor v;
    final Tensor o;
    final Tensor g;

    Fixture(AttentionShape shape, DType dtype) {
      Backend backend = Backend.cuda(0);
      List<Tensor> made = new ArrayList<>();
      try {
        made.add(backend.allocate(dtype, shape.q()));
        made.add(backend.allocate(dtype, shape.k()));
        made.add(backend.allocate(dtype, shape.v()));
        made.add(backend.allocate(dtype, shape.output()));
        made.add(backend.allocate(DType.F32, shape.normalizer()));
      } catch (RuntimeException e) {
        made.forEach(Tensor::close);
        backend.close();
        throw e;
      }
      gpu = backend;
      q = made.get(0);
      k = made.get(1);
      v = made.get(2);
      o = made.get(3);
      g = made.get(4);
    }

    AttentionInput input() {
      return AttentionInput.of(q, k, v);
    }

    @Override
    public void close() {
      RuntimeException failure = null;
      for (AutoCloseable member : List.of(q, k, v, o, g, gpu)) {
        try {
          member.close();
        } catch (Exception e) {
          failure = e instanceof RuntimeException known ? known : new IllegalStateException(e);
        }
      }
      if (failure != null) {
        throw failure;
      }
    }
  }

  private static long number(MemorySegment struct, String member) {
    return struct.get(JAVA_LONG, CHUNKED.byteOffset(PathElement.groupElement(member)));
  }

  private static int count(MemorySegment struct, String member) {
    return struct.get(JAVA_INT, CHUNKED.byteOffset(PathElement.groupElement(member)));
  }

  @Test
  void onePassLaunchesTheTilesOfEachItemAndTheRecurrenceBehindThem() {
    AttentionShape shape = new AttentionShape(2, 64, 32, 100, D, 192);
    try (Fixture f = new Fixture(shape, DType.BF16)) {
      LinearAttention.builder().coefficients(2, 3).on(f.gpu).forwardInto(f.q, f.k, f.v, f.o, f.g);
      assertThat(cudart.launches()).isEqualTo(2);
      assertThat(cudart.launchKernel(0)).isEqualTo("la_chunked_forward_wgmma_d128_bf16");
      assertThat(cudart.launchKernel(1)).isEqualTo("la_chunked_recurrence_simt_bf16");
      assertThat(cudart.launchBlocks(0)).isEqualTo(2 * 64 * 3);
      assertThat(cudart.launchCluster(0)).as("three tiles are no pairs").isEqualTo(1);
      assertThat(cudart.launchedEarly(0)).isTrue();
      assertThat(cudart.launchBlocks(1)).as("of 2 x 64 x 6 tiles").isEqualTo(2 * 132);
      assertThat(cudart.launchedEarly(1)).isTrue();
      MemorySegment hopper = cudart.launchArguments(0, ChunkedStructs.HOPPER.byteSize());
      assertThat(hopper.asSlice(24, 40).toArray(JAVA_LONG)) // address, extents
          .containsExactly(f.q.segment().address(), D, 100, 64, 2);
      MemorySegment out = hopper.asSlice(3 * 128, 128);
      assertThat(out.asSlice(24, 64).toArray(JAVA_LONG))
          .containsExactly(
              f.o.segment().address(), 192, 100, 64, 2, 192 * 2, 192 * 200, 192 * 200 * 64);
      assertThat(out.asSlice(88, 16).toArray(JAVA_INT)).containsExactly(64, 64, 1, 1);
      MemorySegment chunked = hopper.asSlice(512, CHUNKED.byteSize());
      MemorySegment exact = cudart.launchArguments(1, CHUNKED.byteSize());
      assertThat(chunked.mismatch(exact)).isEqualTo(-1);
      assertThat(number(exact, "marks")).isNotZero();
      assertThat(number(exact, "items")).isZero();
      assertThat(count(exact, "group")).isEqualTo(2);
      assertThat(count(exact, "num_items")).isEqualTo(1);
      assertThat(count(exact, "batches")).isEqualTo(2);
      assertThat(count(exact, "item_tokens")).isEqualTo(100);
      assertThat(count(exact, "value_dim")).isEqualTo(192);
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void segmentsPackingDecodeAndTheNonCausalFormLaunchTheirKernels() {
    try (Fixture f = new Fixture(AttentionShape.of(1, 1, 8192, D), DType.BF16)) {
      LinearAttention.builder().on(f.gpu).forwardInto(f.q, f.k, f.v, f.o, f.g);
      assertThat(kernels(0, 4))
          .containsExactly("state_sums", "state_scan", "forward", "recurrence");
      MemorySegment forward = cudart.launchArguments(3, CHUNKED.byteSize());
      assertThat(count(forward, "slots")).isEqualTo(count(forward, "num_items"));
      assertThat(number(forward, "state_in")).isNotZero();
      assertThat(number(forward, "state_out")).isZero();
      LinearAttention.builder().causal(false).on(f.gpu).forwardInto(f.q, f.k, f.v, f.o, f.g);
      assertThat(kernels(4, 3)).containsExactly("state_sums", "state_scan", "state_outputs");
      Sequences packing = Sequences.ofLengths(100, 0, 8092);
      LinearAttention.builder()
          .on(f.gpu)
          .forwardInto(f.input().packed(packing), f.o, f.g, f.gpu.newState(f.input().shape(), 3));
      MemorySegment packed = cudart.launchArguments(cudart.launches() - 1, CHUNKED.byteSize());
      assertThat(number(packed, "items")).isNotZero();
    }
    cudart.reset();
    try (Fixture f = new Fixture(AttentionShape.of(2, 4, 1, D), DType.BF16);
        AttentionState state = f.gpu.newState(f.input().shape(), 1)) {
      LinearAttention attention = LinearAttention.builder().on(f.gpu);
      for (int i = 0; i < 3; i++) {
        attention.decodeInto(f.q, f.k, f.v, state, f.o, f.g);
        MemorySegment decode = cudart.launchArguments(i, CHUNKED.byteSize());
        assertThat(cudart.launchKernel(i)).isEqualTo("la_chunked_decode_simt_bf16");
        assertThat(number(decode, "initial_count")).isEqualTo(i);
        assertThat(number(decode, "state_in")).isEqualTo(number(decode, "state_out"));
        assertThat(number(decode, "key_sum_in")).isEqualTo(number(decode, "key_sum_out"));
        assertThat(number(decode, "value_sum_in")).isEqualTo(number(decode, "value_sum_out"));
        assertThat(number(decode, "tickets")).isNotZero().isEqualTo(tickets(0));
        assertThat(cudart.launchBlocks(i)).isEqualTo(2 * 4 * 4);
        assertThat(cudart.launchCluster(i)).isEqualTo(1);
        assertThat(cudart.launchedEarly(i)).isTrue();
      }
      assertThat(state.count(0)).isEqualTo(3);
    }
  }

  private long tickets(int launch) {
    return number(cudart.launchArguments(launch, CHUNKED.byteSize()), "tickets");
  }

  @Test
  void aStreamOfAnotherBackendOfTheSameGpuIsRefused() {
    try (Backend gpu = Backend.cuda(0);
        Backend other = Backend.cuda(0);
        Stream own = gpu.newStream();
        Stream foreign = other.newStream()) {
      LinearAttention.builder().on(gpu, own);
      assertThatThrownBy(() -> LinearAttention.builder().on(gpu, foreign))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("the stream belongs to another backend than cuda:0");
    }
  }

  @Test
  void aClosedStreamIsToldWithWhere() {
    try (Fixture f = new Fixture(AttentionShape.of(1, 2, 100, D), DType.BF16)) {
      Stream stream = f.gpu.newStream();
      LinearAttention attention = LinearAttention.builder().on(f.gpu, stream);
      stream.close();
      long launches = cudart.launches();
      assertThatThrownBy(() -> attention.forwardInto(f.q, f.k, f.v, f.o, f.g))
          .isInstanceOf(IllegalStateException.class)
          .hasMessageContaining("the stream is closed")
          .cause()
          .hasMessage("closed here");
      assertThat(cudart.launches()).isEqualTo(launches);
    }
  }

  /** Breaks when the same tensors, known from a forward of many tokens, pass for a step. */
  @Test
  void aStepOfDecodingTakesOneTokenWhateverWasCalledBefore() {
    try (Fixture f = new Fixture(AttentionShape.of(1, 2, 100, D), DType.BF16);
        AttentionState state = f.gpu.newState(f.input().shape(), 1)) {
      LinearAttention attention = LinearAttention.builder().on(f.gpu);
      attention.forwardInto(f.input().from(state), f.o, f.g, state);
      assertThatThrownBy(() -> attention.decodeInto(f.q, f.k, f.v, state, f.o, f.g))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("a decode step takes one token, got 100");
      assertThat(state.count(0)).isEqualTo(100);
    }
  }

  @Test
  void blocksTakeTurnsAndSumsHaveItemsOfTheirOwn() {
    CudartDouble.assumeBuiltKernels();
    try (Fixture f = new Fixture(AttentionShape.of(1, 32, 1000, 64), DType.BF16)) {
      System.setProperty("linattn.plan", "wgmma*2");
      LinearAttention.builder().on(f.gpu).forwardInto(f.q, f.k, f.v, f.o, f.g);
      assertThat(kernels(0, 2)).containsExactly("forward", "recurrence");
      MemorySegment forward = cudart.launchArguments(1, CHUNKED.byteSize());
      assertThat(count(forward, "turns")).isEqualTo(2);
      assertThat(cudart.launchBlocks(0)).isEqualTo(32 * 2);
      assertThat(count(forward, "slot_step")).isEqualTo(1);
    } finally {
      System.clearProperty("linattn.plan");
    }
    reset();
    try (Fixture f = new Fixture(AttentionShape.of(1, 4, 65_536, D), DType.BF16)) {
      System.setProperty("linattn.plan", "wgmma:8192");
      LinearAttention.builder().on(f.gpu).forwardInto(f.q, f.k, f.v, f.o, f.g);
      MemorySegment forward = cudart.launchArguments(3, CHUNKED.byteSize());
      assertThat(count(forward, "turns")).isEqualTo(1);
      assertThat(count(forward, "num_items")).isEqualTo(8);
      assertThat(count(forward, "slot_step")).isEqualTo(2);
      assertThat(count(forward, "slots")).isEqualTo(15);
    } finally {
      System.clearProperty("linattn.plan");
    }
  }

  /** Parts of a relay start where those before have stopped; the recurrence has whole sequences. */
  @Test
  void blocksOfARelayHandStatesOn() {
    AttentionShape shape = new AttentionShape(2, 4, 2, 200, D, D);
    try (Fixture f = new Fixture(shape, DType.BF16);
        AttentionState state = f.gpu.newState(shape, 1)) {
      System.setProperty("linattn.plan", "wgmma:64+");
      LinearAttention attention = LinearAttention.builder().on(f.gpu);
      attention.forwardInto(f.input(), f.o, f.g, state);
      assertThat(kernels(0, 2)).containsExactly("forward", "recurrence");
      assertThat(cudart.launchBlocks(0)).isEqualTo(2 * 4 * 4 * 2);
      MemorySegment relay =
          cudart.launchArguments(0, ChunkedStructs.HOPPER.byteSize()).asSlice(512, CHUNKED);
      MemorySegment whole = cudart.launchArguments(1, CHUNKED.byteSize());
      assertThat(count(relay, "num_items")).isEqualTo(4);
      assertThat(count(relay, "item_tokens")).isEqualTo(64);
      assertThat(count(relay, "slots")).isEqualTo(1);
      assertThat(count(relay, "turns")).isEqualTo(1);
      assertThat(items(relay, 4)).containsExactly(0, 64, 0, 64, 64, 4, 128, 64, 8, 192, 8, 12);
      long words = 4L * 4 * 128;
      long slot = 4L * D * D * Float.BYTES;
      assertThat(number(relay, "state_in") - number(relay, "tickets")).isEqualTo(words);
      assertThat(number(relay, "state_out") - number(relay, "state_in")).isEqualTo(slot);
      assertThat(number(relay, "key_sum_out") - number(relay, "key_sum_in")).isEqualTo(slot / D);
      assertThat(number(relay, "value_sum_out") - number(relay, "value_sum_in"))
          .isEqualTo(slot / D);
      assertThat(count(whole, "num_items")).isEqualTo(1);
      assertThat(count(whole, "turns")).as("marks of items").isEqualTo(4);
      assertThat(number(whole, "marks")).isEqualTo(number(relay, "marks"));
      assertThat(number(whole, "tickets")).isZero();
      assertThat(number(whole, "items")).isZero();
      assertThat(number(whole, "state_in")).isEqualTo(number(relay, "state_in"));
      assertThat(number(whole, "state_out")).isEqualTo(state.s().segment().address());
      attention.forwardInto(f.input().from(state), f.o, f.g, state);
      MemorySegment next =
          cudart.launchArguments(2, ChunkedStructs.HOPPER.byteSize()).asSlice(512, CHUNKED);
      assertThat(counts(next, 4))
          .as("tokens before each item")
          .containsExactly(200L, 264L, 328L, 392L);
      attention.forwardInto(f.input().from(state), f.o, f.g, state);
      MemorySegment last =
          cudart.launchArguments(4, ChunkedStructs.HOPPER.byteSize()).asSlice(512, CHUNKED);
      assertThat(counts(last, 4)).containsExactly(400L, 464L, 528L, 592L);
    } finally {
      System.clearProperty("linattn.plan");
    }
    assertThat(cudart.live()).isZero();
  }

  /** Start, tokens and slot of each. */
  private static List<Integer> items(MemorySegment chunked, int count) {
    List<Integer> members = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      for (int at = 0; at < 3; at++) {
        members.add(
            list(chunked, count).get(JAVA_INT, i * ChunkedStructs.ITEM.byteSize() + 4L * at));
      }
    }
    return members;
  }

  private static List<Long> counts(MemorySegment chunked, int count) {
    List<Long> counts = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      counts.add(list(chunked, count).get(JAVA_LONG, i * ChunkedStructs.ITEM.byteSize() + 16));
    }
    return counts;
  }

  /** Device memory of the double is memory of the host. */
  private static MemorySegment list(MemorySegment chunked, int count) {
    return MemorySegment.ofAddress(number(chunked, "items"))
        .reinterpret(count * ChunkedStructs.ITEM.byteSize());
  }

  private static List<String> kernels(int first, int count) {
    List<String> operations = new ArrayList<>();
    for (int i = first; i < first + count; i++) {
      String symbol = cudart.launchKernel(i);
      operations.add(symbol.replaceAll("la_chunked_|_(mma|simt|wgmma).*", ""));
    }
    return operations;
  }

  @Test
  void aClosedTensorIsNotUsedAgain() {
    AttentionShape shape = AttentionShape.of(1, 2, 100, D);
    try (Fixture f = new Fixture(shape, DType.BF16)) {
      LinearAttention attention = LinearAttention.builder().on(f.gpu);
      attention.forwardInto(f.q, f.k, f.v, f.o, f.g);
      f.k.close();
      long launches = cudart.launches();
      assertThatThrownBy(() -> attention.forwardInto(f.q, f.k, f.v, f.o, f.g))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("is closed");
      assertThat(cudart.launches()).isEqualTo(launches);
    }
  }

  @Test
  void moreCallsThanAreKeptAndAGrowingWorkspaceStayRight() {
    try (Backend gpu = Backend.cuda(0)) {
      LinearAttention attention = LinearAttention.builder().on(gpu);
      List<Tensor> tensors = new ArrayList<>();
      for (int i = 0; i < 80; i++) {
        AttentionShape shape = AttentionShape.of(1, 1 + i, 64 + i, D);
        Tensor q = gpu.allocate(DType.BF16, shape.q());
        Tensor o = gpu.allocate(DType.BF16, shape.output());
        Tensor g = gpu.allocate(DType.F32, shape.normalizer());
        attention.forwardInto(q, q, q, o, g);
        attention.forwardInto(q, q, q, o, g);
        tensors.addAll(List.of(q, o, g));
      }
      assertThat(cudart.launches()).isEqualTo(80 * 2 * 2);
      tensors.forEach(Tensor::close);
    }
    assertThat(cudart.live()).isZero();
  }

  /** Forwards of one stream in segments of 1024 tokens, each of which needs memory for a state. */
  private static final class Growing implements AutoCloseable {
    private final Fixture f = new Fixture(AttentionShape.of(1, 1, 1 << 16, D), DType.BF16);
    final Stream stream = f.gpu.newStream();
    private final LinearAttention attention = LinearAttention.builder().on(f.gpu, stream);

    Growing() {
      System.setProperty("linattn.plan", "wgmma:1024");
    }

    void run(int segments) {
      int tokens = 1024 * segments;
      attention.forwardInto(
          f.q.sliced(2, 0, tokens),
          f.k.sliced(2, 0, tokens),
          f.v.sliced(2, 0, tokens),
          f.o.sliced(2, 0, tokens),
          f.g.sliced(2, 0, tokens));
    }

    @Override
    public void close() {
      System.clearProperty("linattn.plan");
      stream.close();
      f.close();
    }
  }

  /** A copy from memory of the call would be read at each launch of the graph. */
  @Test
  void coefficientsPerHeadOfTheFamilyPaperCanBeCaptured() {
    CudartDouble.assumeBuiltKernels();
    System.setProperty("linattn.family", "paper");
    try (Fixture f = new Fixture(AttentionShape.of(1, 2, 100, D), DType.F32);
        Stream stream = f.gpu.newStream()) {
      LinearAttention attention =
          LinearAttention.builder()
              .coefficients(new float[] {1, 2}, new float[] {3, 4})
              .on(f.gpu, stream);
      try (Graph graph = stream.capture(() -> attention.forwardInto(f.q, f.k, f.v, f.o, f.g))) {
        graph.launch();
      }
    } finally {
      System.clearProperty("linattn.family");
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void aWorkspaceThatOnlyAClosedGraphHeldIsFreed() {
    try (Growing growing = new Growing()) {
      Graph graph = growing.stream.capture(() -> growing.run(8));
      long ofSmall = cudart.live();
      growing.run(12);
      assertThat(cudart.live()).as("the graph holds the first").isEqualTo(ofSmall + 1);
      long bytes = cudart.deviceBytes();
      graph.close();
      assertThat(cudart.deviceBytes()).as("nobody holds it").isLessThan(bytes);
      long withoutGraph = cudart.live();
      growing.run(64);
      assertThat(cudart.live()).as("one for one").isEqualTo(withoutGraph);
    }
    assertThat(cudart.live()).isZero();
  }

  /** A server captures a graph of its decoding, and never sees the same packing twice. */
  @Test
  void listsOfPackingsAreLetGoWhileAGraphIsOpen() {
    int tokens = 1 << 16;
    try (Fixture f = new Fixture(AttentionShape.of(1, 1, tokens, D), DType.BF16);
        Stream stream = f.gpu.newStream()) {
      LinearAttention attention = LinearAttention.builder().on(f.gpu, stream);
      IntConsumer attend =
          sequences -> {
            int[] lengths = new int[sequences];
            Arrays.fill(lengths, 1);
            lengths[0] = tokens - sequences + 1;
            attention.forwardInto(f.input().packed(Sequences.ofLengths(lengths)), f.o, f.g, null);
          };
      attend.accept(60_000);
      long withOne = cudart.deviceBytes();
      try (Graph graph = stream.capture(() -> attend.accept(60_000))) {
        for (int i = 1; i <= 60; i++) {
          attend.accept(60_000 + i);
        }
        assertThat(cudart.deviceBytes() - withOne).isBetween(1L << 20, 80L << 20);
        graph.launch();
      }
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void aWorkspaceThatOnlyAFailedCaptureHeldIsFreed() {
    try (Growing growing = new Growing()) {
      growing.run(8);
      long before = cudart.live();
      assertThatThrownBy(
              () ->
                  growing.stream.capture(
                      () -> {
                        growing.run(12);
                        throw new IllegalStateException("enough");
                      }))
          .hasMessage("enough");
      assertThat(cudart.live()).as("one for one").isEqualTo(before);
      growing.run(12);
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void aWorkspaceThatFitsOnlyJustIsTaken() {
    long allocation;
    try (Growing growing = new Growing()) {
      growing.run(8);
      long before = cudart.calls();
      growing.run(12);
      allocation = before;
      while (!cudart.call(allocation).equals("cudaMalloc")) {
        allocation++;
      }
      allocation += 1 - before;
    }
    reset();
    try (Growing growing = new Growing()) {
      growing.run(8);
      long bytes = cudart.deviceBytes();
      cudart.failAt(allocation, OUT_OF_MEMORY);
      growing.run(12);
      assertThat(cudart.deviceBytes()).isGreaterThan(bytes);
    }
    assertThat(cudart.live()).isZero();
  }

  @Test
  void aForwardIsCapturedAndLaunchedAgain() {
    AttentionShape shape = AttentionShape.of(1, 4, 5000, D);
    float[] perHead = {1, 2, 3, 4};
    try (Fixture f = new Fixture(shape, DType.BF16);
        Stream stream = f.gpu.newStream()) {
      LinearAttention attention =
          LinearAttention.builder().coefficients(perHead, perHead).on(f.gpu, stream);
      try (Graph graph = stream.capture(() -> attention.forwardInto(f.q, f.k, f.v, f.o, f.g))) {
        assertThat(cudart.launches()).isZero();
        graph.launch();
        graph.launch();
        assertThat(cudart.launches()).isEqualTo(2 * 4);
      }
      assertThatThrownBy(() -> stream.capture(stream::synchronize))
          .isInstanceOf(CudaException.class)
          .hasMessageContaining("cudaErrorStreamCaptureUnsupported");
      attention.forwardInto(f.q, f.k, f.v, f.o, f.g);
      assertThat(cudart.launches()).isEqualTo(3 * 4);
    }
    assertThat(cudart.live()).isZero();
    try (Backend cpu = Backend.cpu(1);
        Stream stream = cpu.newStream()) {
      assertThatThrownBy(() -> stream.capture(() -> {}))
          .isInstanceOf(UnsupportedOperationException.class)
          .hasMessageContaining("cuda backend has graphs");
    }
  }

  @Test
  void thePlanSaysWhatAndWhy() {
    try (Backend gpu = Backend.cuda(0)) {
      LinearAttention attention = LinearAttention.builder().on(gpu);
      AttentionShape square = AttentionShape.of(4, 16, 10_000, D);
      Plan.Pass pass = attention.plan(square, DType.F32).forward();
      assertThat(pass.steps().getFirst())
          .isEqualTo("la_chunked_forward_wgmma_d128_f32_default: 128 blocks in clusters of 2");
      assertThat(pass.estimatedMicros()).isPositive();
      assertThat(pass.reason()).contains("one pass");
      assertThat(attention.plan(square, DType.F32).describe())
          .contains(pass.reason())
          .contains(" µs: ");
      var keeping = LinearAttention.builder().keepState(true).on(gpu);
      assertThat(keeping.plan(square, DType.F32).forward().resultBytes())
          .isEqualTo(pass.resultBytes() + 64L * (D * D + 2 * D) * Float.BYTES);
    }
  }

  /** Every kind of plan once, and a graph. */
  private static void run() {
    float[] perHead = {1, 2};
    try (Fixture f = new Fixture(AttentionShape.of(1, 2, 4096, D), DType.BF16);
        AttentionState state = f.gpu.newState(f.input().shape(), 1);
        Stream stream = f.gpu.newStream()) {
      LinearAttention attention =
          LinearAttention.builder().coefficients(perHead, perHead).on(f.gpu, stream);
      attention.forwardInto(f.input().from(state), f.o, f.g, state);
      LinearAttention.builder()
          .causal(false)
          .on(f.gpu, stream)
          .forwardInto(f.q, f.k, f.v, f.o, f.g);
      AttentionShape one = AttentionShape.of(1, 2, 1, D);
      Tensor q = f.q.sliced(2, 0, 1);
      attention.decodeInto(
          q, f.k.sliced(2, 0, 1), f.v.sliced(2, 0, 1), state, f.o.sliced(2, 0, 1), slice(f, one));
      Tensor short64 = f.q.sliced(2, 0, 64);
      try (Graph graph =
          stream.capture(
              () ->
                  attention.forwardInto(
                      AttentionInput.of(short64, f.k.sliced(2, 0, 64), f.v.sliced(2, 0, 64))
                          .from(state),
                      f.o.sliced(2, 0, 64),
                      f.g.sliced(2, 0, 64),
                      state))) {
        graph.launch();
      }
      stream.synchronize();
    }
  }

  private static Tensor slice(Fixture f, AttentionShape one) {
    return f.g.sliced(2, 0, one.tokens());
  }

  @Test
  void eachFailedCallSurfacesFreesEverythingAndLeavesTheNextRunWhole() {
    run(); // what is asked once per process is asked here
    cudart.reset();
    run();
    List<String> calls = new ArrayList<>();
    for (long i = 0; i < cudart.calls(); i++) {
      calls.add(cudart.call(i));
    }
    assertThat(calls).contains("cudaLaunchKernelExC", "cudaGraphLaunch", "cuTensorMapEncodeTiled");
    for (int k = 1; k <= calls.size(); k++) {
      String call = calls.get(k - 1);
      cudart.reset();
      cudart.failAt(k, ILLEGAL_ADDRESS);
      Throwable thrown = catchThrowable(ChunkedForwardTest::run);
      cudart.failAt(0, 0);
      String where = "call %d, %s".formatted(k, call);
      if (!RELEASE.matcher(call).find()) {
        assertThat(thrown).as(where).isInstanceOf(CudaException.class).hasMessageContaining(call);
      } else if (thrown != null) { // a release may only warn, but must not become something else
        assertThat(thrown).as(where).isInstanceOf(CudaException.class);
      }
      assertThat(cudart.live()).as("left alive after " + where).isZero();
    }
    cudart.reset();
    assertThat(catchThrowable(ChunkedForwardTest::run)).isNull();
    assertThat(cudart.live()).isZero();
  }
}
