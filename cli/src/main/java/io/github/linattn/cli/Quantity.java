package io.github.linattn.cli;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.reference.ErrorBudget;

/** What a check compares. */
enum Quantity {
  O("o"),
  G("g"),
  DQ("dq"),
  DK("dk"),
  DV("dv"),
  DA("da"),
  DB("db"),
  STATE("state"),
  DSTATE("dstate");

  private final String title;

  Quantity(String title) {
    this.title = title;
  }

  String title() {
    return title;
  }

  double bound(DType dtype, Mode mode) {
    return switch (this) {
      case O, G, STATE, DSTATE -> ErrorBudget.of(dtype, mode);
      case DQ, DK, DV -> ErrorBudget.ofGradients(dtype, mode);
      case DA, DB -> ErrorBudget.ofCoefficients(dtype, mode);
    };
  }
}
