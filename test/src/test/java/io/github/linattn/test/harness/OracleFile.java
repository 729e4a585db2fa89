package io.github.linattn.test.harness;

import io.github.linattn.AttentionShape;
import io.github.linattn.reference.Reference;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A problem and its answer as an independent program computed it in float64, quadratically and
 * without a recurrence. Read here without the project's own reader, whose faults would hide.
 */
public final class OracleFile {
  /** Every file in the resources. */
  public static final List<String> NAMES =
      List.of(
          "tiny",
          "one-token",
          "batches",
          "ragged-128",
          "text-normalized",
          "noncausal",
          "grouped",
          "packed",
          "packed-grouped-noncausal",
          "value-dim");

  private static final Pattern ENTRY =
      Pattern.compile(
          "\"(\\w+)\": \\{\"dtype\": \"(F32|F64)\", \"shape\": \\[[^]]*], "
              + "\"data_offsets\": \\[(\\d+), (\\d+)]");
  private static final Pattern METADATA = Pattern.compile("\"(\\w+)\": \"([^\"]*)\"");

  private final String name;
  private final Map<String, double[]> tensors = new LinkedHashMap<>();
  private final Map<String, String> metadata = new LinkedHashMap<>();

  private OracleFile(String name, byte[] bytes) {
    this.name = name;
    ByteBuffer file = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    int headerBytes = Math.toIntExact(file.getLong(0));
    String header = new String(bytes, 8, headerBytes, StandardCharsets.UTF_8);
    Matcher entry = ENTRY.matcher(header);
    while (entry.find()) {
      int start = 8 + headerBytes + Integer.parseInt(entry.group(3));
      int end = 8 + headerBytes + Integer.parseInt(entry.group(4));
      tensors.put(entry.group(1), numbers(file, start, end, entry.group(2).equals("F64")));
    }
    Matcher line = METADATA.matcher(header.substring(0, header.indexOf('}')));
    while (line.find()) {
      metadata.put(line.group(1), line.group(2));
    }
  }

  private static double[] numbers(ByteBuffer file, int start, int end, boolean wide) {
    double[] numbers = new double[(end - start) / (wide ? Double.BYTES : Float.BYTES)];
    for (int i = 0; i < numbers.length; i++) {
      numbers[i] =
          wide ? file.getDouble(start + i * Double.BYTES) : file.getFloat(start + i * Float.BYTES);
    }
    return numbers;
  }

  /** Reads {@code oracle-NAME.safetensors}. */
  public static OracleFile read(String name) {
    String resource = "/oracle/oracle-" + name + ".safetensors";
    try (InputStream in = OracleFile.class.getResourceAsStream(resource)) {
      return new OracleFile(name, Objects.requireNonNull(in, resource).readAllBytes());
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private int number(String key) {
    return Integer.parseInt(Objects.requireNonNull(metadata.get(key), key));
  }

  private boolean isTrue(String key) {
    return Objects.requireNonNull(metadata.get(key), key).equals("true");
  }

  /** Lengths of the packed sequences, or the one length. */
  public int[] lengths() {
    String list = Objects.requireNonNull(metadata.get("seqlens"));
    return Arrays.stream(list.substring(1, list.length() - 1).split(", "))
        .mapToInt(Integer::parseInt)
        .toArray();
  }

  /** The problem; its inputs are those of the file, rounded where the case asks for 16 bits. */
  public Case.Builder problem() {
    int[] lengths = lengths();
    AttentionShape shape =
        new AttentionShape(
            number("batch"),
            number("heads"),
            number("kv_heads"),
            Arrays.stream(lengths).sum(),
            number("dim"),
            number("value_dim"));
    Case.Builder builder =
        Case.of(name, shape)
            .coefficients(
                Float.parseFloat(Objects.requireNonNull(metadata.get("a"))),
                Float.parseFloat(Objects.requireNonNull(metadata.get("b"))))
            .q(floats("q"))
            .k(floats("k"))
            .v(floats("v"))
            .dO(floats("do"));
    if (lengths.length > 1) {
      builder.packed(lengths);
    }
    if (!isTrue("causal")) {
      builder.nonCausal();
    }
    if (isTrue("normalize")) {
      builder.normalized();
    }
    return builder;
  }

  /** The answer. */
  public Reference.Result answer() {
    int[] lengths = lengths();
    boolean causal = isTrue("causal");
    return new Reference.Result(
        tensor("o"),
        tensor("g"),
        tensor("dq"),
        tensor("dk"),
        tensor("dv"),
        tensor("da"),
        tensor("db"),
        new double[0],
        new double[0],
        new Reference.State(
            causal ? tensor("S") : new double[0],
            causal ? tensor("z") : new double[0],
            causal ? tensor("u") : new double[0],
            Arrays.stream(lengths).asLongStream().toArray()),
        new Reference.StateGradient(new double[0], new double[0], new double[0]));
  }

  private double[] tensor(String key) {
    return Objects.requireNonNull(tensors.get(key), key);
  }

  private float[] floats(String key) {
    double[] numbers = tensor(key);
    float[] values = new float[numbers.length];
    for (int i = 0; i < values.length; i++) {
      values[i] = (float) numbers[i];
    }
    return values;
  }
}
