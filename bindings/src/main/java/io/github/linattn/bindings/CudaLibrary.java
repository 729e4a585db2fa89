package io.github.linattn.bindings;

import io.github.linattn.bindings.LibrarySearch.Nothing;
import io.github.linattn.bindings.LibrarySearch.Outcome;
import io.github.linattn.bindings.LibrarySearch.Usable;
import java.nio.file.Path;
import java.util.List;

/**
 * The CUDA Runtime of this process: found and loaded once, on first use.
 *
 * <p>Looked for in this order: system property {@code linattn.cudart}, environment variable {@code
 * LINATTN_CUDART} (a file, or a folder that holds it; either is final when set), {@code lib/native}
 * below the system property {@code linattn.home}, {@code CUDA_HOME} and {@code CUDA_PATH}, the
 * usual folders, the system's loader. That there is none is a value with a reason and never an
 * exception.
 *
 * <p>Any thread. The library stays loaded until the process ends; what it first came to stays true.
 */
public final class CudaLibrary {

  private CudaLibrary() {}

  /** What the search came to. */
  public sealed interface Result permits Found, Missing {}

  /**
   * CUDA can be used.
   *
   * @param path the libcudart that is loaded
   * @param runtime its version
   * @param driver the newest CUDA version that the driver supports
   * @param deviceCount devices that this process can see, at least 1
   * @param cuda the calls
   */
  public record Found(
      Path path, CudaVersion runtime, CudaVersion driver, int deviceCount, Cuda cuda)
      implements Result {}

  /**
   * CUDA cannot be used here.
   *
   * @param reason one sentence
   * @param attempts each place that was tried and why it did not do, in order
   */
  public record Missing(String reason, List<Attempt> attempts) implements Result {
    public Missing {
      attempts = List.copyOf(attempts);
    }

    /** The reason, and one line for each place that was tried. */
    public String message() {
      StringBuilder text = new StringBuilder(reason);
      for (Attempt attempt : attempts) {
        text.append("\n  ").append(attempt);
      }
      return text.toString();
    }
  }

  /**
   * One place that did not do.
   *
   * @param origin who named it, such as {@code environment variable CUDA_HOME}
   * @param place the file, the folder or the name that the loader was asked for
   * @param reason why it did not do; for a file that did not open, the loader's own words
   */
  public record Attempt(String origin, String place, String reason) {
    @Override
    public String toString() {
      return origin + ": " + place + ": " + reason;
    }
  }

  private static final class Holder {
    static final Result RESULT = search();
  }

  /** The CUDA Runtime of this process, or why there is none. The first call searches and loads. */
  public static Result load() {
    return Holder.RESULT;
  }

  private static Result search() {
    try {
      Outcome outcome = LibrarySearch.run(SearchPlaces.ofProcess());
      return outcome instanceof Usable usable ? commit(usable) : ((Nothing) outcome).missing();
    } catch (IllegalCallerException denied) {
      Module here = CudaLibrary.class.getModule();
      String why = String.valueOf(denied.getMessage());
      return new Missing(
          "this JVM denies native access; start java with --enable-native-access="
              + (here.isNamed() ? here.getName() : "ALL-UNNAMED"),
          List.of(new Attempt("java.lang.foreign", "the loader of the C library", why)));
    }
  }

  // The generated classes find their symbols in what this class's loader has loaded.
  private static Result commit(Usable usable) {
    Path path = Path.of(usable.file()).toAbsolutePath();
    try {
      System.load(path.toString());
    } catch (UnsatisfiedLinkError e) {
      String why = String.valueOf(e.getMessage());
      return new Missing(
          "the JVM refused " + path, List.of(new Attempt("System.load", path.toString(), why)));
    }
    return new Found(path, usable.runtime(), usable.driver(), usable.devices(), new Cuda());
  }
}
