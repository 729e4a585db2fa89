package io.github.linattn.cli.points;

/** What became of a point. */
public enum Status {
  /** Timed, and right as far as that was checked. */
  OK,
  /** Needs more memory than there is. */
  OUT_OF_MEMORY,
  /** The method is not here, or does not do this problem. */
  MISSING,
  /** Wrong results, or an error. */
  FAILED;

  /** Whether a further run need not measure the point again. */
  public boolean stands() {
    return this == OK || this == OUT_OF_MEMORY;
  }
}
