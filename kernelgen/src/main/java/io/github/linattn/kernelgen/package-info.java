/**
 * From {@link io.github.linattn.kernelgen.KernelSpec} to CUDA text and manifest lines.
 *
 * <p>Callers: the kernel build, which compiles what is emitted here, the runtime, which reads the
 * manifest, and the command line, which has kernels made for a head dimension. Every type is
 * immutable or static and may be used from any thread.
 */
@NullMarked
package io.github.linattn.kernelgen;

import org.jspecify.annotations.NullMarked;
