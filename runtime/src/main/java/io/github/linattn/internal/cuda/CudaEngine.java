package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.DType;
import io.github.linattn.MemoryKind;
import io.github.linattn.NoGpuException;
import io.github.linattn.Plan;
import io.github.linattn.Sequences;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.bindings.CudaLibrary;
import io.github.linattn.bindings.DeviceAttribute;
import io.github.linattn.bindings.MemoryInfo;
import io.github.linattn.bindings.PointerInfo;
import io.github.linattn.cuda.CudaException;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.Engine;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.internal.HostStorage;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.Storage;
import io.github.linattn.kernelgen.Family;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernels.BuiltKernels;
import java.io.File;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.SortedSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/** Linear attention on one GPU with the kernels that were built. */
public final class CudaEngine implements Engine {
  /** Folders of generated kernels, searched before those shipped; separated as a class path. */
  public static final String KERNEL_FOLDERS_VARIABLE = "LINATTN_KERNELS";

  private static final String KERNEL_FOLDERS_PROPERTY = "linattn.kernels";

  /** Compute capability for which the oldest images, and PTX, are built. */
  private static final int OLDEST_CAPABILITY = 80;

  private static final String NO_KERNELS =
      "this build has no CUDA kernels: it was made without nvcc; install the CUDA toolkit and build"
          + " again";

  /** {@code paper}: forwards use the kernels of that family too, as baselines do. */
  private static final String FAMILY_VARIABLE = "LINATTN_FAMILY";

  private static final String FAMILY_PROPERTY = "linattn.family";

  /** Plans are small; a server sees few shapes. */
  private static final int MOST_PLANS = 1024;

  private final Device device;
  private final Arena arena = Arena.ofShared();
  private final Kernels kernels;
  private final Planner planner;
  private final boolean paperOnly;
  private final Map<Planner.Question, Optional<ForwardPlan>> plans = new ConcurrentHashMap<>();
  private boolean closed;

  private CudaEngine(Device device, List<BuiltKernels> sources) {
    this.device = device;
    this.kernels = new Kernels(device, arena, sources);
    int multiprocessors =
        device.cuda().attribute(DeviceAttribute.MULTIPROCESSOR_COUNT, device.ordinal());
    this.planner =
        new Planner(multiprocessors, kernels.sharedBytes(), device.capability(), kernels::find);
    this.paperOnly = isPaperOnly();
    if (device.cuda().attribute(DeviceAttribute.STREAM_ORDERED_ALLOCATION, device.ordinal()) == 1) {
      device.enter().keepFreedMemory(device.ordinal());
    }
  }

  private static boolean isPaperOnly() {
    String family =
        System.getProperty(
            FAMILY_PROPERTY, Optional.ofNullable(System.getenv(FAMILY_VARIABLE)).orElse(""));
    if (!family.isBlank()) {
      return Family.parse(family) == Family.PAPER;
    }
    return false;
  }

  /**
   * Opens a GPU.
   *
   * @throws NoGpuException if CUDA or its kernels are missing here
   * @throws IllegalArgumentException if there is no GPU of this ordinal
   */
  public static CudaEngine open(int ordinal) {
    if (CudaLibrary.load() instanceof CudaLibrary.Found found) {
      List<BuiltKernels> sources = kernelSources();
      if (isEmpty(sources)) {
        throw new NoGpuException(NO_KERNELS);
      }
      if (ordinal < 0 || ordinal >= found.deviceCount()) {
        throw new IllegalArgumentException(
            "there is no GPU %d: this process sees %d, numbered from 0"
                .formatted(ordinal, found.deviceCount()));
      }
      Device device = new Device(found.cuda(), ordinal);
      requireCapability(device);
      return new CudaEngine(device, sources);
    }
    throw new NoGpuException(((CudaLibrary.Missing) CudaLibrary.load()).message());
  }

  private static void requireCapability(Device device) {
    if (device.capability() < OLDEST_CAPABILITY) {
      throw new NoGpuException(
          "GPU %d, %s, is %s; the kernels need sm_%d or newer (Ampere), so use the cpu backend"
              .formatted(
                  device.ordinal(), device.name(), device.architecture(), OLDEST_CAPABILITY));
    }
  }

