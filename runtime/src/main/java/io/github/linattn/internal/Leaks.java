package io.github.linattn.internal;

import java.lang.ref.Cleaner;
import java.util.Comparator;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;

/**
 * What owns something native and is open, with the place that made it: one for each engine, and one
 * for owners that need no backend.
 *
 * <p>Who is still open when the engine closes, or can no longer be closed because nothing refers to
 * it, is reported once, as a warning of the logger {@code io.github.linattn.leaks}; nothing is
 * freed. Records nothing unless the system property {@value #PROPERTY} is {@code report}.
 * Thread-safe.
 */
public final class Leaks {
  private static final String PROPERTY = "linattn.leaks";
  private static final String REPORT = "report";
  private static final System.Logger LOG = System.getLogger("io.github.linattn.leaks");

  /** Stands for any owner while nothing is recorded. */
  private static final Claim NO_CLAIM = () -> {};

  private static final Leaks NONE = new Leaks("", false);

  private final String maker;
  private final boolean recording;
  private final AtomicLong made = new AtomicLong();
  private final Set<Owner> open = ConcurrentHashMap.newKeySet();

  private Leaks(String maker, boolean recording) {
    this.maker = maker;
    this.recording = recording;
  }

  /** Of a new engine of this name. */
  public static Leaks of(String engine) {
    return isAskedFor() ? new Leaks(engine, true) : NONE;
  }

  /** Of what is made without a backend, and of backends. */
  public static Leaks withoutBackend() {
    return isAskedFor() ? Asked.LEAKS : NONE;
  }

  /** Of what owns nothing native. */
  public static Leaks none() {
    return NONE;
  }

  private static boolean isAskedFor() {
    return REPORT.equals(System.getProperty(PROPERTY));
  }

  /** What exists once somebody asks for it. */
  private static final class Asked {
    private static final Leaks LEAKS = new Leaks("", true);
    private static final Cleaner CLEANER = Cleaner.create();
  }

  /** That an owner holds something native. */
  public interface Claim {
    /** The owner has let go of it. */
    void end();
  }

  /**
   * Records an owner that was made by the calling method; it must not be reachable from {@code
   * what}.
   *
   * @param what for the report, such as "a stream"
   */
  public Claim claim(Object owner, String what) {
    return recording ? record(owner, what) : NO_CLAIM;
  }

  /** As {@link #claim(Object, String)}, of memory. */
  public Claim claim(Object owner, Object kind, long bytes) {
    return recording ? record(owner, "%s memory of %d bytes".formatted(kind, bytes)) : NO_CLAIM;
  }

  private Claim record(Object owner, String what) {
    var claimed = new Owner(this, made.getAndIncrement(), what);
    open.add(claimed);
    Asked.CLEANER.register(owner, claimed::lost);
    return claimed;
  }

  /** Reports who is open though the engine closes, in the order in which they were made. */
  public void reportOpen() {
    List<Owner> left = open.stream().sorted(Comparator.comparingLong(Owner::number)).toList();
    left.forEach(owner -> owner.report("is open though its backend %s closes".formatted(maker)));
  }

  /** Not the owner itself, which must remain free to become unreachable. */
  private static final class Owner implements Claim {
    private final Leaks leaks;
    private final long number;
    private final String what;
    private final Throwable madeAt = new Throwable("made here");
    private final AtomicBoolean told = new AtomicBoolean();

    Owner(Leaks leaks, long number, String what) {
      this.leaks = leaks;
      this.number = number;
      this.what = what;
    }

    long number() {
      return number;
    }

    @Override
    public void end() {
      leaks.open.remove(this);
      told.set(true);
    }

    void lost() {
      report("was never closed, and nothing refers to it any more");
    }

    void report(String how) {
      leaks.open.remove(this);
      if (told.compareAndSet(false, true)) {
        LOG.log(
            System.Logger.Level.WARNING, "%s %s; made by %s".formatted(what, how, maker()), madeAt);
      }
    }

    /** The method of the API that was called, and the line that called it. */
    private String maker() {
      String called = "linattn";
      for (StackTraceElement frame : madeAt.getStackTrace()) {
        if (!isOurs(frame)) {
          return called + ", called at " + frame;
        }
        String type = frame.getClassName();
        called = type.substring(type.lastIndexOf('.') + 1) + "." + frame.getMethodName();
      }
      return called;
    }

    private static boolean isOurs(StackTraceElement frame) {
      String type = frame.getClassName();
      String ours = "io.github.linattn.";
      return type.startsWith(ours + "internal.")
          || (type.startsWith(ours) && type.indexOf('.', ours.length()) < 0)
          || type.startsWith(ours + "io.");
    }
  }
}
