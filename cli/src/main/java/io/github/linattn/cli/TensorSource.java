package io.github.linattn.cli;

import io.github.linattn.files.FileReason;
import io.github.linattn.io.Npy;
import io.github.linattn.io.SafeTensors;
import io.github.linattn.io.StoredTensor;
import java.io.IOException;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/** Tensors by name: those of one safetensors file, or of an {@code .npy} each. */
final class TensorSource implements AutoCloseable {
  private final Function<String, StoredTensor> tensors;
  private final Map<String, String> metadata;
  private final Runnable closer;

  private TensorSource(
      Function<String, StoredTensor> tensors, Map<String, String> metadata, Runnable closer) {
    this.tensors = tensors;
    this.metadata = metadata;
    this.closer = closer;
  }

  /**
   * The tensors of a safetensors file.
   *
   * @throws CommandFailure if it can't be read
   */
  static TensorSource of(Path file) {
    try {
      SafeTensors opened = SafeTensors.open(file);
      return new TensorSource(opened::tensor, opened.metadata(), opened::close);
    } catch (IOException e) {
      throw unreadable(file, e);
    }
  }

  /**
   * The arrays of these files, by the names of the options that named them.
   *
   * @throws CommandFailure if one can't be read
   */
  static TensorSource of(Map<String, Path> files) {
    Map<String, Npy> opened = new LinkedHashMap<>();
    var source =
        new TensorSource(
            name -> array(opened, name).tensor(),
            Map.of(),
            () -> opened.values().forEach(Npy::close));
    for (var file : files.entrySet()) {
      try {
        opened.put(file.getKey(), Npy.open(file.getValue()));
      } catch (IOException e) {
        source.close();
        throw unreadable(file.getValue(), e);
      }
    }
    return source;
  }

  private static Npy array(Map<String, Npy> opened, String name) {
    Npy array = opened.get(name);
    if (array == null) {
      String cure = name.equals("do") ? "--grad needs it" : "give q, k and v as --q, --k and --v";
      throw new IllegalArgumentException("--%s is missing: %s".formatted(name, cure));
    }
    return array;
  }

  private static CommandFailure unreadable(Path file, IOException e) {
    String reason = FileReason.of(e);
    String name = file.toString();
    if (reason.startsWith(name + ": ")) {
      reason = reason.substring(name.length() + 2);
    } else if (reason.startsWith(name + " ")) { // "FILE has 3 bytes"
      reason = "it" + reason.substring(name.length());
    }
    return CommandFailure.misuse("can't read %s: %s", file, reason);
  }

  /**
   * One tensor, in place.
   *
   * @throws CommandFailure if there is none of this name
   */
  StoredTensor tensor(String name) {
    try {
      return tensors.apply(name);
    } catch (IllegalArgumentException e) {
      throw CommandFailure.misuse(e);
    }
  }

  /** What the file says of itself under this key, or null. */
  @Nullable String metadata(String key) {
    return metadata.get(key);
  }

  /** Ends the mappings. */
  @Override
  public void close() {
    closer.run();
  }
}
