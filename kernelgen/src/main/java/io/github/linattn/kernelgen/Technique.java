package io.github.linattn.kernelgen;

/** What a kernel multiplies with. */
public enum Technique {
  /** Products of warpgroups: sm_90a alone. */
  WGMMA("wgmma"),
  /** Tensor cores by the warp: every architecture. */
  MMA("mma"),
  /** fp32 arithmetic of each thread: every architecture. */
  SIMT("simt");

  private final String id;

  Technique(String id) {
    this.id = id;
  }

  /** The name in symbols and manifests. */
  public String id() {
    return id;
  }

  /**
   * The technique with this id.
   *
   * @throws IllegalArgumentException if there is none; the message lists those there are
   */
  public static Technique parse(String id) {
    return Ids.find(Technique.class, Technique::id, id);
  }
}
