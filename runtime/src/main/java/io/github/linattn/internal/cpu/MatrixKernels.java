package io.github.linattn.internal.cpu;

import com.sun.management.HotSpotDiagnosticMXBean;
import java.lang.management.ManagementFactory;
import java.util.function.IntSupplier;
import jdk.incubator.vector.FloatVector;
import org.jspecify.annotations.Nullable;

/** Makes the fastest kind of matrix kernel that the JVM has. */
public final class MatrixKernels {
  /** Narrowest vector that the blocked kernel is written for. */
  private static final int MIN_LANES = 4;

  private static final boolean SCALAR_WANTED = Boolean.getBoolean("linattn.scalar");

  /** Why the kernel is the slow one; null if it is not. */
  private static final @Nullable String OBSTACLE =
      obstacle(
          SCALAR_WANTED,
          ModuleLayer.boot().findModule("jdk.incubator.vector").isPresent(),
          fusesMultiplyAdd(),
          VectorProbe::lanes);

  static {
    FirstAccess.byElements();
    if (OBSTACLE == null) {
      FirstAccess.ByVectors.make();
    }
  }

  private MatrixKernels() {}

  static MatrixKernel create() {
    return OBSTACLE == null ? new VectorMatrixKernel() : new ScalarMatrixKernel();
  }

  /** Whether the kernel is the slow one, and nobody has asked for it. */
  static boolean fallsBack() {
    return OBSTACLE != null && !SCALAR_WANTED;
  }

  /** Name of the chosen kernel, with the reason or the cure where it is the slow one. */
  public static String describe() {
    return OBSTACLE == null ? create().name() : "scalar (" + OBSTACLE + ")";
  }

  /**
   * Why there is no vector kernel, if there is none.
   *
   * @param lanes asked only where the module is
   */
  static @Nullable String obstacle(
      boolean scalarWanted, boolean moduleIsThere, boolean fuses, IntSupplier lanes) {
    if (scalarWanted) {
      return "as -Dlinattn.scalar=true asks";
    }
    if (!moduleIsThere) {
      return "start java with --add-modules jdk.incubator.vector for the Vector API";
    }
    if (!fuses) {
      return "this JVM has no fused multiply-add in hardware";
    }
    return lanes.getAsInt() < MIN_LANES ? "vectors of this JVM are too short" : null;
  }

  /**
   * Whether an fma is an instruction: where it is not, Java computes each in decimal numbers of any
   * length. True where the JVM does not say.
   */
  private static boolean fusesMultiplyAdd() {
    try {
      @Nullable HotSpotDiagnosticMXBean bean =
          ManagementFactory.getPlatformMXBean(HotSpotDiagnosticMXBean.class);
      return bean == null || Boolean.parseBoolean(bean.getVMOption("UseFMA").getValue());
    } catch (IllegalArgumentException | NoClassDefFoundError e) { // no such option or module
      return true;
    }
  }

  /** Loaded only where the incubator module is. */
  private static final class VectorProbe {
    private VectorProbe() {}

    static int lanes() {
      return FloatVector.SPECIES_PREFERRED.length();
    }
  }
}
