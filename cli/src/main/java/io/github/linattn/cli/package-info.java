/**
 * The commands. For people at a terminal, through the script {@code linattn}, and for tests,
 * through {@link io.github.linattn.cli.Main#run}. One command runs at a time, on the calling
 * thread.
 */
@NullMarked
package io.github.linattn.cli;

import org.jspecify.annotations.NullMarked;
