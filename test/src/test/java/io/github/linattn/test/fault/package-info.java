/**
 * The CUDA backend against a libcudart compiled from C that does what it is told, also to fail. In
 * a JVM of their own, because a process loads one libcudart. Called by JUnit, one thread.
 */
@NullMarked
package io.github.linattn.test.fault;

import org.jspecify.annotations.NullMarked;
