package io.github.linattn.kernels;

import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernelgen.KernelText;
import io.github.linattn.kernelgen.Manifest;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Digests of everything that an image and its manifest line depend on: text, headers, flags and
 * nvcc.
 *
 * @param headers text by the name it is included with
 */
record KernelDigest(Map<String, String> headers) {
  private static final Pattern INCLUDE = Pattern.compile("#include \"(linattn/[^\"]+)\"");

  /** Of one kernel, in hexadecimal. */
  String of(KernelSpec spec, String nvccVersion) {
    MessageDigest digest;
    try {
      digest = MessageDigest.getInstance("SHA-256");
    } catch (NoSuchAlgorithmException absent) {
      throw new AssertionError("every Java platform has SHA-256", absent);
    }
    List<String> parts = new ArrayList<>();
    String source = KernelText.emit(spec);
    parts.add(source);
    included(source).forEach(name -> parts.addAll(List.of(name, headers.getOrDefault(name, ""))));
    parts.add(Manifest.VERSION);
    parts.add(nvccVersion);
    parts.addAll(Nvcc.flags());
    spec.architectures().forEach(architecture -> parts.addAll(architecture.nvccArguments()));
    for (String part : parts) {
      digest.update(part.getBytes(StandardCharsets.UTF_8));
      digest.update((byte) 0);
    }
    return HexFormat.of().formatHex(digest.digest());
  }

  /** The headers that a text includes, directly or through others. */
  private SortedSet<String> included(String text) {
    SortedSet<String> names = new TreeSet<>();
    List<String> pending = new ArrayList<>(List.of(text));
    while (!pending.isEmpty()) {
      Matcher include = INCLUDE.matcher(pending.removeLast());
      while (include.find()) {
        if (names.add(include.group(1))) {
          pending.add(headers.getOrDefault(include.group(1), ""));
        }
      }
    }
    return names;
  }
}
