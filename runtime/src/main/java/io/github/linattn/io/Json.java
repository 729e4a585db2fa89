package io.github.linattn.io;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * A strict reader of JSON (RFC 8259), which also refuses a key that stands twice in one object.
 * Values become Map, List, String, Long (integers that fit), Double, Boolean or {@link #NULL}.
 */
final class Json {
  /** The value {@code null}. */
  static final Object NULL = new Object();

  private static final int MAX_DEPTH = 32;

  private final String text;
  private int at;
  private int depth;

  private Json(String text) {
    this.text = text;
  }

  /** Reads a text that holds one value and nothing else but white space. */
  static Object parse(String text) {
    Json json = new Json(text);
    Object value = json.value();
    json.skipSpace();
    if (json.at < text.length()) {
      throw json.bad("text after the end of the value");
    }
    return value;
  }

  /** A text as a JSON string. */
  static String quoted(String text) {
    var json = new StringBuilder("\"");
    for (int i = 0; i < text.length(); i++) {
      char c = text.charAt(i);
      if (c == '"' || c == '\\') {
        json.append('\\').append(c);
      } else if (c < ' ') {
        json.append(String.format(Locale.ROOT, "\\u%04x", (int) c));
      } else {
        json.append(c);
      }
    }
    return json.append('"').toString();
  }

  private Object value() {
    skipSpace();
    return switch (peek()) {
      case '{' -> object();
      case '[' -> array();
      case '"' -> string();
      case 't' -> literal("true", true);
      case 'f' -> literal("false", false);
      case 'n' -> literal("null", NULL);
      default -> number();
    };
  }

  private Map<String, Object> object() {
    enter('{');
    Map<String, Object> members = new LinkedHashMap<>();
    if (!skipIf('}')) {
      do {
        skipSpace();
        String key = string();
        skipSpace();
        expect(':');
        if (members.put(key, value()) != null) {
          throw bad("the name \"" + key + "\" stands twice");
        }
        skipSpace();
      } while (skipIf(','));
      expect('}');
    }
    depth--;
    return members;
  }

  private List<Object> array() {
    enter('[');
    List<Object> items = new ArrayList<>();
    if (!skipIf(']')) {
      do {
        items.add(value());
        skipSpace();
      } while (skipIf(','));
      expect(']');
    }
    depth--;
    return items;
  }

  private void enter(char bracket) {
    expect(bracket);
    if (++depth > MAX_DEPTH) {
      throw bad("nested more than " + MAX_DEPTH + " deep");
    }
    skipSpace();
  }

  private String string() {
    expect('"');
    var result = new StringBuilder();
    while (true) {
      char c = next();
      if (c == '"') {
        return result.toString();
      }
      if (c < ' ') {
        throw bad("a control character in a string");
      }
      result.append(c == '\\' ? escaped() : c);
    }
  }

  private char escaped() {
    char c = next();
    return switch (c) {
      case '"', '\\', '/' -> c;
      case 'b' -> '\b';
      case 'f' -> '\f';
      case 'n' -> '\n';
      case 'r' -> '\r';
      case 't' -> '\t';
      case 'u' -> unicode();
      default -> throw bad("an unknown escape");
    };
  }

  private char unicode() {
    int code = 0;
    for (int i = 0; i < 4; i++) {
      char c = next();
      int digit = c < 128 ? Character.digit(c, 16) : -1;
      if (digit < 0) {
        throw bad("an escape without four hexadecimal digits");
      }
      code = code * 16 + digit;
    }
    return (char) code;
  }

  private Object literal(String word, Object value) {
    if (!text.startsWith(word, at)) {
      throw bad("no value");
    }
    at += word.length();
    return value;
  }

  private Object number() {
    int start = at;
    skipIf('-');
    if (!skipIf('0')) {
      digits();
    }
    boolean integer = true;
    if (skipIf('.')) {
      integer = false;
      digits();
    }
    if (skipIf('e') || skipIf('E')) {
      integer = false;
      if (!skipIf('+')) {
        skipIf('-');
      }
      digits();
    }
    String digits = text.substring(start, at);
    return integer ? integer(digits) : (Object) Double.valueOf(digits);
  }

  private Object integer(String digits) {
    try {
      return Long.valueOf(digits);
    } catch (NumberFormatException tooLarge) {
      return Double.valueOf(digits);
    }
  }

  private void digits() {
    int start = at;
    while (at < text.length() && text.charAt(at) >= '0' && text.charAt(at) <= '9') {
      at++;
    }
    if (at == start) {
      throw bad("no value");
    }
  }

  private void skipSpace() {
    while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
      at++;
    }
  }

  private boolean skipIf(char c) {
    boolean found = at < text.length() && text.charAt(at) == c;
    if (found) {
      at++;
    }
    return found;
  }

  private void expect(char c) {
    if (!skipIf(c)) {
      throw bad("no '" + c + "'");
    }
  }

  private char peek() {
    if (at >= text.length()) {
      throw bad("the text ends early");
    }
    return text.charAt(at);
  }

  private char next() {
    char c = peek();
    at++;
    return c;
  }

  private IllegalArgumentException bad(String what) {
    return new IllegalArgumentException(what + " at character " + at);
  }
}
