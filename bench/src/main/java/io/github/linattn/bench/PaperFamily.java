package io.github.linattn.bench;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Event;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.Mode;
import io.github.linattn.Sequences;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.Catalogue;
import io.github.linattn.kernels.KernelBuild;
import io.github.linattn.reference.Reference;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.OptionalInt;
import java.util.Random;
import java.util.Set;

/**
 * Device time of the paper's kernels for several numbers of slices L, beside the time that the same
 * GPU takes, in the same process, to copy the tensors once. Needs nvcc and a GPU of compute
 * capability 9.0, the only one that it compiles for. The tensors are larger than any L2 cache; the
 * outputs of one head are checked against the double reference.
 */
public final class PaperFamily {
  private static final AttentionShape SHAPE = AttentionShape.of(4, 16, 10_000, 128);
  private static final int[] SLICES = {2, 4, 8, 16};
  private static final int WARM_UP = 3;
  private static final int SAMPLES = 11;
  private static final double MAX_ERROR = 3e-5;

  private final PrintStream out;
  private final Random random = new Random(20251);

  private PaperFamily(PrintStream out) {
    this.out = out;
  }

  /** Prints the table; the exit status is 1 if a result is wrong. */
  public static void main(String[] args) throws IOException {
    System.exit(new PaperFamily(System.out).run() ? 0 : 1);
  }

  private boolean run() throws IOException {
    boolean right = true;
    out.printf(
        Locale.ROOT,
        "%s fp32 on sm_90, median of %d (spread), floor = 4 and 8 tensors copied once%n",
        SHAPE,
        SAMPLES);
    for (int slices : SLICES) {
      Path folder = Files.createTempDirectory("linattn-paper");
      try {
        right &= run(slices, folder);
      } finally {
        delete(folder);
      }
    }
    return right;
  }

  /** With kernels that are built in this folder. */
  private boolean run(int slices, Path folder) throws IOException {
    Set<Architecture> hopper = Set.of(Architecture.SM_90);
    KernelBuild.generate(
        Catalogue.paper(SHAPE.keyDim(), OptionalInt.of(slices), hopper), folder, System.err);
    System.setProperty("linattn.kernels", folder.toString());
    System.setProperty("linattn.family", "paper");
    try (Backend gpu = Backend.cuda(0);
        Stream stream = gpu.newStream();
        Tensors tensors = new Tensors(gpu)) {
      return time(slices, gpu, stream, tensors);
    }
  }

  private static void delete(Path folder) throws IOException {
    List<Path> deepestFirst;
    try (var files = Files.walk(folder)) {
      deepestFirst = files.sorted(Comparator.reverseOrder()).toList();
    }
    for (Path file : deepestFirst) {
      Files.delete(file);
    }
  }

  private boolean time(int slices, Backend gpu, Stream stream, Tensors tensors) {
    LinearAttention attention = LinearAttention.builder().mode(Mode.DEFAULT).on(gpu, stream);
    AttentionInput input = AttentionInput.of(tensors.q, tensors.k, tensors.v);
    Times copy =
        Times.of(
            stream,
            () -> {
              stream.copy(tensors.q, tensors.copyOfQ);
              stream.copy(tensors.k, tensors.copyOfK);
            });
    Times forward =
        Times.of(stream, () -> attention.forwardInto(input, tensors.o, tensors.g, null));
    Times backward =
        Times.of(
            stream,
            () ->
                attention.backwardInto(input, tensors.o, tensors.g, tensors.dO, tensors.gradients));
    double error = tensors.error();
    out.printf(
        Locale.ROOT,
        "L=%-3d copy of 4 %.3f ms | forward %s = %.1f x floor | backward %s = %.1f x floor |"
            + " error %.1e%n",
        slices,
        copy.median,
        forward,
        forward.median / copy.median,
        backward,
        backward.median / (2 * copy.median),
        error);
    return error <= MAX_ERROR;
  }