  /** Why {@link #open} would find no usable GPU, in one sentence, or empty. */
  public static Optional<String> unusableReason() {
    if (CudaLibrary.load() instanceof CudaLibrary.Missing missing) {
      return Optional.of(missing.reason());
    }
    return isEmpty(kernelSources()) ? Optional.of(NO_KERNELS) : Optional.empty();
  }

  private static boolean isEmpty(List<BuiltKernels> sources) {
    return sources.stream().allMatch(source -> source.manifest().entries().isEmpty());
  }

  /** The kernels that this process knows, those of the user's folders first. */
  public static List<BuiltKernels> kernelSources() {
    String folders =
        System.getProperty(
            KERNEL_FOLDERS_PROPERTY,
            Optional.ofNullable(System.getenv(KERNEL_FOLDERS_VARIABLE)).orElse(""));
    List<BuiltKernels> sources = new ArrayList<>();
    for (String folder : folders.split(File.pathSeparator, -1)) {
      if (!folder.isBlank()) {
        sources.add(kernelsOf(folder));
      }
    }
    try {
      sources.add(BuiltKernels.shipped());
    } catch (IOException e) {
      throw new IllegalStateException("the kernels module is damaged: " + e.getMessage(), e);
    }
    return List.copyOf(sources);
  }

  private static BuiltKernels kernelsOf(String folder) {
    try {
      return BuiltKernels.load(Path.of(folder));
    } catch (IOException | IllegalArgumentException e) {
      throw new IllegalArgumentException(
          "%s names %s, which holds no kernels that 'linattn generate' wrote: %s"
              .formatted(KERNEL_FOLDERS_VARIABLE, folder, e.getMessage()),
          e);
    }
  }

  @Override
  public String name() {
    return "cuda:" + device.ordinal();
  }

  @Override
  public String describe() {
    MemoryInfo memory = device.memory();
    return String.format(
        Locale.ROOT,
        "%s, %s, %d multiprocessors, %.1f of %.1f GB free",
        device.name(),
        device.architecture(),
        device.cuda().attribute(DeviceAttribute.MULTIPROCESSOR_COUNT, device.ordinal()),
        memory.freeBytes() / 1e9,
        memory.totalBytes() / 1e9);
  }

  @Override
  public MemoryKind memoryKind() {
    return MemoryKind.DEVICE;
  }

  @Override
  public Storage allocate(MemoryKind kind, long bytes) {
    return switch (kind) {
      case HOST -> HostStorage.allocate(bytes);
      case PINNED -> PinnedStorage.allocate(device, bytes);
      case DEVICE -> DeviceStorage.allocate(device, bytes);
    };
  }

  @Override
  public Storage allocateZeroed(long bytes) {
    DeviceStorage storage = DeviceStorage.allocate(device, bytes);
    try {
      device.cuda().fill(storage.deviceMemory(), 0, (byte) 0, bytes);
      device.cuda().synchronizeDevice(); // other streams may use it at once
      return storage;
    } catch (RuntimeException e) {
      storage.close();
      throw e;
    }
  }

  @Override
  public Storage pin(MemorySegment memory) {
    return PinnedStorage.lock(device, memory);
  }

  @Override
  public Storage wrapDeviceMemory(long address, long bytes) {
    PointerInfo info = device.enter().pointerInfo(address);
    boolean onDevice =
        info.kind() == PointerInfo.Kind.DEVICE || info.kind() == PointerInfo.Kind.MANAGED;
    if (!onDevice || info.device() != device.ordinal()) {
      throw new IllegalArgumentException(
          "0x%x is no memory of %s: CUDA knows it as %s of device %d"
              .formatted(address, name(), info.kind(), info.device()));
    }
    return DeviceStorage.wrap(device, address, bytes);
  }

  @Override
  public void requireReachable(String name, Tensor tensor) {
    switch (tensor.memoryKind()) {
      case PINNED -> {}
      case HOST ->
          throw new IllegalArgumentException(
              "%s (%s) is pageable host memory, out of reach of %s; copy it into a tensor of the"
                      .formatted(name, tensor, name())
                  + " backend, or pin it");
      case DEVICE -> {
        if (tensor.device() != device.ordinal()) {
          throw new IllegalArgumentException(
              "%s (%s) lives on GPU %d, this backend is %s"
                  .formatted(name, tensor, tensor.device(), name()));
        }
      }
    }
  }

