package io.github.linattn;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * What a backend would do for a shape, known before any launch. Immutable; any thread.
 *
 * @param backend name of the backend
 * @param forward steps and bytes of a forward pass
 * @param backward steps and bytes of a backward pass
 */
public record Plan(String backend, Pass forward, Pass backward) {

  /**
   * One pass.
   *
   * @param steps kernels or loops, in the order they run; none where the backend can't do it
   * @param resultBytes bytes of the tensors it writes
   * @param workspaceBytes bytes it takes besides. A stream of a GPU keeps them until it closes;
   *     where a later call needs more, it takes up to twice as much, so that it need not grow for
   *     each. Kernels of the family {@code paper} give theirs back. Lists of what is packed come
   *     beside: 64 KiB, or up to 64 MiB where packings differ from call to call, and as much for
   *     graphs that are open
   * @param estimatedMicros what the cost model expects, or 0 where there is none
   * @param summary the steps in a few words, such as {@code segments 1280, wgmma} or {@code one
   *     pass, wgmma*2}: the way, the tokens of a segment if a sequence has several, the technique,
   *     and how many blocks write its chunks in turn; empty where there is no choice
   * @param reason why these steps, or empty where there is no choice
   */
  public record Pass(
      List<String> steps,
      long resultBytes,
      long workspaceBytes,
      double estimatedMicros,
      String summary,
      String reason) {
    /** A pass without a choice. */
    public Pass(List<String> steps, long resultBytes, long workspaceBytes) {
      this(steps, resultBytes, workspaceBytes, 0, "", "");
    }

    /** Copies the steps. */
    public Pass {
      steps = List.copyOf(steps);
    }
  }

  /** The plan as text for a person; of equal steps the first, with their number. */
  public String describe() {
    return describe("forward", forward) + describe("backward", backward);
  }

  private String describe(String name, Pass pass) {
    if (pass.steps().isEmpty()) {
      return String.format(Locale.ROOT, "%s on %s: %s%n", name, backend, pass.reason());
    }
    var text = new StringBuilder();
    text.append(
        String.format(
            Locale.ROOT,
            "%s on %s: results %.1f MB, workspace %.1f MB%n",
            name,
            backend,
            pass.resultBytes() / 1e6,
            pass.workspaceBytes() / 1e6));
    if (!pass.reason().isEmpty()) {
      text.append(
          String.format(Locale.ROOT, "  %.1f µs: %s%n", pass.estimatedMicros(), pass.reason()));
    }
    Map<String, Integer> counts = new LinkedHashMap<>();
    pass.steps().forEach(step -> counts.merge(step, 1, Integer::sum));
    counts.forEach(
        (step, count) ->
            text.append(
                String.format(
                    Locale.ROOT, "  %s%s%n", step, count == 1 ? "" : ", " + count + " times")));
    return text.toString();
  }
}
