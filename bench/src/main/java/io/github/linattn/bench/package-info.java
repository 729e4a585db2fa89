/**
 * Benchmarks: JMH for host time, device events for kernels. Run by hand; every number is printed
 * with what it was measured on.
 */
@NullMarked
package io.github.linattn.bench;

import org.jspecify.annotations.NullMarked;
