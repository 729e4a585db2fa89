package io.github.linattn.kernelgen;

import java.util.List;

/** What nvcc compiles a kernel for: machine code of one architecture, or PTX for later ones. */
public enum Architecture {
  /** A100. */
  SM_80("sm_80", "arch=compute_80,code=sm_80"),
  /** GeForce 30, A10. */
  SM_86("sm_86", "arch=compute_86,code=sm_86"),
  /** GeForce 40, L4, L40. */
  SM_89("sm_89", "arch=compute_89,code=sm_89"),
  /** H100, H200. */
  SM_90("sm_90", "arch=compute_90,code=sm_90"),
  /** B100, B200. */
  SM_100("sm_100", "arch=compute_100,code=sm_100"),
  /** GeForce 50. */
  SM_120("sm_120", "arch=compute_120,code=sm_120"),
  /** PTX of compute_80: the driver compiles it for any architecture from 8.0 on. */
  PTX("ptx", "arch=compute_80,code=compute_80");

  private final String id;
  private final String gencode;

  Architecture(String id, String gencode) {
    this.id = id;
    this.gencode = gencode;
  }

  /** The name on command lines and in manifests. */
  public String id() {
    return id;
  }

  /** The arguments that make nvcc compile for it. */
  public List<String> nvccArguments() {
    return List.of("-gencode", gencode);
  }

  /** Whether ptxas runs for it at build time, and so reports registers and spills. */
  public boolean isMachineCode() {
    return this != PTX;
  }

  /**
   * The architecture with this id.
   *
   * @throws IllegalArgumentException if there is none; the message lists those there are
   */
  public static Architecture parse(String id) {
    return Ids.find(Architecture.class, Architecture::id, id);
  }
}
