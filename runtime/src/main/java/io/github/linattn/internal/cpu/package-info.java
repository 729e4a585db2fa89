/**
 * The engine that computes on the CPU. Called by the API only. Each pass runs on its caller's
 * thread and the engine's own; a worker owns its tiles.
 */
@NullMarked
package io.github.linattn.internal.cpu;

import org.jspecify.annotations.NullMarked;
