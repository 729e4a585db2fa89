package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;

/** The benchmark's results as JSON, with every sample. Times are milliseconds unless named so. */
final class BenchJson {
  private BenchJson() {}

  static String text(BenchMachine machine, List<BenchResult> results, List<HostTime> hosts) {
    String cases = results.stream().map(BenchJson::of).collect(Collectors.joining(",\n  "));
    String host = hosts.stream().map(BenchJson::of).collect(Collectors.joining(",\n  "));
    return new Members()
            .put("time", machine.time())
            .put("gpu", machine.gpu())
            .put("architecture", machine.architecture())
            .put("driver", machine.driver())
            .put("runtime", machine.runtime())
            .put("java", machine.java())
            .put("linattn", machine.linattn())
            .put("family", machine.family())
            .raw("cases", "[\n  " + cases + "]")
            .raw("host", "[\n  " + host + "]")
            .text()
        + "\n";
  }

  private static String of(BenchResult result) {
    BenchCase problem = result.problem();
    AttentionShape shape = problem.shape();
    var members = new Members();
    members
        .put("batch", shape.batch())
        .put("heads", shape.heads())
        .put("keyValueHeads", shape.keyValueHeads())
        .put("tokens", shape.tokens())
        .put("keyDim", shape.keyDim())
        .put("valueDim", shape.valueDim())
        .put("dtype", Text.id(problem.precision().dtype()))
        .put("mode", Text.id(problem.precision().mode()))
        .raw("causal", String.valueOf(problem.causal()))
        .raw("normalize", String.valueOf(problem.normalize()))
        .raw("decode", String.valueOf(problem.decode()))
        .put("data", Text.id(problem.data()))
        .put("pass", Text.id(problem.pass()))
        .put("bytes", problem.traffic())
        .put("plan", result.plan())
        .put("reason", result.reason())
        .put("estimatedMicros", result.estimatedMicros())
        .put("sets", result.sets())
        .raw("exceedsCache", String.valueOf(result.exceedsCache()))
        .raw(Text.id(problem.pass()), of(result.times()))
        .raw("floor", of(result.floor()))
        .put("ratio", result.ratio());
    result
        .errors()
        .values()
        .forEach((quantity, error) -> members.put("errorOf" + capital(quantity.title()), error));
    return members
        .put("bound", result.bound())
        .raw("right", String.valueOf(result.right()))
        .raw(
            "plans",
            result.others().stream().map(BenchJson::of).collect(Collectors.joining(", ", "[", "]")))
        .text();
  }

  private static String capital(String word) {
    return word.substring(0, 1).toUpperCase(Locale.ROOT) + word.substring(1);
  }

  private static String of(BenchResult.Other other) {
    DeviceTimes times = other.times();
    return new Members()
        .put("name", other.name())
        .put("estimatedMicros", other.estimatedMicros())
        .put("error", other.error())
        .raw("times", times == null ? "null" : of(times))
        .text();
  }

  private static String of(DeviceTimes times) {
    return new Members()
        .put("median", times.median())
        .put("calls", times.calls())
        .raw("graph", String.valueOf(times.graph()))
        .raw(
            "samples",
            times.millis().stream()
                .map(BenchJson::number)
                .collect(Collectors.joining(", ", "[", "]")))
        .text();
  }

  private static String of(HostTime host) {
    return new Members()
        .put("dtype", Text.id(host.dtype()))
        .put("pass", Text.id(host.pass()))
        .put("micros", host.micros())
        .put("heapBytes", host.heapBytes())
        .text();
  }

  /** JSON has no NaN: what is not a number is null. */
  private static String number(double value) {
    return Double.isFinite(value) ? Text.format("%.6g", value) : "null";
  }

  /** One object. */
  private static final class Members {
    private final List<String> members = new ArrayList<>();

    Members put(String name, String value) {
      return raw(name, quoted(value));
    }

    Members put(String name, long value) {
      return raw(name, Long.toString(value));
    }

    Members put(String name, double value) {
      return raw(name, number(value));
    }

    Members raw(String name, String value) {
      members.add(quoted(name) + ": " + value);
      return this;
    }

    String text() {
      return "{" + String.join(", ", members) + "}";
    }

    private static String quoted(String value) {
      var text = new StringBuilder("\"");
      for (char c : value.toCharArray()) {
        if (c == '"' || c == '\\') {
          text.append('\\').append(c);
        } else if (c < ' ') {
          text.append(Text.format("\\u%04x", (int) c));
        } else {
          text.append(c);
        }
      }
      return text.append('"').toString();
    }
  }
}
