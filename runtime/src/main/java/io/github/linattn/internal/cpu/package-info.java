/**
 * The engine that computes on the CPU. Called by the API only. Each pass runs on the engine's own
 * threads; a worker owns its tiles.
 */
@NullMarked
package io.github.linattn.internal.cpu;

import org.jspecify.annotations.NullMarked;
