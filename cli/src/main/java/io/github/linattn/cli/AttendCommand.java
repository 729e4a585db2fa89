package io.github.linattn.cli;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Forward;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.Sequences;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import io.github.linattn.files.FileReason;
import java.io.IOException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code linattn attend}: attention on tensors of a file. */
@Command(
    name = "attend",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    sortOptions = false,
    description = {
      "Compute linear attention of the tensors q, k and v of a safetensors file, or of an .npy file"
          + " each (--q q.npy --k k.npy --v v.npy --out o.npy)."
    },
    footer = {
      "",
      "Reads q [B*H,N,D], k [B*K,N,D], v [B*K,N,Dv] and, with --grad, do [B*H,N,Dv],",
      "each F32, BF16 or F16. Query head h of a batch row reads its key/value head",
      "floor(h*K/H). Writes o [B*H,N,Dv] and, with --grad, dq, dk, dv in the chosen",
      "type; g [B*H,N], da, db [B*H] and, with --state, S [B*K,sequences,D,Dv],",
      "z [B*K,sequences,D], u [B*K,sequences,Dv] in F32 and count [sequences] in I64;",
      "with --grad and --state-in dS, dz, du, too, the gradients of that state.",
      "A safetensors file notes whether its state is of --normalize: continue alike.",
      "",
      "Arrays of .npy files are <f4 or <f2, count <i8, in C order. If OUT ends in .npy,",
      "o goes there and each other result beside it: with --out x.npy g goes to x.g.npy.",
      "numpy has no bf16: that type needs safetensors files."
    })
final class AttendCommand implements Callable<Integer> {
  private final Console console;

  @Parameters(
      arity = "0..1",
      paramLabel = "IN.safetensors",
      description = "file with q, k, v and perhaps do")
  private @Nullable Path in;

  @Option(names = "--q", paramLabel = "Q.npy", description = "file with q, instead of IN")
  private @Nullable Path q;

  @Option(names = "--k", paramLabel = "K.npy", description = "file with k")
  private @Nullable Path k;

  @Option(names = "--v", paramLabel = "V.npy", description = "file with v")
  private @Nullable Path v;

  @Option(names = "--do", paramLabel = "DO.npy", description = "file with do, for --grad")
  private @Nullable Path outputGradient;

  @Option(
      names = "--out",
      required = true,
      paramLabel = "OUT",
      description = "safetensors or .npy file to write; replaced if it exists")
  private Path out;

  @Mixin private OperatorOptions options = new OperatorOptions();

  @Option(names = "--grad", description = "compute gradients, given do = dLoss/do")
  private boolean gradients;

  @Option(names = "--state", description = "write the state after the last token")
  private boolean keepState;

  @Option(
      names = "--state-in",
      paramLabel = "S.safetensors",
      description = "continue from the state in this file")
  private @Nullable Path stateIn;

  @Option(
      names = "--backend",
      paramLabel = "BACKEND",
      converter = Spelling.OfBackend.class,
      description = "auto (if left out), cpu, or cuda, which never falls back")
  private BackendChoice backend = BackendChoice.AUTO;

  @SuppressWarnings("NullAway.Init") // picocli fills in the path
  AttendCommand(Console console) {
    this.console = console;
  }

  @Override
  public Integer call() {
    options.check();
    if (outputGradient != null && !gradients) {
      throw CommandFailure.misuse("--do is for gradients; give --grad, too");
    }
    Map<String, Path> arrays = arrays();
    checkOut(arrays);
    TensorSource source = in == null ? TensorSource.of(arrays) : open(in);
    try (AttendFile file = AttendFile.of(source, options, gradients);
        StateFile state = openState(file)) {
      LinearAttention.Builder operator =
          options.operator(file.shape().heads()).keepState(keepState);
      run(operator, file, state);
    }
    return ExitCode.DONE;
  }

  /** The arrays that were named; none where a file has all tensors. */
  private Map<String, Path> arrays() {
    Map<String, Path> arrays = new LinkedHashMap<>();
    putIfNamed(arrays, "q", q);
    putIfNamed(arrays, "k", k);
    putIfNamed(arrays, "v", v);
    putIfNamed(arrays, "do", outputGradient);
    if ((in == null) == arrays.isEmpty()) {
      throw CommandFailure.misuse(
          "name either a file IN.safetensors, or the files of --q, --k and --v");
    }
    return arrays;
  }

  private static void putIfNamed(Map<String, Path> arrays, String name, @Nullable Path path) {
    if (path != null) {
      arrays.put(name, path);
    }
  }

  private void checkOut(Map<String, Path> arrays) {
    if (AttendResult.isArray(out) && options.dtype() == DType.BF16) {
      throw CommandFailure.misuse(
          "--out %s: numpy has no bf16; write a safetensors file, or compute in f32 or f16", out);
    }
    for (Path input : in == null ? arrays.values() : List.of(in)) {
      requireOther(input, "the input");
    }
    if (stateIn != null) {
      requireOther(stateIn, "the state to continue from");
    }
    AttendResult.files(out).forEach(OutFile::check);
  }

