package io.github.linattn.bench;

import static java.lang.foreign.ValueLayout.JAVA_INT;

import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.CudaLibrary;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.invoke.MethodHandle;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.Warmup;

/** Cost of one call into native code, by a method handle and by JNI. */
@Fork(1)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
public class DowncallBenchmark {
  private static final MethodHandle ABS =
      Linker.nativeLinker()
          .downcallHandle(
              Linker.nativeLinker().defaultLookup().find("abs").orElseThrow(),
              FunctionDescriptor.of(JAVA_INT, JAVA_INT));

  /** The CUDA Runtime; the exception of a machine without one says why there is no figure. */
  @State(Scope.Benchmark)
  @SuppressWarnings("NullAway.Init") // JMH calls setUp first
  public static class Runtime {
    private Cuda cuda;

    /** Finds the library. */
    @Setup
    public void setUp() {
      if (!(CudaLibrary.load() instanceof CudaLibrary.Found found)) {
        throw new IllegalStateException(((CudaLibrary.Missing) CudaLibrary.load()).reason());
      }
      cuda = found.cuda();
    }
  }

  /** The C side of JNI; the exception of a machine without gcc says why there is no figure. */
  @State(Scope.Benchmark)
  public static class Jni {
    /** Compiles and loads it. */
    @Setup
    public void setUp() {
      JniFunction.load();
    }
  }

  /** A C function that does next to nothing: the call itself. */
  @Benchmark
  public int emptyCall() throws Throwable {
    return (int) ABS.invokeExact(-1);
  }

  /** The same function behind JNI. */
  @Benchmark
  public int emptyCallByJni(Jni loaded) {
    return JniFunction.abs(-1);
  }

  /** The call with which every entry into the GPU backend begins, status check included. */
  @Benchmark
  public void setDevice(Runtime runtime) {
    runtime.cuda.setDevice(0);
  }
}
