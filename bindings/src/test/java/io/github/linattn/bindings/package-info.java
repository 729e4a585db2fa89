/**
 * Tests of the search and of the wrapper, against a libcudart that is compiled from C here.
 *
 * <p>Callers: the test engine. Threads: one at a time, as the test double is one per process.
 */
@NullMarked
package io.github.linattn.bindings;

import org.jspecify.annotations.NullMarked;
