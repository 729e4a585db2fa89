package io.github.linattn.bindings;

/**
 * Work for a stream that was checked once and is given to it by {@link Cuda#run}, again and again.
 * One thread at a time.
 */
public sealed interface Prepared permits PreparedClear, PreparedCopy, PreparedLaunch {}
