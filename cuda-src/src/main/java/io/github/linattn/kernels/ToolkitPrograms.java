package io.github.linattn.kernels;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.regex.Pattern;

/** Programs of the CUDA toolkit and its driver: where they usually stand, and a run of one. */
public final class ToolkitPrograms {
  private ToolkitPrograms() {}

  /**
   * Places to look for a program, the most wanted first: CUDA_HOME/bin, the folders of the PATH
   * that have it, and /usr/local/cuda/bin.
   *
   * @param program its name, such as nvcc
   */
  public static List<Path> places(String program) {
    List<Path> places = new ArrayList<>();
    String cudaHome = System.getenv("CUDA_HOME");
    if (cudaHome != null && !cudaHome.isBlank()) {
      places.add(Path.of(cudaHome, "bin", program));
    }
    String path = System.getenv("PATH");
    if (path != null) {
      for (String folder : path.split(Pattern.quote(File.pathSeparator), -1)) {
        if (!folder.isBlank() && Files.exists(Path.of(folder, program))) {
          places.add(Path.of(folder, program));
        }
      }
    }
    places.add(Path.of("/usr/local/cuda/bin", program));
    return places;
  }

  /**
   * What a run left.
   *
   * @param status 0 where it went well, as a rule
   * @param text both streams, as they came
   */
  public record Output(int status, String text) {}

  /**
   * Runs a command to its end, without input. If the thread is interrupted, it stays so and the
   * command is ended.
   *
   * @throws IOException if it can't be started, or was interrupted
   */
  public static Output run(List<String> command) throws IOException {
    return run(command, Map.of());
  }

  /**
   * Runs a command as {@link #run(List)} does.
   *
   * @param environment variables that it gets where they are not set
   */
  static Output run(List<String> command, Map<String, String> environment) throws IOException {
    ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
    environment.forEach(builder.environment()::putIfAbsent);
    Process process = builder.start();
    // An interrupt does not end a read, so another thread reads and this one waits.
    var text = new FutureTask<>(() -> process.getInputStream().readAllBytes());
    try {
      process.getOutputStream().close();
      Thread.startVirtualThread(text);
      return new Output(process.waitFor(), new String(text.get(), StandardCharsets.UTF_8));
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new IOException("interrupted while " + command.getFirst() + " ran", interrupted);
    } catch (ExecutionException unread) {
      throw new IOException("can't read what " + command.getFirst() + " says", unread.getCause());
    } finally {
      process.descendants().forEach(ProcessHandle::destroy); // those of a compiler outlive it
      process.destroy();
    }
  }
}
