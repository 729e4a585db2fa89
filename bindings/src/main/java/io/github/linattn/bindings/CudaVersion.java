package io.github.linattn.bindings;

/**
 * A CUDA version, such as 13.0, as the Runtime and the driver report it. Immutable.
 *
 * @param major 13 in 13.0
 * @param minor 0 in 13.0
 */
public record CudaVersion(int major, int minor) implements Comparable<CudaVersion> {

  /** The version that CUDA writes as {@code 1000 * major + 10 * minor}; 0 means "no driver". */
  static CudaVersion ofNumber(int number) {
    return new CudaVersion(number / 1000, number % 1000 / 10);
  }

  @Override
  public int compareTo(CudaVersion other) {
    int byMajor = Integer.compare(major, other.major);
    return byMajor != 0 ? byMajor : Integer.compare(minor, other.minor);
  }

  @Override
  public String toString() {
    return major + "." + minor;
  }
}
