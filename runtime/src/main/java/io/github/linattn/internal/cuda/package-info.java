/**
 * The engine that computes on one NVIDIA GPU through the CUDA Runtime. Called by the API only. Work
 * of a stream is queued under that stream's lock; every entry makes the engine's device the current
 * one of the calling thread.
 */
@NullMarked
package io.github.linattn.internal.cuda;

import org.jspecify.annotations.NullMarked;
