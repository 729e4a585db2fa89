/**
 * The search for libcudart and the one class that calls it, {@link
 * io.github.linattn.bindings.Cuda}.
 *
 * <p>Callers: the module {@code io.github.linattn.runtime} alone; the package is exported to nobody
 * else, and the generated package below it to nobody at all. Threads: {@link
 * io.github.linattn.bindings.CudaLibrary} and {@link io.github.linattn.bindings.Cuda} may be used
 * from every thread; CUDA's current device belongs to the calling thread; each handle says what
 * holds for it.
 */
@NullMarked
package io.github.linattn.bindings;

import org.jspecify.annotations.NullMarked;
