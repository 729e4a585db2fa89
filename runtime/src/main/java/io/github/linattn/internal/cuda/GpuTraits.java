package io.github.linattn.internal.cuda;

import io.github.linattn.bindings.DeviceAttribute;

/**
 * What the planners know of a GPU. Immutable.
 *
 * @param multiprocessors on which blocks run
 * @param sharedBytes most shared memory that a block may ask for
 * @param capability compute capability, such as 90
 * @param bytesPerMicro copy speed of its memory
 */
record GpuTraits(int multiprocessors, int sharedBytes, int capability, double bytesPerMicro) {
  /** Of its peak, which clock and width tell, what copies reach: 3.9e6 of 4.815e6 on an H200. */
  private static final double COPY_SHARE = 0.81;

  static GpuTraits of(Device device, int sharedBytes) {
    return new GpuTraits(
        device.multiprocessors(),
        sharedBytes,
        device.capability(),
        bytesPerMicro(
            device.attribute(DeviceAttribute.MEMORY_CLOCK_KILOHERTZ),
            device.attribute(DeviceAttribute.MEMORY_BUS_BITS)));
  }

  /** Copy speed; that of an H200 where one of the two is 0, as it is not known. */
  static double bytesPerMicro(long clockKilohertz, long busBits) {
    double peak = 2.0 * clockKilohertz * busBits / 8 / 1e3;
    return peak > 0 ? COPY_SHARE * peak : Rates.BYTES_PER_MICRO;
  }
}
