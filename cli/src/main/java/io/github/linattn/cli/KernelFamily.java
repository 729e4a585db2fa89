package io.github.linattn.cli;

import io.github.linattn.Backend;

/** Opens a backend whose GPU computes by one family of kernels. */
final class KernelFamily {
  static final String CHUNKED = "chunked";

  /** The paper's Algorithms 1 to 4. */
  static final String PAPER = "paper";

  /** The runtime reads it when it opens a GPU. */
  static final String PROPERTY = "linattn.family";

  /** It reads this where the property is not set. */
  static final String VARIABLE = "LINATTN_FAMILY";

  private KernelFamily() {}

  static Backend open(String family, BackendChoice choice, Console console) {
    String before = System.setProperty(PROPERTY, family);
    try {
      return choice.open(console);
    } finally {
      if (before == null) {
        System.clearProperty(PROPERTY);
      } else {
        System.setProperty(PROPERTY, before);
      }
    }
  }
}
