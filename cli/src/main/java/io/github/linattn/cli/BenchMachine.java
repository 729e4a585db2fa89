package io.github.linattn.cli;

import io.github.linattn.Diagnostics;
import java.io.IOException;
import java.time.Instant;
import java.time.temporal.ChronoUnit;

/**
 * Where and with what a benchmark ran.
 *
 * @param time when it began
 * @param driver newest CUDA version that the driver supports
 * @param runtime version of the CUDA Runtime
 * @param family of kernels
 */
record BenchMachine(
    String time,
    String gpu,
    String architecture,
    String driver,
    String runtime,
    String java,
    String linattn,
    String family) {

  static BenchMachine here(String family) throws IOException {
    Diagnostics.CudaRuntime cuda = Diagnostics.cuda().orElseThrow();
    Diagnostics.Gpu gpu = cuda.gpus().getFirst();
    return new BenchMachine(
        Instant.now().truncatedTo(ChronoUnit.SECONDS).toString(),
        gpu.name(),
        gpu.architecture(),
        cuda.driverVersion(),
        cuda.runtimeVersion(),
        Runtime.version().toString(),
        Version.text(),
        family);
  }
}
