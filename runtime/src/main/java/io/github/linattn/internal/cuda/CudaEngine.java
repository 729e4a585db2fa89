package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.DType;
import io.github.linattn.Gradients;
import io.github.linattn.MemoryKind;
import io.github.linattn.NoGpuException;
import io.github.linattn.Plan;
import io.github.linattn.Sequences;
import io.github.linattn.StateGradient;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.bindings.CudaLibrary;
import io.github.linattn.bindings.DeviceAttribute;
import io.github.linattn.bindings.MemoryInfo;
import io.github.linattn.bindings.PointerInfo;
import io.github.linattn.cuda.CudaException;
import io.github.linattn.files.FileReason;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.Engine;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.internal.HostStorage;
import io.github.linattn.internal.Leaks;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.Storage;
import io.github.linattn.io.Tuning;
import io.github.linattn.kernelgen.Family;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernels.BuiltKernels;
import io.github.linattn.kernels.KernelCache;
import java.io.File;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.SortedSet;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/** Linear attention on one GPU with the kernels that were built. */
public final class CudaEngine implements Engine {
  private static final System.Logger LOG = System.getLogger(CudaEngine.class.getName());

  /** Folders of generated kernels, searched before those shipped; separated as a class path. */
  public static final String KERNEL_FOLDERS_VARIABLE = "LINATTN_KERNELS";

  private static final String KERNEL_FOLDERS_PROPERTY = "linattn.kernels";

  /** Compute capability for which the oldest images, and PTX, are built. */
  private static final int OLDEST_CAPABILITY = 80;

  private static final String NO_KERNELS =
      "this build has no CUDA kernels; where the CUDA toolkit (nvcc) is, mvn -B package builds them";

  /** {@code paper}: the kernels of that family compute all that they can, as baselines do. */
  private static final String FAMILY_VARIABLE = "LINATTN_FAMILY";

  private static final String FAMILY_PROPERTY = "linattn.family";

  private final Device device;
  private final Arena arena = Arena.ofShared();
  private final Kernels kernels;
  private final Plans plans;
  private final PaperPlans paperPlans;
  private final boolean paperOnly;
  private final Leaks leaks;

  private CudaEngine(Device device, List<BuiltKernels> sources, Tuning tuning) {
    this.device = device;
    this.kernels = new Kernels(device, arena, sources);
    GpuTraits gpu = GpuTraits.of(device, kernels.sharedBytes());
    this.plans =
        new Plans(
            new Planner(gpu, kernels::find),
            new GradientPlanner(gpu, kernels::find),
            tuning,
            device.name());
    this.paperPlans = new PaperPlans(kernels);
    this.paperOnly = isPaperOnly();
    this.leaks = Leaks.of(name());
    keepFreedMemory(true);
  }

