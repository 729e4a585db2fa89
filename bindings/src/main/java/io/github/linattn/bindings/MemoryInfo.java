package io.github.linattn.bindings;

/**
 * Memory of the current device. Immutable.
 *
 * @param freeBytes what can still be allocated, by everybody together
 * @param totalBytes what the device has
 */
public record MemoryInfo(long freeBytes, long totalBytes) {}
