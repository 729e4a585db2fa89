/**
 * Linear attention on CPU and GPU. Applications use the package {@link io.github.linattn}; the
 * engines behind it are not exported.
 */
module io.github.linattn.runtime {
  requires static jdk.incubator.vector;
  requires static org.jspecify;

  exports io.github.linattn;
  exports io.github.linattn.io;
  exports io.github.linattn.reference;
}
