package io.github.linattn.cli;

import io.github.linattn.DType;
import io.github.linattn.io.Tuning;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;

/** Counts what moves between GPU 0 and its memory in one call: ncu runs a benchmark of the case. */
final class DataMovement {
  private final Ncu ncu;
  private final Path launcher;

  /** What counts; none, with the reason in a line, where nothing can. */
  static Optional<DataMovement> find(boolean gpu, Console console) {
    if (!gpu) {
      console.note("movement is left out: ncu counts what moves on a GPU");
      return Optional.empty();
    }
    Ncu.Search search = Ncu.find();
    if (search.ncu().isEmpty()) {
      console.note("movement is left out: there is no ncu; " + search.reason());
      return Optional.empty();
    }
    Path home = Path.of(System.getProperty("linattn.home", "")).toAbsolutePath();
    Optional<Path> launcher =
        Stream.of(home.resolve("linattn"), home.resolve("bin/linattn")) // the image's is in bin
            .filter(Files::isRegularFile)
            .findFirst();
    if (launcher.isEmpty()) {
      console.note("movement is left out: there is no script 'linattn' in " + home);
    }
    return launcher.map(script -> new DataMovement(search.ncu().get(), script));
  }

  /**
   * Starts nothing yet.
   *
   * @param launcher starts linattn in a process of its own
   */
  DataMovement(Ncu ncu, Path launcher) {
    this.ncu = ncu;
    this.launcher = launcher;
  }

  /** Of ncu. */
  String version() {
    return ncu.version();
  }

  /**
   * Counts one call.
   *
   * @param kernels of the call, in the order they run
   * @throws Ncu.RefusedException if nothing was counted
   */
  Ncu.Call count(BenchCase each, Method method, List<String> kernels) throws Ncu.RefusedException {
    return ncu.count(command(each, method), kernels, launches(each, kernels.size()));
  }

  /**
   * Two calls and what comes before them: a benchmark of backwards runs the forward once for each
   * set of tensors, and some kernels serve both.
   */
  private static int launches(BenchCase each, int kernels) {
    boolean prepares = each.pass() == BenchPass.BACKWARD;
    return (2 + (prepares ? BenchRun.sets(each) : 0)) * kernels;
  }

  private List<String> command(BenchCase each, Method method) {
    List<String> command = new ArrayList<>();
    command.add(launcher.toString());
    command.addAll(List.of("bench", Text.id(each.pass())));
    command.add("--batch=" + each.shape().batch());
    command.add("--heads=" + each.shape().heads());
    command.add("--tokens=" + each.shape().tokens());
    command.add("--head-dim=" + each.shape().keyDim());
    command.add("--dtype=" + Text.id(each.precision().dtype()));
    if (each.precision().dtype() == DType.F32) {
      command.add("--mode=" + Text.id(each.precision().mode()));
    }
    if (each.keepsState()) {
      command.add("--keep-state");
    }
    if (method == Method.PAPER) {
      command.add("--family=" + KernelFamily.PAPER);
    }
    String tuning = System.getProperty(Tuning.PROPERTY, "");
    if (!tuning.isBlank()) {
      command.add("--tuning=" + tuning);
    }
    return command;
  }
}
