package io.github.linattn.cuda;

import java.util.Objects;
import java.util.Optional;
import java.util.OptionalInt;
import org.jspecify.annotations.Nullable;

/**
 * A CUDA call that returned an error status: which call, the status as number, symbol and text, the
 * device that was current, and, where the caller added one, what was being computed.
 *
 * <p>A fault inside a kernel is reported by a later call that waits for it, not by the launch; such
 * an exception says so. Nothing needs to be freed because of this exception: the call that throws
 * it has released what it had acquired.
 */
public class CudaException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  private final String call;
  private final int status;
  private final String symbol;
  private final String text;
  private final int device;
  private final @Nullable String context;

  /**
   * Describes one failed call.
   *
   * @param call the function that returned the status, such as {@code cudaMemcpyAsync}
   * @param status the numeric {@code cudaError_t}
   * @param symbol its name, such as {@code cudaErrorInvalidValue}
   * @param text CUDA's own sentence about it
   * @param device the ordinal of the device that was current, or empty where it could not be asked
   * @param context what was being done, such as the shape, or null
   */
  public CudaException(
      String call,
      int status,
      String symbol,
      String text,
      OptionalInt device,
      @Nullable String context) {
    super(message(call, status, symbol, text, device, context));
    this.call = Objects.requireNonNull(call, "call");
    this.status = status;
    this.symbol = Objects.requireNonNull(symbol, "symbol");
    this.text = Objects.requireNonNull(text, "text");
    this.device = device.orElse(-1);
    this.context = context;
  }

  private static String message(
      String call,
      int status,
      String symbol,
      String text,
      OptionalInt device,
      @Nullable String context) {
    String where = device.isPresent() ? "device " + device.getAsInt() : "device unknown";
    String what = context == null ? "" : "; " + context;
    return call + " failed: " + symbol + " (" + status + "): " + text + "; " + where + what;
  }

  /** The function that returned the status, such as {@code cudaMemcpyAsync}. */
  public final String call() {
    return call;
  }

  /** The numeric {@code cudaError_t}. */
  public final int status() {
    return status;
  }

  /** The name of the status, such as {@code cudaErrorInvalidValue}. */
  public final String symbol() {
    return symbol;
  }

  /** CUDA's own sentence about the status. */
  public final String text() {
    return text;
  }

  /** The ordinal of the device that was current in the calling thread, if it could be asked. */
  public final OptionalInt device() {
    return device < 0 ? OptionalInt.empty() : OptionalInt.of(device);
  }

  /** What was being done, such as the shape, if anybody said so. */
  public final Optional<String> context() {
    return Optional.ofNullable(context);
  }

  /**
   * The same failure, of the same class and with the same stack trace, with {@code more} appended
   * to its context. This exception is left unchanged.
   */
  public CudaException withContext(String more) {
    return copyTraceTo(
        new CudaException(call, status, symbol, text, device(), joinedContext(more)));
  }

  /** The context of this exception followed by {@code more}. */
  final String joinedContext(String more) {
    Objects.requireNonNull(more, "more");
    return context == null ? more : context + "; " + more;
  }

  /** Gives {@code copy} the stack trace, the cause and the suppressed exceptions of this one. */
  final <T extends CudaException> T copyTraceTo(T copy) {
    copy.setStackTrace(getStackTrace());
    if (getCause() != null) {
      copy.initCause(getCause());
    }
    for (Throwable suppressed : getSuppressed()) {
      copy.addSuppressed(suppressed);
    }
    return copy;
  }
}