  private void requireOther(Path path, String what) {
    for (Path written : AttendResult.files(out)) {
      boolean same;
      try {
        same = Files.exists(written) && Files.exists(path) && Files.isSameFile(written, path);
      } catch (IOException e) {
        throw CommandFailure.misuse(e);
      }
      if (same) {
        throw CommandFailure.misuse("--out %s is %s; name another file", written, what);
      }
    }
  }

  private static TensorSource open(Path in) {
    try {
      return TensorSource.of(in);
    } catch (CommandFailure unreadable) {
      if (!AttendResult.isArray(in)) {
        throw unreadable;
      }
      throw CommandFailure.misuse(
          "%s; .npy files are named with --q, --k and --v", Text.message(unreadable));
    }
  }

  private @Nullable StateFile openState(AttendFile file) {
    return stateIn == null
        ? null
        : StateFile.open(stateIn, file.shape(), file.sequences(), options.normalize());
  }

  private void run(LinearAttention.Builder operator, AttendFile file, @Nullable StateFile state) {
    try (Backend chosen = backend.open(console)) {
      compute(chosen, operator, file, state);
    } catch (UnsupportedOperationException refused) {
      if (backend != BackendChoice.AUTO) {
        throw CommandFailure.misuse(refused);
      }
      console.note("using the CPU: " + Text.firstClause(refused));
      try (Backend cpu = Backend.cpu()) {
        compute(cpu, operator, file, state);
      }
    }
  }

  private void compute(
      Backend on, LinearAttention.Builder operator, AttendFile file, @Nullable StateFile state) {
    LinearAttention attention = operator.on(on);
    AttentionShape shape = file.shape();
    DType dtype = options.dtype();
    try (Resources owned = new Resources();
        AttendResult result = new AttendResult(shape)) {
      Loader loader = new Loader(on, owned);
      AttentionInput input = input(loader, file, state);
      long start = System.nanoTime();
      try (Forward y = attention.forward(input)) {
        attention.synchronize();
        String times = "forward " + Text.millis(System.nanoTime() - start);
        result.addForward(y.output(), y.normalizer());
        y.state().ifPresent(last -> result.addState(last, options.normalize()));
        if (gradients) {
          Tensor dO = loader.load(file.tensor("do"), dtype, shape.output());
          long middle = System.nanoTime();
          try (Gradients d = attention.backward(y, dO)) {
            attention.synchronize();
            times += ", backward " + Text.millis(System.nanoTime() - middle);
            result.addGradients(d);
            finish(on, shape, times, result);
          }
        } else {
          finish(on, shape, times, result);
        }
      }
    }
  }

  private AttentionInput input(Loader loader, AttendFile file, @Nullable StateFile state) {
    AttentionShape shape = file.shape();
    DType dtype = options.dtype();
    AttentionInput input =
        AttentionInput.of(
            loader.load(file.tensor("q"), dtype, shape.q()),
            loader.load(file.tensor("k"), dtype, shape.k()),
            loader.load(file.tensor("v"), dtype, shape.v()));
    Sequences packing = file.packing();
    if (packing != null) {
      input = input.packed(packing);
    }
    return state == null ? input : input.from(initial(loader, file, state));
  }

  private static AttentionState initial(Loader loader, AttendFile file, StateFile state) {
    AttentionShape shape = file.shape();
    long batch = shape.batch();
    long heads = shape.keyValueHeads();
    long sequences = file.sequences();
    long d = shape.keyDim();
    long dv = shape.valueDim();
    return AttentionState.over(
        loader.load(state.tensor("S"), DType.F32, TensorShape.of(batch, heads, sequences, d, dv)),
        loader.load(state.tensor("z"), DType.F32, TensorShape.of(batch, heads, sequences, d)),
        loader.load(state.tensor("u"), DType.F32, TensorShape.of(batch, heads, sequences, dv)),
        state.counts());
  }

  private void finish(Backend on, AttentionShape shape, String times, AttendResult result) {
    try {
      result.write(out);
    } catch (IOException e) {
      Object file = e instanceof FileSystemException named ? named.getFile() : out;
      throw CommandFailure.failed("can't write " + file + ": " + FileReason.of(e), e);
    }
    console.result(
        "B=%d H=%d K=%d N=%d D=%d Dv=%d, %s %s on %s: %s",
        shape.batch(),
        shape.heads(),
        shape.keyValueHeads(),
        shape.tokens(),
        shape.keyDim(),
        shape.valueDim(),
        Text.id(options.dtype()),
        Text.id(options.mode()),
        on.name(),
        times);
    console.result("wrote %s", AttendResult.files(out, result.names()));
    result.notFinite().forEach(line -> console.note("warning: " + line));
  }
}
