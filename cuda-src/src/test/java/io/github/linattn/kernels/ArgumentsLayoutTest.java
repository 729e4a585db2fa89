package io.github.linattn.kernels;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.abort;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * The tables of offsets in the headers of arguments, which other languages follow, against a C++
 * compiler.
 */
class ArgumentsLayoutTest {
  private static final Pattern ROW = Pattern.compile("//\\s+(\\d+)\\s+(\\d+)\\s{2}(\\w+).*");
  private static final Pattern STRUCT = Pattern.compile("struct (\\w+) \\{");

  @TempDir Path folder;

  @Test
  void commentsTellTheLayout() throws Exception {
    Map<String, Integer> documented = new LinkedHashMap<>();
    List<Matcher> rows = new ArrayList<>();
    List<String> lines = new ArrayList<>();
    for (String header :
        List.of(
            "arithmetic.h",
            "arguments.h",
            "chunked_arguments.h",
            "coefficient_arguments.h",
            "gradient_arguments.h")) {
      lines.addAll(Files.readAllLines(Path.of("src/main/cuda/include/linattn", header)));
    }
    for (String line : lines) {
      Matcher row = ROW.matcher(line);
      Matcher struct = STRUCT.matcher(line);
      if (row.matches()) {
        rows.add(row);
      } else if (struct.find()) {
        Matcher last = rows.getLast();
        documented.put(
            struct.group(1), Integer.parseInt(last.group(1)) + Integer.parseInt(last.group(2)));
        rows.forEach(
            r -> documented.put(struct.group(1) + "." + r.group(3), Integer.parseInt(r.group(1))));
        rows.clear();
      }
    }
    assertThat(documented)
        .hasSize(6 + 23 + 3 + 7 + 3 + 3 + 4 + 5 + 4 + 5 + 4 + 33 + 2 + 16 + 4 + 8 + 15 + 7 + 17 + 7)
        .isEqualTo(compiled());
  }

  private Map<String, Integer> compiled() throws Exception {
    String program = folder.resolve("layout").toString();
    try {
      run("g++", "-std=c++17", "-Isrc/main/cuda/include", "src/test/cpp/layout.cpp", "-o", program);
    } catch (IOException absent) {
      abort("no g++: the layout is not checked");
    }
    Map<String, Integer> layout = new LinkedHashMap<>();
    run(program)
        .lines()
        .map(line -> line.split(" ", -1))
        .forEach(pair -> layout.put(pair[0], Integer.valueOf(pair[1])));
    return layout;
  }

  private static String run(String... command) throws IOException, InterruptedException {
    Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
    String text = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    assertThat(process.waitFor()).as(text).isZero();
    return text;
  }
}
