/**
 * The kernel generator: a typed specification becomes a resource plan, readable CUDA text and one
 * line of a manifest. Pure: no GPU, no foreign calls, no clock, no environment.
 */
module io.github.linattn.kernelgen {
  requires static org.jspecify;

  exports io.github.linattn.kernelgen;
}