  private void keepFreedMemory(boolean keeps) {
    if (device.attribute(DeviceAttribute.STREAM_ORDERED_ALLOCATION) == 1) {
      device.enter().keepFreedMemory(device.ordinal(), keeps);
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
   * @throws IllegalArgumentException if there is no GPU of this ordinal, or a folder of kernels or
   *     the tuning file that was named is none
   */
  public static CudaEngine open(int ordinal) {
    return switch (CudaLibrary.load()) {
      case CudaLibrary.Found found -> open(found, ordinal);
      case CudaLibrary.Missing missing -> throw new NoGpuException(missing.message());
    };
  }

  private static CudaEngine open(CudaLibrary.Found found, int ordinal) {
    List<BuiltKernels> sources = kernelSources();
    if (sources.stream().allMatch(source -> source.manifest().entries().isEmpty())) {
      throw new NoGpuException(NO_KERNELS);
    }
    if (ordinal < 0 || ordinal >= found.deviceCount()) {
      throw new IllegalArgumentException(
          "there is no GPU %d: this process sees %d, numbered from 0"
              .formatted(ordinal, found.deviceCount()));
    }
    Device device = new Device(found.cuda(), ordinal);
    requireCapability(device);
    return new CudaEngine(device, sources, Tuning.ofProcess());
  }

  private static void requireCapability(Device device) {
    if (device.capability() < OLDEST_CAPABILITY) {
      throw new NoGpuException(
          "GPU %d, %s, is %s; the kernels need sm_%d or newer (Ampere), so use the cpu backend"
              .formatted(
                  device.ordinal(), device.name(), device.architecture(), OLDEST_CAPABILITY));
    }
  }

  /**
   * The kernels that this process knows: those of the user's folders, those shipped, then those
   * that were compiled on demand.
   */
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
    sources.addAll(cachedKernels());
    return List.copyOf(sources);
  }

  /** A folder that nobody named is no reason to do without a GPU. */
  private static List<BuiltKernels> cachedKernels() {
    KernelCache cache = KernelCache.ofUser();
    try {
      return cache.kernels();
    } catch (IOException e) {
      if (KernelCache.isNamed()) {
        throw new IllegalArgumentException(
            "can't read the kernel cache %s, which %s or %s names: %s"
                .formatted(
                    cache.folder(), KernelCache.VARIABLE, KernelCache.PROPERTY, FileReason.of(e)),
            e);
      }
      LOG.log(
          System.Logger.Level.WARNING,
          "kernels that were compiled on demand are not used, since {0} can''t be read: {1}; {2}"
              + " names another folder",
          cache.folder(),
          FileReason.of(e),
          KernelCache.VARIABLE);
      return List.of();
    }
  }

  private static BuiltKernels kernelsOf(String folder) {
    try {
      BuiltKernels kernels = BuiltKernels.load(Path.of(folder));
      if (kernels.manifest().entries().isEmpty()) {
        throw new IllegalArgumentException(
            "they are text only; compile them with 'linattn generate' where nvcc is");
      }
      return kernels;
    } catch (IOException | IllegalArgumentException e) {
      Object why =
          switch (e) {
            case NoSuchFileException none -> "there is no " + none.getFile();
            case IOException unreadable -> FileReason.of(unreadable);
            default -> e.getMessage();
          };
      throw new IllegalArgumentException(
          "%s or %s names %s, which holds no kernels that 'linattn generate' wrote: %s"
              .formatted(KERNEL_FOLDERS_VARIABLE, KERNEL_FOLDERS_PROPERTY, folder, why),
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
        device.multiprocessors(),
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
      case HOST -> HostStorage.allocate(bytes, leaks);
      case PINNED -> PinnedStorage.allocate(device, bytes, leaks);
      case DEVICE -> DeviceStorage.allocate(device, bytes, leaks);
    };
  }

  @Override
  public Storage allocateZeroed(long bytes) {
    DeviceStorage storage = DeviceStorage.allocate(device, bytes, leaks);
    try {
      device.cuda().fill(storage.deviceMemory(), (byte) 0, bytes);
      device.cuda().synchronizeDevice(); // other streams may use it at once
      return storage;
    } catch (RuntimeException | Error e) {
      storage.close();
      throw e;
    }
  }

  @Override
  public Storage pin(MemorySegment memory) {
    return PinnedStorage.lock(device, memory, leaks);
  }

  @Override
  public Storage wrapDeviceMemory(long address, long bytes) {
    requireDeviceMemory(address, "");
    requireDeviceMemory(address + bytes - 1, ", the last byte of the tensor,");
    return DeviceStorage.wrap(device, address, bytes);
  }

  private void requireDeviceMemory(long address, String what) {
    PointerInfo info = device.enter().pointerInfo(address);
    String known =
        switch (info.kind()) {
          case DEVICE, MANAGED ->
              info.device() == device.ordinal() ? "" : "CUDA knows it as of GPU " + info.device();
          case HOST -> "CUDA knows it as page-locked memory of the host";
          case UNREGISTERED -> "CUDA does not know it";
        };
    if (!known.isEmpty()) {
      throw new IllegalArgumentException(
          "0x%x%s is no memory of %s: %s".formatted(address, what, name(), known));
    }
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
    return new CudaQueue(device, arena.scope(), leaks);
  }

  @Override
  public boolean owns(Stream stream) {
    return stream instanceof CudaQueue queue && queue.device() == device; // one for each engine
  }

  @Override
  public void forward(ForwardCall call) {
    Question question = Plans.question(call);
    Checkpoints kept = call.checkpoints();
    Optional<ForwardPlan> plan = plan(question, kept == null ? null : kept.form());
    if (plan.isPresent()) {
      ChunkedSupport.require(call);
      runChunked(call, plan.get());
    } else {
      requirePaper(
          question, Operation.FORWARD, () -> PaperSupport.require(call.operator(), call.input()));
      runPaper(call);
    }
  }

  @Override
  public Optional<Checkpoints.Form> checkpoints(ForwardCall call) {
    return checkpoints(Plans.question(call));
  }

  private Optional<Checkpoints.Form> checkpoints(Question question) {
    return paperOnly ? Optional.empty() : plans.checkpoints(question);
  }

  private Optional<ForwardPlan> plan(Question question, Checkpoints.@Nullable Form kept) {
    return paperOnly ? Optional.empty() : plans.forward(question, kept);
  }

  private Optional<GradientPlan> gradientPlan(Question question) {
    return paperOnly ? Optional.empty() : plans.backward(question);
  }

  /**
   * Lets the family paper do what the family chunked cannot; says what is missing if neither can.
   *
   * @param operation of a kernel that the pass needs in either family
   */
  private void requirePaper(Question question, Operation operation, Runnable support) {
    boolean suitsPaper = false;
    try {
      support.run();
      suitsPaper = true;
      kernels.entry(operation, question.shape().keyDim());
    } catch (UnsupportedOperationException refused) {
      SortedSet<Integer> built = kernels.chunkedHeadDims(operation, question.element());
      if (paperOnly || built.isEmpty()) {
        throw refused;
      }
      int valueDim = question.shape().valueDim();
      boolean backward = operation == Operation.QUERY_GRADIENT;
      int headDim = backward && !built.contains(valueDim) ? valueDim : question.shape().keyDim();
      String cure =
          kernels.canBeBuilt(operation, headDim, question.element(), suitsPaper)
              ? "'linattn generate --head-dim %d' builds it".formatted(headDim)
              : "None is made for %s; the cpu backend does it".formatted(device.architecture());
      throw new UnsupportedOperationException(
          "no CUDA kernel for a %s of %s with head dimension %d; built: %s. %s"
              .formatted(backward ? "backward" : "forward", question.dtype(), headDim, built, cure),
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
      @Nullable Checkpoints checkpoints,
      Stream stream) {
    CudaQueue queue = queueOf(stream);
    synchronized (queue) {
      try {
        return queue.isOpen()
            && queue
                .calls()
                .repeat(operator, q, k, v, packing, initial, o, g, finalState, checkpoints);
      } catch (CudaException e) {
        throw e.withContext("forward of " + AttentionInput.of(q, k, v).shape());
      }
    }
  }

  /** The stream, of which the API has asked {@link #owns}. */
  private static CudaQueue queueOf(Stream stream) {
    return (CudaQueue) stream;
  }

  private void runChunked(ForwardCall call, ForwardPlan plan) {
    CudaQueue queue = queueOf(call.stream());
    synchronized (queue) {
      queue.requireOpen();
      try {
        device.enter();
        queue.calls().run(call, plan, kernels);
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
    run(
        "forward",
        call.operator(),
        call.input(),
        call.tensors(),
        call.stream(),
        pass -> pass.forward(call));
  }

  @Override
  public void backward(BackwardCall call) {
    Question question = Plans.question(call);
    Optional<GradientPlan> plan = gradientPlan(question);
    if (plan.isPresent()) {
      ChunkedSupport.require(call);
      runChunked(call, plan.get());
    } else {
      requirePaper(question, Operation.QUERY_GRADIENT, () -> PaperSupport.require(call));
      run(
          "backward",
          call.operator(),
          call.input(),
          call.tensors(),
          call.stream(),
          pass -> pass.backward(call));
    }
  }

  @Override
  public boolean repeatBackward(
      Operator operator,
      AttentionInput input,
      Tensor output,
      Tensor normalizer,
      Tensor outputGradient,
      @Nullable AttentionState lastState,
      @Nullable Checkpoints checkpoints,
      @Nullable StateGradient finalStateGradient,
      Gradients gradients,
      Stream stream) {
    CudaQueue queue = queueOf(stream);
    synchronized (queue) {
      try {
        return queue.isOpen()
            && queue
                .calls()
                .repeatBackward(
                    operator,
                    input,
                    output,
                    normalizer,
                    outputGradient,
                    lastState,
                    checkpoints,
                    finalStateGradient,
                    gradients);
      } catch (CudaException e) {
        throw e.withContext("backward of " + input.shape());
      }
    }
  }

  private void runChunked(BackwardCall call, GradientPlan plan) {
    CudaQueue queue = queueOf(call.stream());
    synchronized (queue) {
      queue.requireOpen();
      try {
        device.enter();
        queue.calls().run(call, plan, kernels);
      } catch (CudaException e) {
        throw e.withContext("backward of " + call.input().shape());
      }
    }
  }

  private void run(
      String what,
      Operator operator,
      AttentionInput input,
      List<Tensor> tensors,
      Stream stream,
      Consumer<PaperPass> launches) {
    CudaQueue queue = queueOf(stream);
    synchronized (queue) {
      queue.requireOpen();
      queue.calls().makeRoomForConstants();
      try (PaperPass pass = new PaperPass(kernels, queue, operator, input)) {
        queue.keepForGraph(tensors);
        launches.accept(pass);
      } catch (CudaException e) {
        throw e.withContext(what + " of " + input.shape());
      }
    }
  }

  @Override
  public Plan.Pass planForward(
      Operator operator,
      AttentionShape shape,
      DType dtype,
      @Nullable Sequences packing,
      boolean keepsState) {
    long results = Engine.resultBytes(shape, dtype, packing, keepsState);
    Question question = question(operator, shape, dtype, packing).keeping(keepsState);
    Optional<Checkpoints.Form> kept = checkpoints(question);
    Optional<ForwardPlan> plan = plan(question, kept.orElse(null));
    if (plan.isPresent()) {
      ForwardPlan chosen = plan.get();
      long checkpoints = kept.map(form -> form.elements(shape)).orElse(0L) * Float.BYTES;
      return new Plan.Pass(
          chosen.steps().stream().map(ForwardPlan.Step::toString).toList(),
          results + checkpoints,
          chosen.workspaceBytes() + chosen.ticketBytes(),
          chosen.micros(),
          chosen.summary(),
          chosen.reason());
    }
    requirePaper(
        question,
        Operation.FORWARD,
        () -> PaperSupport.require(operator, shape, dtype, packing != null));
    return paperPlans.forward(operator, shape, results);
  }

  private static Question question(
      Operator operator, AttentionShape shape, DType dtype, @Nullable Sequences packing) {
    return Question.of(shape, dtype, operator.mode(), operator.causal(), operator.normalize())
        .packed(packing)
        .summingSlope(operator.sumsSlope());
  }

  @Override
  public Plan.Pass planBackward(
      Operator operator,
      AttentionShape shape,
      DType dtype,
      @Nullable Sequences packing,
      boolean lastState) {
    long results = Engine.gradientBytes(shape, dtype);
    Question asked = question(operator, shape, dtype, packing);
    Checkpoints.Form kept = lastState ? checkpoints(asked.keeping(true)).orElse(null) : null;
    Question question = asked.ofBackward(lastState, kept);
    Optional<GradientPlan> plan = gradientPlan(question);
    if (plan.isPresent()) {
      GradientPlan chosen = plan.get();
      return new Plan.Pass(
          chosen.launches().stream().map(GradientPlan.Launch::toString).toList(),
          results,
          chosen.workspaceBytes() + chosen.ticketBytes(),
          chosen.micros(),
          chosen.summary(),
          chosen.reason());
    }
    requirePaper(
        question,
        Operation.QUERY_GRADIENT,
        () -> PaperSupport.require(operator, shape, dtype, packing != null));
    return paperPlans.backward(operator, shape, results);
  }

  /**
   * Waits for the device, then unloads the kernels; a second call does nothing.
   *
   * @throws IllegalStateException if another thread is just loading one: closing can be tried again
   */
  @Override
  public synchronized void close() {
    if (arena.scope().isAlive()) {
      leaks.reportOpen();
      try {
        keepFreedMemory(false);
      } finally {
        device.endAfterWork(arena);
      }
    }
  }
}
