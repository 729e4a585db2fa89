package io.github.linattn.cli;

import io.github.linattn.Backend;
import io.github.linattn.Diagnostics;
import io.github.linattn.LinearAttention;
import io.github.linattn.MemoryKind;
import io.github.linattn.Plan;
import io.github.linattn.Stream;
import io.github.linattn.cuda.CudaOutOfMemoryException;
import io.github.linattn.reference.ErrorBudget;
import java.util.ArrayList;
import java.util.List;
import java.util.function.LongSupplier;

/** Times passes on one backend, each beside a copy of as many bytes. */
final class BenchRun {
  /** More than any L2 cache, and three times that of an H100 or H200. */
  private static final long BEYOND_CACHE = 3 * 60_000_000L;

  private static final int MOST_SETS = 64;

  private static final long SPARE_BYTES = 1L << 30;
  private static final long SEED = 20251;
  private static final double CPU_WARM_UP_SECONDS = 0.3;

  /** There is too little memory even for one set of tensors. */
  static final class NoRoomException extends RuntimeException {
    private static final long serialVersionUID = 1;

    NoRoomException(String message) {
      super(message);
    }

    NoRoomException(OutOfMemoryError cause) {
      super(Text.message(cause), cause);
    }
  }

  private final Backend backend;
  private final LongSupplier freeBytes;
  private final boolean allPlans;
  private final double sustainedSeconds;

  /**
   * On a GPU or on the CPU.
   *
   * @param freeBytes tells how much of its memory is free
   */
  BenchRun(Backend backend, LongSupplier freeBytes) {
    this(backend, freeBytes, false, 0);
  }

  private BenchRun(
      Backend backend, LongSupplier freeBytes, boolean allPlans, double sustainedSeconds) {
    this.backend = backend;
    this.freeBytes = freeBytes;
    this.allPlans = allPlans;
    this.sustainedSeconds = sustainedSeconds;
  }

  /** On GPU 0. */
  static BenchRun onGpu(Backend gpu) {
    return onGpu(gpu, false, 0);
  }

  /**
   * On GPU 0.
   *
   * @param allPlans whether to time what the planner did not choose, too
   * @param sustainedSeconds how long it has had the calls when the first is timed, and has them
   *     while they are timed; 0 where a few calls are enough
   */
  static BenchRun onGpu(Backend gpu, boolean allPlans, double sustainedSeconds) {
    return new BenchRun(
        gpu, () -> Diagnostics.gpu(0).orElseThrow().freeBytes(), allPlans, sustainedSeconds);
  }

  /** Whether this backend has kernels for a case. */
  boolean does(BenchCase problem) {
    return !kernels(problem).isEmpty();
  }

  /** The kernels of one call in the order they run; none where this backend can't do the case. */
  List<String> kernels(BenchCase problem) {
    try {
      return plan(problem).steps().stream().map(step -> step.split("[: ]", 2)[0]).toList();
    } catch (UnsupportedOperationException refused) {
      return List.of();
    }
  }

  /** Times one case, as {@link #run(BenchCase, List)} does, and all plans if they are wanted. */
  BenchResult run(BenchCase problem) {
    return run(problem, allPlans ? BenchPlans.names(problem) : List.of());
  }

  /**
   * Times one case.
   *
   * @param others names of plans to time, too
   * @throws UnsupportedOperationException if this backend can't do it
   * @throws NoRoomException if it has too little memory
   */
  BenchResult run(BenchCase problem, List<String> others) {
    Plan.Pass plan = plan(problem);
    double estimate = plan.estimatedMicros();
    long workspace = plan.workspaceBytes();
    if (problem.pass() == BenchPass.BOTH) {
      Plan.Pass forward = plan(problem.with(BenchPass.FORWARD));
      estimate += forward.estimatedMicros();
      workspace = Math.max(workspace, forward.workspaceBytes());
    }
    List<BenchTensors> sets = new ArrayList<>();
    try (Stream stream = backend.newStream()) {
      int count = sets(problem, workspace);
      for (int i = 0; i < count; i++) {
        sets.add(new BenchTensors(backend, problem));
      }
      DeviceTimes floor = timer(stream, count, 0).fastest(set -> sets.get(set).copy(stream));
      var data = new BenchData(problem, SEED);
      var check = new BenchCheck(problem, data);
      sets.forEach(set -> set.fill(stream, data));
      stream.synchronize();
      var timed = new Timed(problem, sets, data, check);
      DeviceTimes times = timed.time();
      Errors errors = timed.errors();
      return new BenchResult(
          problem,
          BenchPlans.word(problem, plan),
          plan.reason(),
          estimate,
          count,
          count * problem.footprint() >= BEYOND_CACHE,
          problem.memoryBytes(workspace + checkpointBytes(problem)),
          times,
          floor,
          errors,
          bound(problem),
          others(timed, others));
    } catch (OutOfMemoryError e) {
      throw new NoRoomException(e); // what is free when asked may not be later
    } finally {
      sets.forEach(BenchTensors::close);
    }
  }

