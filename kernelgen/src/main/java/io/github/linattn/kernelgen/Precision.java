package io.github.linattn.kernelgen;

/** How exactly the products of a kernel are formed. Sums are fp32 in each of them. */
public enum Precision {
  /** 16-bit tensors as they are; states and weights rounded to their type. */
  NATIVE("native", 1),
  /** fp32 rounded to fp16, scaled: 11 significant bits, as TF32 has. */
  TF32("tf32", 1),
  /** fp32 as the sum of two bf16, three products: 16 significant bits. */
  DEFAULT("default", 3),
  /** fp32 as the sum of two fp16, scaled, three products; or fp32 arithmetic. */
  ACCURATE("accurate", 3);

  private final String id;
  private final int products;

  Precision(String id, int products) {
    this.id = id;
    this.products = products;
  }

  /** The name in symbols and manifests. */
  public String id() {
    return id;
  }

  /** Products of 16-bit operands that tensor cores form for each product of the formula. */
  public int products() {
    return products;
  }

  /** Type of the operands of tensor cores. */
  ElementType operand(ElementType element) {
    return switch (this) {
      case NATIVE -> element;
      case TF32, ACCURATE -> ElementType.F16;
      case DEFAULT -> ElementType.BF16;
    };
  }

  /** Whether tensors of this type can be computed so. */
  boolean fits(ElementType element) {
    return (this == NATIVE) == (element != ElementType.F32);
  }

  /**
   * The precision with this id.
   *
   * @throws IllegalArgumentException if there is none; the message lists those there are
   */
  public static Precision parse(String id) {
    return Ids.find(Precision.class, Precision::id, id);
  }
}
