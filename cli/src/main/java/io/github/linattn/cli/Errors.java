package io.github.linattn.cli;

import java.util.EnumMap;
import java.util.Map;
import java.util.Objects;

/** Relative errors of one run; a quantity that the run does not have is absent. */
record Errors(Map<Quantity, Double> values) {

  Errors() {
    this(new EnumMap<>(Quantity.class));
  }

  /** Notes an error; of several the largest, NaN if one is. */
  void put(Quantity quantity, double error) {
    values.merge(quantity, error, Math::max);
  }

  double of(Quantity quantity) {
    return Objects.requireNonNull(values.get(quantity));
  }

  /** NaN if one is. */
  double largest() {
    return values.values().stream().reduce(0.0, Math::max);
  }

  /** Whether every error is within its bound; a NaN is not. */
  boolean within(Precision precision) {
    return values.entrySet().stream()
        .allMatch(e -> e.getValue() <= e.getKey().bound(precision.dtype(), precision.mode()));
  }

  /** One column for each quantity. */
  String columns() {
    var text = new StringBuilder();
    for (Quantity quantity : Quantity.values()) {
      Double error = values.get(quantity);
      text.append(error == null ? "       -" : Text.format(" %7.1e", error));
    }
    return text.toString();
  }

  static String titles() {
    var text = new StringBuilder();
    for (Quantity quantity : Quantity.values()) {
      text.append(Text.format(" %7s", quantity.title()));
    }
    return text.toString();
  }
}
