package io.github.linattn.cli;

import io.github.linattn.Backend;
import io.github.linattn.DType;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

/** {@code linattn verify}: backends against the double reference. */
@Command(
    name = "verify",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    sortOptions = false,
    description = {
      "Check shapes, modes and types against a plain computation in double precision, forward and"
          + " backward.",
      "Prints the relative error of each result; exit code 1 if one is above its bound."
    })
final class VerifyCommand implements Callable<Integer> {
  private static final String ROW = "%-42s %-7s %-5s %-9s%s  %7.1e  %s";

  private final Console console;

  @Option(
      names = "--backend",
      paramLabel = "BACKEND",
      converter = Spelling.OfScope.class,
      description = "all (if left out: every backend that is usable), auto, cpu or cuda")
  private Scope scope = Scope.ALL;

  @Option(names = "--quick", description = "a few shapes only")
  private boolean quick;

  @Option(names = "--seed", paramLabel = "S", description = "seed of the inputs; 1 if left out")
  private long seed = 1;

  private int passed;
  private int failed;

  /** How often each refusal was met. */
  private final Map<String, Integer> refusals = new LinkedHashMap<>();

  VerifyCommand(Console console) {
    this.console = console;
  }

  /** Which backends to check. */
  enum Scope {
    ALL,
    AUTO,
    CPU,
    CUDA;
  }

  @Override
  public Integer call() {
    List<Backend> backends = openBackends();
    try {
      console.result(
          "Relative error against the double reference, seed %d. Gradients that cancel (few tokens)"
              + " relative to their terms; da and db may have 50 times the bound.",
          seed);
      console.result(
          "%-42s %-7s %-5s %-9s%s  %7s  %s",
          "case", "backend", "dtype", "mode", Errors.titles(), "bound", "ok");
      List<CheckCase> cases = quick ? CheckCases.quick() : CheckCases.full();
      for (int i = 0; i < cases.size(); i++) {
        check(cases.get(i), seed + i, backends);
      }
    } finally {
      backends.forEach(Backend::close);
    }
    return verdict();
  }

  private List<Backend> openBackends() {
    List<Backend> backends = new ArrayList<>();
    switch (scope) {
      case AUTO -> backends.add(BackendChoice.AUTO.open(console));
      case CPU -> backends.add(BackendChoice.CPU.open(console));
      case CUDA -> backends.add(BackendChoice.CUDA.open(console));
      case ALL -> {
        backends.add(BackendChoice.CPU.open(console));
        BackendChoice.openGpuIfUsable(console, "CPU only: ").ifPresent(backends::add);
      }
    }
    return backends;
  }

  private void check(CheckCase problem, long caseSeed, List<Backend> backends) {
    CheckData data = CheckData.random(problem, caseSeed);
    CheckData before = null;
    if (problem.prefix() > 0) {
      before = CheckData.random(ReferenceCheck.prefixOf(problem), ~caseSeed);
    }
    for (DType dtype : DType.values()) {
      var check = new ReferenceCheck(problem, dtype, data, before);
      for (Precision precision : Precision.ALL) {
        if (precision.dtype() == dtype) {
          backends.forEach(backend -> check(problem, check, backend, precision));
        }
      }
    }
  }

  private void check(
      CheckCase problem, ReferenceCheck check, Backend backend, Precision precision) {
    Errors errors;
    try {
      errors = check.run(backend, precision);
    } catch (UnsupportedOperationException no) {
      refusals.merge(refusal(backend, precision, no), 1, Integer::sum);
      return;
    }
    boolean ok = errors.within(precision);
    passed += ok ? 1 : 0;
    failed += ok ? 0 : 1;
    console.result(
        ROW,
        problem.name(),
        backend.name(),
        Text.id(precision.dtype()),
        Text.id(precision.mode()),
        errors.columns(),
        Quantity.O.bound(precision.dtype(), precision.mode()),
        ok ? "ok" : "FAILED");
  }

  /** What is refused and the cure; without the type, since most refusals are those of any type. */
  private static String refusal(
      Backend backend, Precision precision, UnsupportedOperationException no) {
    String reason = Text.message(no).replace(" of " + precision.dtype(), "");
    return "not on " + backend.name() + ": " + reason;
  }

  private int verdict() {
    refusals.forEach((refusal, count) -> console.result("%d rows %s", count, refusal));
    int refused = refusals.values().stream().mapToInt(count -> count).sum();
    String others = refused == 0 ? "" : ", " + refused + " not done by the backend";
    console.result("%d passed, %d failed%s", passed, failed, others);
    if (failed == 0 && passed > 0) {
      return ExitCode.DONE;
    }
    console.note(
        Text.format(
            "to run these again: linattn verify --seed %d --backend %s%s",
            seed, Text.id(scope), quick ? " --quick" : ""));
    return ExitCode.FAILED;
  }
}
