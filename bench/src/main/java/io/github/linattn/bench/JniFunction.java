package io.github.linattn.bench;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/** The function of {@link DowncallBenchmark} behind JNI, compiled when it is asked for. */
final class JniFunction {
  private static final String SOURCE = "jni_function.c";

  private JniFunction() {}

  /**
   * Compiles the C side with gcc and loads it.
   *
   * @throws IllegalStateException if there is no gcc or no {@code jni.h}; says which
   */
  static void load() {
    Path include = Path.of(System.getProperty("java.home"), "include");
    if (!Files.exists(include.resolve("jni.h"))) {
      throw new IllegalStateException("no JNI figure: this Java has no " + include + "/jni.h");
    }
    try (InputStream source = JniFunction.class.getResourceAsStream(SOURCE)) {
      Path library = Files.createTempFile("linattn-jni", ".so");
      library.toFile().deleteOnExit();
      compile(source.readAllBytes(), include, library);
      System.load(library.toString());
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private static void compile(byte[] source, Path include, Path library) throws IOException {
    Process gcc;
    try {
      gcc =
          new ProcessBuilder(
                  "gcc",
                  "-O2",
                  "-shared",
                  "-fPIC",
                  "-I" + include,
                  "-I" + include + "/linux",
                  "-o",
                  library.toString(),
                  "-x",
                  "c",
                  "-")
              .redirectErrorStream(true)
              .start();
    } catch (IOException e) {
      throw new IllegalStateException("no JNI figure: there is no gcc", e);
    }
    gcc.getOutputStream().write(source);
    gcc.getOutputStream().close();
    String said = new String(gcc.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    if (gcc.onExit().join().exitValue() != 0) {
      throw new AssertionError("gcc refused " + SOURCE + ": " + said);
    }
  }

  static native int abs(int value);
}
