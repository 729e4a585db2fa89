package io.github.linattn.internal.cpu;

import jdk.incubator.vector.FloatVector;

/** Makes the fastest kind of matrix kernel that the JVM has. */
public final class MatrixKernels {
  /** Narrowest vector that the blocked kernel is written for. */
  private static final int MIN_LANES = 4;

  private static final boolean VECTORS = areThere();

  private MatrixKernels() {}

  static MatrixKernel create() {
    return VECTORS ? new VectorMatrixKernel() : new ScalarMatrixKernel();
  }

  /** Name of the chosen kernel, with the cure where it is the slow one. */
  public static String describe() {
    return VECTORS
        ? create().name()
        : "scalar (start java with --add-modules jdk.incubator.vector for the Vector API)";
  }

  private static boolean areThere() {
    boolean present =
        ModuleLayer.boot().findModule("jdk.incubator.vector").isPresent()
            && !Boolean.getBoolean("linattn.scalar");
    return present && VectorProbe.lanes() >= MIN_LANES;
  }

  /** Loaded only where the incubator module is. */
  private static final class VectorProbe {
    private VectorProbe() {}

    static int lanes() {
      return FloatVector.SPECIES_PREFERRED.length();
    }
  }
}