  @Override
  public Stream newStream() {
    return new CudaQueue(device);
  }

  @Override
  public boolean owns(Stream stream) {
    return stream instanceof CudaQueue queue && queue.device().equals(device);
  }

  @Override
  public void forward(ForwardCall call) {
    AttentionState initial = call.input().initialState().orElse(null);
    Planner.Question question =
        new Planner.Question(
            call.input().shape(),
            call.input().q().dtype(),
            call.operator().mode(),
            call.operator().causal(),
            call.operator().normalize(),
            call.input().isPacked() ? call.input().sequences() : null,
            initial != null,
            call.finalState() != null,
            initial != null && initial == call.finalState(),
            ChunkedSupport.suitsTensorMaps(call));
    Optional<ForwardPlan> plan = plan(question);
    if (plan.isPresent()) {
      ChunkedSupport.require(call);
      runChunked(call, plan.get());
    } else {
      requirePaper(question, () -> PaperSupport.require(call.operator(), call.input()));
      runPaper(call);
    }
  }

  private Optional<ForwardPlan> plan(Planner.Question question) {
    if (paperOnly) {
      return Optional.empty();
    }
    Optional<PlanChoice> choice = PlanChoice.asked();
    if (choice.isPresent()) {
      return Optional.of(chosen(question, choice.get()));
    }
    if (plans.size() > MOST_PLANS) {
      plans.clear();
    }
    return plans.computeIfAbsent(question, planner::plan);
  }

  private ForwardPlan chosen(Planner.Question question, PlanChoice choice) {
    return planner
        .plan(question, choice)
        .orElseThrow(
            () ->
                new UnsupportedOperationException(
                    "no plan for %s is %s".formatted(question.shape(), choice)));
  }

  /**
   * Lets the family paper do what the family chunked cannot; says what is missing if neither can.
   */
  private void requirePaper(Planner.Question question, Runnable support) {
    try {
      support.run();
      kernels.entry(Operation.FORWARD, question.shape().keyDim());
    } catch (UnsupportedOperationException refused) {
      SortedSet<Integer> built = kernels.chunkedHeadDims(question.element());
      if (paperOnly || built.isEmpty()) {
        throw refused;
      }
      int headDim = question.shape().keyDim();
      String cure =
          headDim > KernelSpec.MAX_CHUNKED_HEAD_DIM
              ? "The cuda backend reaches head dimension %d; the cpu backend does it"
                  .formatted(KernelSpec.MAX_CHUNKED_HEAD_DIM)
              : "Build it with 'linattn generate --head-dim %d --out DIR' and name DIR in the"
                      .formatted(headDim)
                  + " environment variable "
                  + KERNEL_FOLDERS_VARIABLE;
      throw new UnsupportedOperationException(
          "no CUDA kernel for a forward of %s with head dimension %d; built: %s. %s"
              .formatted(question.dtype(), headDim, built, cure),
          refused);
    }
  }

  @Override
  public boolean repeat(
      Operator operator,
      Tensor q,
      Tensor k,
      Tensor v,
      @Nullable Sequences packing,
      @Nullable AttentionState initial,
      Tensor o,
      Tensor g,
      @Nullable AttentionState finalState,
      Stream stream) {
    CudaQueue queue = (CudaQueue) stream; // the API has asked owns()
    synchronized (queue) {
      return queue.isOpen()
          && queue.forwards().repeat(operator, q, k, v, packing, initial, o, g, finalState);
    }
  }

  private void runChunked(ForwardCall call, ForwardPlan plan) {
    CudaQueue queue = (CudaQueue) call.stream(); // the API has asked owns()
    synchronized (queue) {
      try {
        device.enter();
        queue.forwards().run(call, plan, kernels);
      } catch (CudaException e) {
        throw e.withContext("forward of " + call.input().shape());
      }
    }
  }

  private void runPaper(ForwardCall call) {
    PaperSupport.requireLayout("o", call.output());
    PaperSupport.requireLayout("g", call.normalizer());
    if (call.finalState() != null) {
      PaperSupport.requireLayout("final state S", call.finalState().s());
      PaperSupport.requireLayout("final state z", call.finalState().z());
      PaperSupport.requireLayout("final state u", call.finalState().u());
    }
    kernels.entry(Operation.FORWARD, call.input().shape().keyDim());
    run("forward", call.operator(), call.input(), call.stream(), pass -> pass.forward(call));
  }

