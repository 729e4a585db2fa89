/**
 * The CUDA kernels: hand-written device headers, the generated kernels as text and as images, their
 * manifest, and the build that makes them with nvcc.
 */
module io.github.linattn.kernels {
  requires static org.jspecify;
  requires transitive io.github.linattn.kernelgen;

  exports io.github.linattn.kernels;
}
