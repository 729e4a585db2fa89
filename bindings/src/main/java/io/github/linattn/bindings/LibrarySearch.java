package io.github.linattn.bindings;

import io.github.linattn.bindings.CudaLibrary.Attempt;
import io.github.linattn.bindings.SearchPlaces.Place;
import io.github.linattn.bindings.SystemLoader.IntResult;
import io.github.linattn.bindings.SystemLoader.Library;
import io.github.linattn.bindings.SystemLoader.Opened;
import io.github.linattn.bindings.SystemLoader.Refused;
import io.github.linattn.bindings.generated.cudart;
import java.io.File;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Tries the places one by one until a libcudart opens, is new enough, and finds a driver and a
 * device. One search, one thread.
 *
 * <p>Each library is asked through its own handle, before the process commits to it: a refused one
 * never hides the symbols of a better one further down the list.
 */
final class LibrarySearch {
  /** The first Runtime whose cudaLibraryLoadData linattn's kernels can be loaded with. */
  static final CudaVersion OLDEST_RUNTIME = new CudaVersion(12, 8);

  private final SystemLoader loader;
  private final List<Attempt> attempts = new ArrayList<>();

  /** Why the first library that did open was refused: worth more than a list of empty folders. */
  private Optional<String> headline = Optional.empty();

  private LibrarySearch(SystemLoader loader) {
    this.loader = loader;
  }

  /** What the search came to. */
  sealed interface Outcome permits Usable, Nothing {}

  /** A library that can be used. */
  record Usable(String file, CudaVersion runtime, CudaVersion driver, int devices)
      implements Outcome, Answer {}

  /** None can be used. */
  record Nothing(CudaLibrary.Missing missing) implements Outcome {}

  /** What one library answered. */
  private sealed interface Answer permits Usable, Refusal {}

  /** This library will not do; {@code last} when no other could do better. */
  private record Refusal(String reason, boolean last) implements Answer {}

  static Outcome run(SearchPlaces places) {
    return SystemLoader.find()
        .map(loader -> new LibrarySearch(loader).through(places.inOrder()))
        .orElseGet(
            () -> nothing("this platform has no dlopen; CUDA is supported on Linux", List.of()));
  }

  private static Outcome nothing(String reason, List<Attempt> attempts) {
    return new Nothing(new CudaLibrary.Missing(reason, attempts));
  }

  private Outcome through(List<Place> places) {
    for (Place place : places) {
      if (place.files().isEmpty()) {
        attempts.add(new Attempt(place.origin(), place.place(), absence(place)));
      }
      for (String file : place.files()) {
        Answer answer = probe(file);
        if (answer instanceof Usable usable) {
          return usable;
        }
        Refusal refusal = (Refusal) answer;
        attempts.add(new Attempt(place.origin(), file, refusal.reason()));
        if (refusal.last()) {
          return nothing(refusal.reason(), attempts);
        }
      }
      if (place.explicit()) {
        return nothing(explicitFailure(place, attempts.getLast().reason()), attempts);
      }
    }
    return nothing(headline.orElse("no CUDA Runtime (libcudart) was found"), attempts);
  }

  private static String absence(Place place) {
    return place.explicit() && !new File(place.place()).isDirectory()
        ? "no such file"
        : "no " + String.join(", ", SearchPlaces.FILE_NAMES);
  }

  private static String explicitFailure(Place place, String why) {
    return place.place() + " (" + place.origin() + "; nothing else was tried): " + why;
  }

  private Answer probe(String file) {
    Opened opened = loader.open(file);
    if (opened instanceof Refused refused) {
      return new Refusal(refused.reason(), false);
    }
    Answer answer = ask(file, (Library) opened);
    if (answer instanceof Refusal refusal) {
      headline = headline.or(() -> Optional.of(refusal.reason()));
    }
    return answer;
  }

  private Answer ask(String file, Library library) {
    Optional<MemorySegment> runtimeVersion = loader.symbol(library, "cudaRuntimeGetVersion");
    Optional<MemorySegment> driverVersion = loader.symbol(library, "cudaDriverGetVersion");
    Optional<MemorySegment> deviceCount = loader.symbol(library, "cudaGetDeviceCount");
    if (runtimeVersion.isEmpty() || driverVersion.isEmpty() || deviceCount.isEmpty()) {
      return new Refusal("the library opens, but is not a CUDA Runtime", false);
    }
    CudaVersion runtime =
        CudaVersion.ofNumber(SystemLoader.callForInt(runtimeVersion.get()).value());
    if (runtime.compareTo(OLDEST_RUNTIME) < 0) {
      return new Refusal(tooOldRuntime(runtime), false);
    }
    int driver = SystemLoader.callForInt(driverVersion.get()).value();
    IntResult devices = SystemLoader.callForInt(deviceCount.get());
    if (driver == 0) {
      return new Refusal(noDriver(), true);
    }
    if (devices.status() == cudart.cudaErrorInsufficientDriver()) {
      return new Refusal(tooOldDriver(runtime, CudaVersion.ofNumber(driver)), false);
    }
    if (devices.status() == cudart.cudaErrorNoDevice()
        || (devices.status() == cudart.cudaSuccess() && devices.value() == 0)) {
      return new Refusal(noDevice(CudaVersion.ofNumber(driver)), true);
    }
    if (devices.status() != cudart.cudaSuccess()) {
      return new Refusal(noStart(library, devices.status()), true);
    }
    String loaded = loader.fileOf(runtimeVersion.get()).orElse(file);
    return new Usable(loaded, runtime, CudaVersion.ofNumber(driver), devices.value());
  }

  private static String tooOldRuntime(CudaVersion runtime) {
    return "this is CUDA Runtime "
        + runtime
        + "; linattn loads its kernels with cudaLibraryLoadData and needs "
        + OLDEST_RUNTIME
        + " or newer";
  }

  private static String noDriver() {
    return "no NVIDIA driver is installed or visible here (cudaErrorInsufficientDriver, driver"
        + " version 0); install the driver, or start the container with its GPUs passed in";
  }

  private static String tooOldDriver(CudaVersion runtime, CudaVersion driver) {
    return "the NVIDIA driver supports CUDA up to "
        + driver
        + ", but this is CUDA Runtime "
        + runtime
        + "; update the driver, or point "
        + SearchPlaces.PROPERTY
        + " to a libcudart of CUDA "
        + OLDEST_RUNTIME
        + " or newer that the driver supports";
  }

  private static String noDevice(CudaVersion driver) {
    return "the NVIDIA driver (CUDA "
        + driver
        + ") shows no device to this process (cudaErrorNoDevice); check that a GPU is present and"
        + " what CUDA_VISIBLE_DEVICES says";
  }

  private String noStart(Library library, int status) {
    return "CUDA does not start: cudaGetDeviceCount says "
        + text(library, "cudaGetErrorName", status)
        + " ("
        + status
        + "): "
        + text(library, "cudaGetErrorString", status);
  }

  private String text(Library library, String function, int status) {
    return loader
        .symbol(library, function)
        .map(address -> SystemLoader.callForText(address, status))
        .orElse("an unnamed status");
  }
}
