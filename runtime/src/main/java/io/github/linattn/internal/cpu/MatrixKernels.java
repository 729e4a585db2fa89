package io.github.linattn.internal.cpu;

import jdk.incubator.vector.FloatVector;

/** Chooses the matrix kernel once per JVM. */
public final class MatrixKernels {
  /** Narrowest vector that the blocked kernel is written for. */
  private static final int MIN_LANES = 4;

  private static final MatrixKernel BEST = choose();

  private MatrixKernels() {}

  static MatrixKernel best() {
    return BEST;
  }

  /** Name of the chosen kernel, with the cure where it is the slow one. */
  public static String describe() {
    return BEST instanceof ScalarMatrixKernel
        ? "scalar (start java with --add-modules jdk.incubator.vector for the Vector API)"
        : BEST.name();
  }

  private static MatrixKernel choose() {
    boolean present =
        ModuleLayer.boot().findModule("jdk.incubator.vector").isPresent()
            && !Boolean.getBoolean("linattn.scalar");
    return present && VectorProbe.lanes() >= MIN_LANES
        ? new VectorMatrixKernel()
        : new ScalarMatrixKernel();
  }

  /** Loaded only where the incubator module is. */
  private static final class VectorProbe {
    private VectorProbe() {}

    static int lanes() {
      return FloatVector.SPECIES_PREFERRED.length();
    }
  }
}