  /** Device times of one operation in milliseconds. */
  private record Times(double least, double median, double most) {
    static Times of(Stream stream, Runnable operation) {
      for (int i = 0; i < WARM_UP; i++) {
        operation.run();
      }
      stream.synchronize();
      double[] millis = new double[SAMPLES];
      for (int i = 0; i < SAMPLES; i++) {
        try (Event start = stream.record()) {
          operation.run();
          try (Event end = stream.record()) {
            end.synchronize();
            millis[i] = end.millisSince(start);
          }
        }
      }
      Arrays.sort(millis);
      return new Times(millis[0], millis[SAMPLES / 2], millis[SAMPLES - 1]);
    }

    @Override
    public String toString() {
      return String.format(Locale.ROOT, "%.3f ms (%.3f to %.3f)", median, least, most);
    }
  }

  /** Operands and results on the GPU, and the operands of the first head here. */
  private final class Tensors implements AutoCloseable {
    private final AttentionShape oneHead = AttentionShape.of(1, 1, SHAPE.tokens(), SHAPE.keyDim());
    private final Backend gpu;
    private final float[][] firstHead = new float[4][];
    private final Tensor q;
    private final Tensor k;
    private final Tensor copyOfQ;
    private final Tensor copyOfK;
    private final Tensor v;
    private final Tensor dO;
    private final Tensor o;
    private final Tensor g;
    private final Gradients gradients;

    Tensors(Backend gpu) {
      this.gpu = gpu;
      this.q = operand(0, 0.09f);
      this.k = operand(1, 0.09f);
      this.copyOfQ = gpu.allocate(DType.F32, SHAPE.q());
      this.copyOfK = gpu.allocate(DType.F32, SHAPE.k());
      this.v = operand(2, 1);
      this.dO = operand(3, 1);
      this.o = poisoned(SHAPE.output());
      this.g = poisoned(SHAPE.normalizer());
      this.gradients =
          Gradients.over(
              poisoned(SHAPE.q()),
              poisoned(SHAPE.k()),
              poisoned(SHAPE.v()),
              poisoned(SHAPE.coefficients()),
              poisoned(SHAPE.coefficients()));
    }

    private Tensor operand(int index, float deviation) {
      float[] values = new float[Math.toIntExact(SHAPE.q().elements())];
      for (int i = 0; i < values.length; i++) {
        values[i] = (float) (deviation * random.nextGaussian());
      }
      int perHead = SHAPE.tokens() * SHAPE.keyDim();
      firstHead[index] = Arrays.copyOf(values, perHead);
      Tensor tensor = gpu.allocate(DType.F32, SHAPE.q());
      tensor.copyFrom(values);
      return tensor;
    }

    private Tensor poisoned(TensorShape shape) {
      float[] values = new float[Math.toIntExact(shape.elements())];
      Arrays.fill(values, Float.NaN);
      Tensor tensor = gpu.allocate(DType.F32, shape);
      tensor.copyFrom(values);
      return tensor;
    }

    /** Largest relative error of o, dq, dk and dv of the first head. */
    double error() {
      Reference.Result expected =
          Reference.of(
              new Reference.Problem(
                  oneHead,
                  Sequences.ofLengths(SHAPE.tokens()),
                  new float[] {1},
                  new float[] {1},
                  true,
                  false,
                  firstHead[0],
                  firstHead[1],
                  firstHead[2],
                  firstHead[3],
                  null));
      double error = error(expected.o(), o);
      error = Math.max(error, error(expected.dq(), gradients.dq()));
      error = Math.max(error, error(expected.dk(), gradients.dk()));
      return Math.max(error, error(expected.dv(), gradients.dv()));
    }

    private double error(double[] expected, Tensor got) {
      TensorShape flat = TensorShape.of(SHAPE.q().elements());
      Tensor head = got.reshaped(flat).sliced(0, 0, expected.length);
      return Reference.error(expected, head.toFloats());
    }

    @Override
    public void close() {
      q.close();
      k.close();
      copyOfQ.close();
      copyOfK.close();
      v.close();
      dO.close();
      o.close();
      g.close();
      gradients.dq().close();
      gradients.dk().close();
      gradients.dv().close();
      gradients.da().close();
      gradients.db().close();
    }
  }
}
