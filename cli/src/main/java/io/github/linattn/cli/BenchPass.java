package io.github.linattn.cli;

import java.util.List;

/** What a benchmark times. */
enum BenchPass {
  FORWARD(List.of(Quantity.O, Quantity.G)),
  BACKWARD(List.of(Quantity.DQ, Quantity.DK, Quantity.DV, Quantity.DA, Quantity.DB)),
  /** A forward and its backward, one behind the other. */
  BOTH(BACKWARD.quantities);

  private final List<Quantity> quantities;

  BenchPass(List<Quantity> quantities) {
    this.quantities = quantities;
  }

  /** Whose errors a row shows. */
  List<Quantity> quantities() {
    return quantities;
  }

  boolean hasForward() {
    return this != BACKWARD;
  }

  boolean hasBackward() {
    return this != FORWARD;
  }
}
