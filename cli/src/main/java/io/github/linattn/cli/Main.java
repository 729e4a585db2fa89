package io.github.linattn.cli;

import io.github.linattn.cuda.CudaException;
import io.github.linattn.cuda.CudaOutOfMemoryException;
import io.github.linattn.files.WholeFile;
import io.github.linattn.io.Tuning;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.UnmatchedArgumentException;

/** The entry point. */
public final class Main {
  private static final String DEBUG = "linattn.debug";

  private Main() {}

  /** Runs one command and ends the process with its exit code. */
  public static void main(String[] args) {
    Runtime.getRuntime().addShutdownHook(new Thread(WholeFile::deleteUnfinished));
    var stdout = new StandardOutput(new FileOutputStream(FileDescriptor.out));
    var out = new PrintStream(stdout, true, System.out.charset());
    System.exit(stdout.ended(run(args, out, System.err), System.err));
  }

  /**
   * Runs one command.
   *
   * @param out results
   * @param err everything else
   * @return 0 done, 1 a check or the work failed, 2 wrong usage or bad input, 3 no usable GPU where
   *     one was required
   */
  public static int run(String[] args, PrintStream out, PrintStream err) {
    var console = new Console(out, err);
    CommandLine commands = commands(console);
    String tuning = System.getProperty(Tuning.PROPERTY);
    try {
      return commands.execute(args);
    } catch (Throwable failure) {
      return failed(failure, console);
    } finally {
      restore(tuning);
      out.flush();
      err.flush();
    }
  }

  /** The option --tuning is for one command. */
  private static void restore(@Nullable String tuning) {
    if (tuning == null) {
      System.clearProperty(Tuning.PROPERTY);
    } else {
      System.setProperty(Tuning.PROPERTY, tuning);
    }
  }

  private static CommandLine commands(Console console) {
    CommandLine root =
        new CommandLine(new RootCommand(console))
            .addSubcommand(new DemoCommand(console))
            .addSubcommand(new AttendCommand(console))
            .addSubcommand(new VerifyCommand(console))
            .addSubcommand(
                new CommandLine(new BenchCommand(console))
                    .addSubcommand(new BenchForwardCommand(console))
                    .addSubcommand(new BenchBackwardCommand(console))
                    .addSubcommand(new BenchPaperCommand(console))
                    .addSubcommand(new BenchFiguresCommand(console)))
            .addSubcommand(new InfoCommand(console))
            .addSubcommand(new KernelsCommand(console))
            .addSubcommand(new GenerateCommand(console))
            .addSubcommand(new TuneCommand(console))
            .addSubcommand(new SelftestCommand(console));
    return root.setOut(writer(console.out()))
        .setErr(writer(console.err()))
        .setUsageHelpAutoWidth(false)
        .setParameterExceptionHandler((wrong, args) -> misused(wrong, console))
        .setExecutionExceptionHandler((failure, command, parsed) -> failed(failure, console));
  }

  private static PrintWriter writer(PrintStream stream) {
    return new PrintWriter(stream, true, StandardCharsets.UTF_8);
  }

  private static int misused(ParameterException wrong, Console console) {
    CommandLine command = wrong.getCommandLine();
    console.note("linattn: " + sentence(wrong));
    if (isUnknownOption(wrong)) {
      UnmatchedArgumentException.printSuggestions(wrong, writer(console.err()));
    }
    console.note("try: " + command.getCommandSpec().qualifiedName() + " --help");
    return ExitCode.MISUSED;
  }

  private static boolean isUnknownOption(ParameterException wrong) {
    return wrong instanceof UnmatchedArgumentException unmatched && unmatched.isUnknownOption();
  }

  /**
   * What is wrong; an argument that nothing takes is a command that there is none of, or too many.
   */
  private static String sentence(ParameterException wrong) {
    if (!(wrong instanceof UnmatchedArgumentException unmatched) || isUnknownOption(wrong)) {
      return String.valueOf(wrong.getMessage());
    }
    String argument = unmatched.getUnmatched().getFirst();
    CommandLine command = wrong.getCommandLine();
    return command.getSubcommands().isEmpty()
        ? Text.format(
            "%s takes no argument '%s'", command.getCommandSpec().qualifiedName(), argument)
        : Text.format(
            "there is no command '%s'; commands: %s",
            argument, String.join(", ", command.getSubcommands().keySet()));
  }

  static int failed(Throwable failure, Console console) {
    if (Boolean.getBoolean(DEBUG)) {
      failure.printStackTrace(console.err());
    }
    return switch (failure) {
      case CommandFailure told -> {
        console.note("linattn: " + Text.message(told));
        yield told.exitCode();
      }
      case CudaOutOfMemoryException memory -> {
        console.note("linattn: out of GPU memory: " + Text.message(memory));
        yield ExitCode.FAILED;
      }
      case CudaException cuda -> {
        console.note("linattn: " + Text.message(cuda));
        yield ExitCode.FAILED;
      }
      case OutOfMemoryError memory -> {
        String message = Text.message(memory);
        console.note(Text.format("linattn: out of memory (%s); %s", message, cure(message)));
        yield ExitCode.FAILED;
      }
      default -> {
        console.note("linattn: unexpected " + describe(failure));
        console.note("set LINATTN_JAVA_OPTIONS=-D" + DEBUG + "=true for the stack trace");
        yield ExitCode.FAILED;
      }
    };
  }

  /** A larger heap leaves less memory to what lies outside it, and makes no array longer. */
  private static String cure(String shortage) {
    String smaller = "try a smaller input";
    if (shortage.contains("Java heap space") || shortage.contains("GC overhead limit exceeded")) {
      return smaller + ", or a larger heap with LINATTN_JAVA_OPTIONS=-Xmx8g";
    }
    boolean isTooLong = shortage.contains("Requested array size");
    return isTooLong ? smaller : "memory outside the Java heap is short: " + smaller;
  }

  private static String describe(Throwable failure) {
    @Nullable String message = failure.getMessage();
    String kind = failure.getClass().getSimpleName();
    return message == null ? kind : kind + ": " + message;
  }
}
