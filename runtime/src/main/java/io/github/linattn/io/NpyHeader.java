package io.github.linattn.io;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/**
 * What the header of a file {@code .npy} says: a Python dictionary with the keys {@code descr},
 * {@code fortran_order} and {@code shape}.
 *
 * @param dtype as {@link StoredTensor} spells it
 */
record NpyHeader(String dtype, List<Long> shape) {
  private static final Map<String, String> DTYPES =
      Map.of("<f4", "F32", "<f2", "F16", "<i8", "I64");

  // Loops over single characters alone, so that no text can exhaust the stack or take long.
  private static final Pattern START = Pattern.compile("\\s*+\\{\\s*+");
  private static final Pattern ENTRY =
      Pattern.compile(
          "(['\"])(?<key>[^'\"]*+)\\1\\s*+:\\s*+"
              + "(?:(['\"])(?<text>[^'\"]*+)\\3|(?<word>\\w++)"
              + "|\\((?<tuple>[^()]*+)\\)|(?<list>\\[[^\\]}]*+\\]))"
              + "\\s*+(?:,\\s*+|(?=\\}))");
  private static final Pattern END = Pattern.compile("\\}\\s*+");
  private static final Pattern EXTENT = Pattern.compile("\\s*+(0|[1-9]\\d{0,18}+)\\s*+");

  /** Copies the shape. */
  NpyHeader {
    shape = List.copyOf(shape);
  }

  /**
   * Reads a header.
   *
   * @throws IllegalArgumentException saying what is wrong or not read
   */
  static NpyHeader parse(String text) {
    Matcher at = START.matcher(text);
    if (!at.lookingAt()) {
      throw broken("its header is no dictionary");
    }
    Map<String, Value> values = new HashMap<>();
    at.region(at.end(), text.length()).usePattern(ENTRY);
    while (at.lookingAt()) {
      if (values.put(at.group("key"), Value.of(at)) != null) {
        throw broken("its header has '%s' twice", at.group("key"));
      }
      at.region(at.end(), text.length());
    }
    if (!at.usePattern(END).matches()) {
      throw broken("its header can't be read from character %d on", at.regionStart());
    }
    if (values.size() > 3) {
      throw broken("its header has other keys than descr, fortran_order and shape");
    }
    String dtype = dtype(required(values, "descr"));
    requireRowMajor(required(values, "fortran_order"));
    return new NpyHeader(dtype, shape(required(values, "shape")));
  }

  private static Value required(Map<String, Value> values, String key) {
    Value value = values.get(key);
    if (value == null) {
      throw broken("its header has no '%s'", key);
    }
    return value;
  }

  private enum Kind {
    TEXT,
    WORD,
    TUPLE,
    LIST
  }

  private record Value(Kind kind, String text) {
    static Value of(Matcher entry) {
      for (Kind kind : Kind.values()) {
        String text = entry.group(kind.name().toLowerCase(Locale.ROOT));
        if (text != null) {
          return new Value(kind, text);
        }
      }
      throw new AssertionError("an entry without a value: " + entry.group());
    }
  }

  private static String dtype(Value descr) {
    if (descr.kind == Kind.LIST) {
      throw broken("its elements have fields; only <f4, <f2 and <i8 are read");
    }
    String known = DTYPES.get(descr.text);
    if (descr.kind == Kind.TEXT && known != null) {
      return known;
    }
    if (descr.text.startsWith(">")) {
      throw broken(
          "its elements '%s' are big-endian; write it again with x.astype('%s')",
          descr.text, "<" + descr.text.substring(1));
    }
    if (descr.text.endsWith("V2")) {
      throw broken(
          "its elements are '%s', perhaps bf16, for which numpy has no type; a .safetensors file"
              + " holds bf16",
          descr.text);
    }
    throw broken(
        "its elements are '%s'; only <f4, <f2 and <i8 are read, as x.astype('<f4') makes them",
        descr.text);
  }

  private static void requireRowMajor(Value fortranOrder) {
    switch (fortranOrder.text) {
      case "False" -> {}
      case "True" ->
          throw broken(
              "its elements lie in Fortran order; write it again with np.ascontiguousarray(x)");
      default -> throw broken("its fortran_order is neither True nor False");
    }
  }

  private static List<Long> shape(Value tuple) {
    if (tuple.kind != Kind.TUPLE) {
      throw broken("its shape is no tuple");
    }
    List<Long> shape = new ArrayList<>();
    if (tuple.text.isBlank()) {
      return shape;
    }
    String[] extents = tuple.text.split(",", -1);
    boolean trailing =
        extents[extents.length - 1].isBlank(); // (3,) has one extent, (3) is no tuple
    int count = extents.length - (trailing ? 1 : 0);
    for (int i = 0; i < count; i++) {
      Matcher extent = EXTENT.matcher(extents[i]);
      if (!extent.matches() || extents.length == 1) {
        throw broken("its shape is (%s)", tuple.text);
      }
      try {
        shape.add(Long.parseLong(extent.group(1)));
      } catch (NumberFormatException e) {
        throw broken("its shape is (%s), with more than 2^63 elements", tuple.text);
      }
    }
    return shape;
  }

  /** The header as numpy writes it, without the padding. */
  String dictionary() {
    String descr =
        DTYPES.entrySet().stream()
            .filter(known -> known.getValue().equals(dtype))
            .map(Map.Entry::getKey)
            .findFirst()
            .orElseThrow(
                () -> broken("numpy has no type for %s; an .npy holds F32, F16 or I64", dtype));
    String extents =
        switch (shape.size()) {
          case 1 -> shape.getFirst() + ",";
          default -> shape.stream().map(String::valueOf).collect(Collectors.joining(", "));
        };
    return "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }".formatted(descr, extents);
  }

  private static IllegalArgumentException broken(String sentence, Object... values) {
    return new IllegalArgumentException(String.format(Locale.ROOT, sentence, values));
  }
}
