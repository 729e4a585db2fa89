package io.github.linattn.bindings;

/**
 * What a loaded kernel takes. Immutable.
 *
 * @param registersPerThread 32-bit registers
 * @param staticSharedBytes shared memory of a block that is fixed in its code
 * @param localBytesPerThread local memory: spills and indexed arrays
 * @param maxThreadsPerBlock the largest block that can be launched
 * @param maxDynamicSharedBytes the most dynamic shared memory a launch may ask for at present
 */
public record KernelResources(
    int registersPerThread,
    long staticSharedBytes,
    long localBytesPerThread,
    int maxThreadsPerBlock,
    int maxDynamicSharedBytes) {}
