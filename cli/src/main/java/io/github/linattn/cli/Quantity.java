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
    return this == DA || this == DB
        ? ErrorBudget.ofCoefficients(dtype, mode)
        : ErrorBudget.of(dtype, mode);
  }
}