  @Override
  public void backward(BackwardCall call) {
    PaperSupport.require(call);
    kernels.entry(Operation.QUERY_GRADIENT, call.input().shape().keyDim());
    run("backward", call.operator(), call.input(), call.stream(), pass -> pass.backward(call));
  }

  private void run(
      String what,
      Operator operator,
      AttentionInput input,
      Stream stream,
      Consumer<PaperPass> launches) {
    CudaQueue queue = (CudaQueue) stream; // the API has asked owns()
    synchronized (queue) {
      try (PaperPass pass = new PaperPass(kernels, queue, operator, input)) {
        launches.accept(pass);
      } catch (CudaException e) {
        throw e.withContext(what + " of " + input.shape());
      }
    }
  }

  @Override
  public Plan.Pass planForward(Operator operator, AttentionShape shape, DType dtype) {
    long results =
        shape.output().elements() * dtype.bytes() + shape.normalizer().elements() * Float.BYTES;
    Planner.Question question =
        Planner.Question.of(shape, dtype, operator.mode(), operator.causal(), operator.normalize());
    Optional<ForwardPlan> plan = plan(question);
    if (plan.isPresent()) {
      ForwardPlan chosen = plan.get();
      return new Plan.Pass(
          chosen.steps().stream().map(ForwardPlan.Step::toString).toList(),
          results,
          chosen.workspaceBytes(),
          chosen.micros(),
          chosen.reason());
    }
    requirePaper(question, () -> PaperSupport.require(operator, shape, dtype));
    List<String> steps = new ArrayList<>(normalizationSteps(operator, shape));
    steps.add(symbol(Operation.FORWARD, shape));
    return new Plan.Pass(steps, results, sharedWorkspace(operator, shape));
  }

  @Override
  public Plan.Pass planBackward(Operator operator, AttentionShape shape, DType dtype) {
    PaperSupport.require(operator, shape, dtype);
    List<String> steps = new ArrayList<>(normalizationSteps(operator, shape));
    steps.add(symbol(Operation.VALUE_CENTER, shape));
    steps.add(symbol(Operation.ROW_DOT, shape));
    steps.add(symbol(Operation.QUERY_GRADIENT, shape));
    steps.add(symbol(Operation.COEFFICIENT_GRADIENT, shape));
    steps.add(symbol(Operation.KEY_GRADIENT, shape));
    steps.add(symbol(Operation.VALUE_GRADIENT, shape));
    if (operator.normalize()) {
      steps.add(symbol(Operation.NORMALIZE_GRADIENT, shape) + " on dq and dk");
    }
    long elements = shape.q().elements() + shape.k().elements() + shape.v().elements();
    long results = (elements + 2 * shape.coefficients().elements()) * dtype.bytes();
    int tiles = kernels.entry(Operation.QUERY_GRADIENT, shape.keyDim()).tiles();
    long centers = PaperPass.centerBytes(shape.coefficients().elements(), shape.valueDim());
    long deltas = shape.normalizer().elements() * Float.BYTES;
    long partials = PaperPass.partialBytes(shape.coefficients().elements(), tiles);
    long workspace = sharedWorkspace(operator, shape) + centers + deltas + partials;
    return new Plan.Pass(steps, results, workspace);
  }

  private List<String> normalizationSteps(Operator operator, AttentionShape shape) {
    return operator.normalize()
        ? List.of(symbol(Operation.NORMALIZE, shape) + " of q and k")
        : List.of();
  }

  private String symbol(Operation operation, AttentionShape shape) {
    return kernels.entry(operation, shape.keyDim()).symbol();
  }

  /** Unit rows of q and k, and coefficients per head. */
  private static long sharedWorkspace(Operator operator, AttentionShape shape) {
    long units = operator.normalize() ? shape.q().elements() + shape.k().elements() : 0;
    long coefficients = operator.isUniform() ? 0 : 2L * shape.heads();
    return (units + coefficients) * Float.BYTES;
  }

  /** Waits for the device, then unloads the kernels; a second call does nothing. */
  @Override
  public void close() {
    synchronized (this) {
      if (closed) {
        return;
      }
      closed = true;
    }
    device.endAfterWork(arena);
  }
}
