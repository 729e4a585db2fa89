package io.github.linattn.kernelgen;

import java.util.Arrays;
import java.util.function.Function;
import java.util.stream.Collectors;

/** Looks an enum constant up by the id it has in symbols and manifests. */
final class Ids {
  private Ids() {}

  static <E extends Enum<E>> E find(Class<E> type, Function<E, String> id, String wanted) {
    for (E constant : type.getEnumConstants()) {
      if (id.apply(constant).equals(wanted)) {
        return constant;
      }
    }
    String known = Arrays.stream(type.getEnumConstants()).map(id).collect(Collectors.joining(", "));
    throw new IllegalArgumentException(
        "no " + type.getSimpleName() + " \"" + wanted + "\"; known: " + known);
  }
}
