package io.github.linattn.kernelgen;

/** A family of kernels: one algorithm for every operation. */
public enum Family {
  /**
   * Algorithms 1 to 4 of the paper: the state in registers, one value column per thread, the key
   * dimension cut into L slices.
   *
   * @see <a href="https://arxiv.org/abs/2510.21956">Gerami and Duraiswami 2025</a>
   */
  PAPER("paper"),

  /**
   * Chunks of 64 tokens on tensor cores, for causal and other attention, every element type, packed
   * sequences, grouped heads and strides.
   */
  CHUNKED("chunked");

  private final String id;

  Family(String id) {
    this.id = id;
  }

  /** The name in symbols and manifests. */
  public String id() {
    return id;
  }

  /**
   * The family with this id.
   *
   * @throws IllegalArgumentException if there is none; the message lists those there are
   */
  public static Family parse(String id) {
    return Ids.find(Family.class, Family::id, id);
  }
}
