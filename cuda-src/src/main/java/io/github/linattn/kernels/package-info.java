/**
 * Building and reading CUDA kernels. No GPU is touched here.
 *
 * <p>Callers: the build of this module, the runtime, which loads the images, and the command line,
 * which generates kernels for further head dimensions. Values are immutable; a build may run in one
 * thread per output folder, builds into a cache wait for each other.
 */
@NullMarked
package io.github.linattn.kernels;

import org.jspecify.annotations.NullMarked;
