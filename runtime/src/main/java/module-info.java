/**
 * Linear attention on CPU and GPU. Applications use the package {@link io.github.linattn}; the
 * engines behind it are not exported.
 */
module io.github.linattn.runtime {
  requires io.github.linattn.kernels;
  requires transitive io.github.linattn.bindings;
  requires jdk.management;
  requires static jdk.incubator.vector;
  requires static org.jspecify;

  exports io.github.linattn;
  exports io.github.linattn.files to
      io.github.linattn.cli;
  exports io.github.linattn.io;
  exports io.github.linattn.reference;
}