  private Plan.Pass plan(BenchCase problem) {
    Plan both = operator(problem).on(backend).plan(problem.shape(), problem.precision().dtype());
    Plan.Pass pass = problem.pass().hasBackward() ? both.backward() : both.forward();
    if (pass.steps().isEmpty()) {
      throw new UnsupportedOperationException(pass.reason());
    }
    return pass;
  }

  /** Of the states before segments that a forward keeps for the backward. */
  private long checkpointBytes(BenchCase problem) {
    if (!problem.keepsState()) {
      return 0;
    }
    BenchCase forward = problem.with(BenchPass.FORWARD);
    return plan(forward).resultBytes() - forward.memoryBytes(0);
  }

  private static LinearAttention.Builder operator(BenchCase problem) {
    return LinearAttention.builder()
        .causal(problem.causal())
        .normalizeQueriesAndKeys(problem.normalize())
        .keepState(problem.keepsState())
        .mode(problem.precision().mode());
  }

  private static double bound(BenchCase problem) {
    return ErrorBudget.of(problem.precision().dtype(), problem.precision().mode());
  }

  /** So many that together they exceed the cache, at least two, if they fit. */
  private int sets(BenchCase problem, long workspaceBytes) {
    long free = freeBytes.getAsLong();
    int sets = sets(problem, workspaceBytes, free);
    if (sets == 0) {
      throw new NoRoomException(
          Text.format(
              "needs %.1f GB of memory, %.1f GB are free",
              (BenchTensors.bytes(problem) + workspaceBytes + SPARE_BYTES) * 1e-9, free * 1e-9));
    }
    return sets;
  }

  /** Sets where memory is no limit. */
  static int sets(BenchCase problem) {
    return Math.clamp(Math.ceilDiv(BEYOND_CACHE, problem.footprint()), 2, MOST_SETS);
  }

  /** Sets for this much free memory; 0 if there is too little for one. */
  static int sets(BenchCase problem, long workspaceBytes, long free) {
    long fitting = Math.max(0, free - workspaceBytes - SPARE_BYTES) / BenchTensors.bytes(problem);
    return (int) Math.min(sets(problem), fitting);
  }

  private DeviceTimer timer(Stream stream, int sets, double warmUpSeconds) {
    return sustainedSeconds > 0
        ? DeviceTimer.sustained(stream, sets, sustainedSeconds)
        : new DeviceTimer(stream, sets, warmUpSeconds);
  }

  private double warmUpSeconds() {
    return backend.memoryKind() == MemoryKind.HOST ? CPU_WARM_UP_SECONDS : 0;
  }

  private List<BenchResult.Other> others(Timed timed, List<String> names) {
    List<BenchResult.Other> others = new ArrayList<>();
    for (String name : names) {
      BenchPlans.asking(
          timed.problem.pass(),
          name,
          () -> {
            try {
              Plan.Pass plan = plan(timed.problem);
              DeviceTimes times = timed.time();
              Errors errors = timed.errors();
              boolean right = errors.within(timed.problem.precision());
              others.add(
                  new BenchResult.Other(
                      name, plan.estimatedMicros(), errors.largest(), right ? times : null));
            } catch (UnsupportedOperationException | CudaOutOfMemoryException notHere) {
              // no candidate here
            }
          });
    }
    return others;
  }

  /** The pass of a case, with tensors that are there already. */
  private final class Timed {
    private final BenchCase problem;
    private final List<BenchTensors> sets;
    private final BenchData data;
    private final BenchCheck check;

    Timed(BenchCase problem, List<BenchTensors> sets, BenchData data, BenchCheck check) {
      this.problem = problem;
      this.sets = sets;
      this.data = data;
      this.check = check;
    }

    /** Poisons the outputs, then times. */
    DeviceTimes time() {
      try (Stream stream = backend.newStream()) {
        LinearAttention attention = operator(problem).on(backend, stream);
        sets.forEach(set -> set.prepare(attention));
        sets.forEach(set -> set.poison(stream));
        stream.synchronize();
        return timer(stream, sets.size(), warmUpSeconds())
            .time(set -> sets.get(set).run(attention));
      }
    }

    Errors errors() {
      return problem.decode() ? errorsOfStep() : check.errors(sets);
    }

    /** Steps have moved the state on; one more, from a state that is known. */
    private Errors errorsOfStep() {
      BenchTensors set = sets.getLast();
      try (Stream stream = backend.newStream()) {
        set.fillState(stream, data);
        set.poison(stream);
        stream.synchronize();
        long count = set.stateCount();
        set.run(operator(problem).on(backend, stream));
        stream.synchronize();
        return check.errorsOfStep(set, count);
      }
    }
  }
}
