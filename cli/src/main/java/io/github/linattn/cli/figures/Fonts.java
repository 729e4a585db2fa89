package io.github.linattn.cli.figures;

import java.awt.Font;
import java.awt.font.FontRenderContext;
import java.util.Optional;

/** Whether this machine can draw letters; AWT tells only once it measures the first one. */
public final class Fonts {
  private Fonts() {}

  /** What AWT says where it finds no fonts, or empty. */
  public static Optional<RuntimeException> missing() {
    Font font = new Font(Font.SANS_SERIF, Font.PLAIN, 12);
    try {
      font.getLineMetrics("D", new FontRenderContext(null, true, true));
      return Optional.empty();
    } catch (RuntimeException none) {
      return Optional.of(none);
    }
  }
}
