package io.github.linattn.kernelgen;

/**
 * A part of a block's shared memory.
 *
 * @param name what it holds, with its shape
 * @param offset in bytes from the start, a multiple of 16
 * @param bytes its size
 */
public record SharedRegion(String name, int offset, int bytes) {
  public SharedRegion {
    if (offset < 0 || offset % 16 != 0 || bytes < 1) {
      throw new IllegalArgumentException(
          "a region starts at a multiple of 16 and is not empty: "
              + name
              + " at "
              + offset
              + ", "
              + bytes
              + " bytes");
    }
  }
}
