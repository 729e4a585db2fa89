package io.github.linattn.bindings;

/** When a launch may start. Immutable. */
public enum LaunchOrder {
  /** When the earlier work of its stream has ended. */
  IN_TURN,
  /**
   * While the kernel before it in its stream still runs, as soon as that lets it. The kernel itself
   * waits for the earlier ones before it touches what they write, and every block of it does so.
   * For GPUs from sm_90 on.
   */
  EARLY
}
