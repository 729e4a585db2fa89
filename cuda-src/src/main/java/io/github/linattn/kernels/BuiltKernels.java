package io.github.linattn.kernels;

import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Manifest;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/** Kernels that were built: those in this module, or those of a folder. */
public final class BuiltKernels {

  /** Opens a file beside the manifest. */
  @FunctionalInterface
  interface Folder {
    InputStream open(String name) throws IOException;
  }

  private final Manifest manifest;
  private final String origin;
  private final Folder files;

  private BuiltKernels(Manifest manifest, String origin, Folder files) {
    this.manifest = manifest;
    this.origin = origin;
    this.files = files;
  }

  /**
   * The kernels in this module; none where it was built without nvcc.
   *
   * @throws IOException if the module cannot be read
   */
  public static BuiltKernels shipped() throws IOException {
    return open("the kernels module", BuiltKernels::resource);
  }

  /**
   * The kernels in a folder that {@link KernelBuild#generate} wrote.
   *
   * @throws IOException if it has no manifest or cannot be read
   * @throws IllegalArgumentException if its manifest is wrong
   */
  public static BuiltKernels load(Path folder) throws IOException {
    return open(folder.toString(), name -> Files.newInputStream(folder.resolve(name)));
  }

  /** What there is. */
  public Manifest manifest() {
    return manifest;
  }

  /** Where the kernels come from, for messages. */
  public String origin() {
    return origin;
  }

  /** The image of a kernel, a fatbin for {@code cudaLibraryLoadData}. */
  public byte[] image(KernelEntry entry) throws IOException {
    try (InputStream stream = files.open(entry.file())) {
      return stream.readAllBytes();
    }
  }

  /** The CUDA text of a kernel. */
  String source(KernelEntry entry) throws IOException {
    return text(files, entry.sourceFile());
  }

  static BuiltKernels open(String origin, Folder files) throws IOException {
    return new BuiltKernels(Manifest.parse(text(files, Manifest.FILE)), origin, files);
  }

  private static String text(Folder files, String name) throws IOException {
    try (InputStream stream = files.open(name)) {
      return new String(stream.readAllBytes(), StandardCharsets.UTF_8);
    }
  }

  private static InputStream resource(String name) throws IOException {
    InputStream stream = BuiltKernels.class.getResourceAsStream(name);
    if (stream == null) {
      throw new FileNotFoundException("the kernels module lacks " + name);
    }
    return stream;
  }
}
