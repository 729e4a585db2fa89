/**
 * Tensor files and tuning files. For the command line, tests and applications; the CUDA engine
 * reads the tuning. A tensor file that is open may be read from many threads; whoever opens it
 * closes it.
 */
@NullMarked
package io.github.linattn.io;

import org.jspecify.annotations.NullMarked;
