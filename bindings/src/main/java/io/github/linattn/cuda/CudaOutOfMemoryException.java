package io.github.linattn.cuda;

import java.util.OptionalInt;
import java.util.OptionalLong;
import org.jspecify.annotations.Nullable;

/**
 * An allocation that CUDA refused for want of memory, with the bytes it needed and the bytes that
 * were free just after the refusal. Nothing was allocated.
 */
public final class CudaOutOfMemoryException extends CudaException {
  private static final long serialVersionUID = 1L;

  private final long neededBytes;
  private final long freeBytes;

  /**
   * Describes one refused allocation.
   *
   * @param neededBytes what the call asked for
   * @param freeBytes free device memory after the refusal; empty where CUDA does not know, as for
   *     pinned host memory
   * @see CudaException#CudaException
   */
  public CudaOutOfMemoryException(
      String call,
      int status,
      String symbol,
      String text,
      OptionalInt device,
      @Nullable String context,
      long neededBytes,
      OptionalLong freeBytes) {
    super(call, status, symbol, text, device, context);
    this.neededBytes = neededBytes;
    this.freeBytes = freeBytes.orElse(-1);
  }

  @Override
  public String getMessage() {
    String free = freeBytes < 0 ? "free bytes unknown" : freeBytes + " bytes free";
    return super.getMessage() + "; " + neededBytes + " bytes needed, " + free;
  }

  /** The bytes that the refused call asked for. */
  public long neededBytes() {
    return neededBytes;
  }

  /** The bytes of device memory that were free after the refusal, if CUDA knows. */
  public OptionalLong freeBytes() {
    return freeBytes < 0 ? OptionalLong.empty() : OptionalLong.of(freeBytes);
  }

  @Override
  public CudaOutOfMemoryException withContext(String more) {
    return copyTraceTo(
        new CudaOutOfMemoryException(
            call(),
            status(),
            symbol(),
            text(),
            device(),
            joinedContext(more),
            neededBytes,
            freeBytes()));
  }
}
