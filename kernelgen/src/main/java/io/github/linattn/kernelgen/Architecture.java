package io.github.linattn.kernelgen;

import java.util.List;

/** What nvcc compiles a kernel for: machine code of one architecture, or PTX for later ones. */
public enum Architecture {
  /** A100. */
  SM_80("sm_80", "arch=compute_80,code=sm_80", 80, 163),
  /** GeForce 30, A10. */
  SM_86("sm_86", "arch=compute_86,code=sm_86", 86, 99),
  /** GeForce 40, L4, L40. */
  SM_89("sm_89", "arch=compute_89,code=sm_89", 89, 99),
  /** H100, H200. */
  SM_90("sm_90", "arch=compute_90,code=sm_90", 90, 227),
  /** H100, H200 with what no later architecture kept: warpgroup products. */
  SM_90A("sm_90a", "arch=compute_90a,code=sm_90a", 90, 227),
  /** B100, B200. */
  SM_100("sm_100", "arch=compute_100,code=sm_100", 100, 227),
  /** GeForce 50. */
  SM_120("sm_120", "arch=compute_120,code=sm_120", 120, 99),
  /** PTX of compute_80: the driver compiles it for any architecture from 8.0 on. */
  PTX("ptx", "arch=compute_80,code=compute_80", 80, 163);

  private final String id;
  private final String gencode;
  private final int capability;
  private final int sharedKibibytes;

  Architecture(String id, String gencode, int capability, int sharedKibibytes) {
    this.id = id;
    this.gencode = gencode;
    this.capability = capability;
    this.sharedKibibytes = sharedKibibytes;
  }

  /** The name on command lines and in manifests. */
  public String id() {
    return id;
  }

  /** The arguments that make nvcc compile for it. */
  public List<String> nvccArguments() {
    return List.of("-gencode", gencode);
  }

  /** Major and minor compute capability of its GPUs, such as 90; of PTX the least. */
  public int capability() {
    return capability;
  }

  /** The most shared memory that a block may ask for on its GPUs, in bytes. */
  public int sharedBytes() {
    return sharedKibibytes * 1024;
  }

  /** Whether ptxas runs for it at build time, and so reports registers and spills. */
  public boolean isMachineCode() {
    return this != PTX;
  }

  /**
   * Whether a GPU runs what is compiled for it: machine code on the same major capability and no
   * lesser minor one, that of sm_90a on 9.0 alone, PTX on anything later.
   *
   * @param deviceCapability major and minor compute capability, such as 90
   */
  public boolean runsOn(int deviceCapability) {
    return switch (this) {
      case PTX -> deviceCapability >= capability;
      case SM_90A -> deviceCapability == capability;
      default -> deviceCapability / 10 == capability / 10 && deviceCapability >= capability;
    };
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
