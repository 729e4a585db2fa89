package io.github.linattn.kernels;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

/** Where the programs of the CUDA toolkit usually stand. */
public final class ToolkitPlaces {
  private ToolkitPlaces() {}

  /**
   * Places to look for a program, the most wanted first: CUDA_HOME/bin, the folders of the PATH
   * that have it, and /usr/local/cuda/bin.
   *
   * @param program its name, such as nvcc
   */
  public static List<Path> of(String program) {
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
}
