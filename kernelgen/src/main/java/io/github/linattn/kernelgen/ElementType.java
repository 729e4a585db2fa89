package io.github.linattn.kernelgen;

/** Type of the elements of the tensors a kernel reads and writes; states are always fp32. */
public enum ElementType {
  /** IEEE binary32. */
  F32("f32", 4),
  /** The upper half of a binary32. */
  BF16("bf16", 2),
  /** IEEE binary16. */
  F16("f16", 2);

  private final String id;
  private final int bytes;

  ElementType(String id, int bytes) {
    this.id = id;
    this.bytes = bytes;
  }

  /** The name in symbols and manifests. */
  public String id() {
    return id;
  }

  /** Size of one element in bytes. */
  public int bytes() {
    return bytes;
  }

  /**
   * The element type with this id.
   *
   * @throws IllegalArgumentException if there is none; the message lists those there are
   */
  public static ElementType parse(String id) {
    return Ids.find(ElementType.class, ElementType::id, id);
  }
}
