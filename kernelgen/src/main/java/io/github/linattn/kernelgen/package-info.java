/**
 * From {@link io.github.linattn.kernelgen.KernelSpec} to CUDA text and manifest lines.
 *
 * <p>Callers: the kernel build, which compiles what is emitted here, and the runtime, which reads
 * the manifest. Every type is immutable or static and may be used from any thread.
 */
@NullMarked
package io.github.linattn.kernelgen;

import org.jspecify.annotations.NullMarked;
