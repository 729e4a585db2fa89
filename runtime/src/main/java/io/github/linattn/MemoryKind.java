package io.github.linattn;

/** Where the elements of a {@link Tensor} live and who can read them. */
public enum MemoryKind {
  /** Memory of this process; read by the CPU. */
  HOST,
  /** Page-locked memory of this process; read by the CPU and, in place, by the GPU. */
  PINNED,
  /** Memory of one GPU. */
  DEVICE
}
