package io.github.linattn.kernelgen;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.StringJoiner;

/**
 * C++ functions around {@code wgmma.mma_async}: d (+)= A B or d (+)= -A B for A of 64 x 16, B of 16
 * x N and fp32 d, which is a prefix of the registers of an array. The last argument says whether d
 * is added to.
 */
final class WgmmaText {
  private static final int MOST_COLUMNS = 256;
  private static final int LINE = 110;

  /**
   * One instruction.
   *
   * @param name of the function
   * @param columns N, a multiple of 8 up to 256
   * @param registers of the array d, at least N/2
   * @param operand type of A and B: bf16 or f16
   * @param fragment whether A is in registers, four words of each thread, and not in shared memory
   * @param rowsOfA whether A contracts over the rows of its tile and not along them
   * @param rowsOfB whether B does
   * @param negates whether A B is taken off d
   */
  record Instruction(
      String name,
      int columns,
      int registers,
      ElementType operand,
      boolean fragment,
      boolean rowsOfA,
      boolean rowsOfB,
      boolean negates) {
    Instruction(
        String name,
        int columns,
        int registers,
        ElementType operand,
        boolean fragment,
        boolean rowsOfA,
        boolean rowsOfB) {
      this(name, columns, registers, operand, fragment, rowsOfA, rowsOfB, false);
    }

    Instruction {
      if (columns < 8 || columns > MOST_COLUMNS || columns % 8 != 0) {
        throw new IllegalArgumentException("N is a multiple of 8 up to 256, not " + columns);
      }
      if (registers < columns / 2) {
        throw new IllegalArgumentException(
            "N = " + columns + " fills " + columns / 2 + " registers, not " + registers);
      }
      if (operand == ElementType.F32) {
        throw new IllegalArgumentException("operands have 16 bits");
      }
      if (fragment && rowsOfA) {
        throw new IllegalArgumentException("A in registers has one layout");
      }
    }

    /** The same that takes A B off d. */
    Instruction negative() {
      return new Instruction(name, columns, registers, operand, fragment, rowsOfA, rowsOfB, true);
    }
  }

  private WgmmaText() {}

  /** The function, indented by two, each line ended by a line feed. */
  static String function(Instruction it) {
    int count = it.columns / 2;
    String first = it.fragment ? "const uint32_t* a" : "uint64_t a";
    List<String> inputs =
        it.fragment
            ? List.of("\"r\"(a[0])", "\"r\"(a[1])", "\"r\"(a[2])", "\"r\"(a[3])", "\"l\"(b)")
            : List.of("\"l\"(a)", "\"l\"(b)");
    List<String> operands = new ArrayList<>();
    if (it.fragment) {
      operands.add(
          String.format(
              Locale.ROOT, "{%%%d, %%%d, %%%d, %%%d}", count, count + 1, count + 2, count + 3));
      operands.add("%" + (count + 4));
    } else {
      operands.add("%" + count);
      operands.add("%" + (count + 1));
    }
    operands.add("accumulate");
    operands.add(it.negates ? "-1" : "1");
    operands.add("1");
    if (!it.fragment) {
      operands.add(it.rowsOfA ? "1" : "0");
    }
    operands.add(it.rowsOfB ? "1" : "0");
    int predicate = count + inputs.size();
    List<String> outputs = new ArrayList<>();
    List<String> numbers = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      numbers.add("%" + i);
      outputs.add("\"+f\"(d[" + i + "])");
    }
    StringBuilder text = new StringBuilder();
    String head =
        String.format(
            Locale.ROOT,
            "static __device__ __forceinline__ void %s(float (&d)[%d], ",
            it.name,
            it.registers);
    String rest = "uint64_t b, int add) {";
    if (2 + head.length() + first.length() + 2 + rest.length() <= LINE) {
      line(text, 2, "%s%s, %s", head, first, rest);
    } else {
      line(text, 2, "%s%s,", head, first);
      line(text, 2, "%s%s", " ".repeat(head.indexOf('(') + 1), rest);
    }
    line(text, 4, "asm volatile(");
    line(text, 8, "\"{\\n\"");
    line(text, 8, "\".reg .pred accumulate;\\n\"");
    line(text, 8, "\"setp.ne.b32 accumulate, %%%d, 0;\\n\"", predicate);
    line(
        text,
        8,
        "\"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s \"",
        it.columns,
        it.operand.id(),
        it.operand.id());
    wrapped(text, "\"{", numbers, "}, \"", true);
    line(text, 8, "\"%s;\\n\"", String.join(", ", operands));
    line(text, 8, "\"}\\n\"");
    wrapped(text, ": ", outputs, "", false);
    line(text, 8, ": %s, \"r\"(add));", String.join(", ", inputs));
    line(text, 2, "}");
    return text.toString();
  }

  /** A list over several lines; inside a string literal each line is a literal of its own. */
  private static void wrapped(
      StringBuilder text, String before, List<String> parts, String after, boolean literal) {
    StringJoiner row = new StringJoiner(", ");
    String open = before;
    for (int i = 0; i < parts.size(); i++) {
      row.add(parts.get(i));
      boolean last = i == parts.size() - 1;
      boolean full =
          !last && 8 + open.length() + row.length() + parts.get(i + 1).length() + 6 > LINE;
      if (last) {
        line(text, 8, "%s", open + row + after);
      } else if (full) {
        line(text, 8, "%s", open + row + (literal ? ", \"" : ","));
        row = new StringJoiner(", ");
        open = literal ? "\"" : "  ";
      }
    }
  }

  private static void line(StringBuilder text, int indent, String format, Object... arguments) {
    text.append(" ".repeat(indent))
        .append(arguments.length == 0 ? format : String.format(Locale.ROOT, format, arguments))
        .append('\n');
  }
}
