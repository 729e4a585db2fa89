/**
 * The CUDA Runtime for linattn: generated bindings, and one checked wrapper over them; and where an
 * array of the heap lies.
 *
 * <p>Only this module makes native calls, and raw pointers stop at its wrapper, which the runtime
 * module alone may use. What everybody may see is the exception that a failed CUDA call becomes.
 */
module io.github.linattn.bindings {
  requires jdk.jfr;
  requires static org.jspecify;

  exports io.github.linattn.cuda;
  exports io.github.linattn.bindings to
      io.github.linattn.runtime;
  exports io.github.linattn.bindings.host to
      io.github.linattn.runtime;
}
