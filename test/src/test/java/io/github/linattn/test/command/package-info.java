/**
 * The command line as its users meet it: the script {@code linattn}, started as a process. Called
 * by JUnit alone; one thread.
 */
@NullMarked
package io.github.linattn.test.command;

import org.jspecify.annotations.NullMarked;
