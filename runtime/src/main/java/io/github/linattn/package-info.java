/**
 * Linear attention with the kernel f(x) = a + b·x, forward and backward, on CPU and GPU.
 *
 * <p>Start at {@link io.github.linattn.LinearAttention}. For applications. A {@link
 * io.github.linattn.Backend} may be used from many threads, a {@link io.github.linattn.Stream} from
 * one at a time; tensors may be passed between threads. Whoever creates an {@link
 * java.lang.AutoCloseable} of this package closes it.
 */
@NullMarked
package io.github.linattn;

import org.jspecify.annotations.NullMarked;
