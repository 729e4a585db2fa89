package io.github.linattn.cli;

import java.util.Arrays;

/** Who computes, among those that this program times itself; its peers have names of their own. */
enum Method {
  LINATTN("linattn", "copy"),
  /** The paper's Algorithms 1 to 4. */
  PAPER("paper", "copy"),
  CPU("linattn cpu", "copy cpu");

  private static final String ON_CPU = " cpu";

  private final String title;
  private final String copy;

  Method(String title, String copy) {
    this.title = title;
    this.copy = copy;
  }

  /** As points call a method, of this program or a peer, on the CPU. */
  static String onCpu(String title) {
    return title + ON_CPU;
  }

  static boolean isOnCpu(String title) {
    return title.endsWith(ON_CPU);
  }

  /** Whether points of this method were timed by this program. */
  static boolean isOurs(String title) {
    return Arrays.stream(values()).anyMatch(method -> method.title.equals(title));
  }

  /** As points call it. */
  String title() {
    return title;
  }

  /** As points call a copy of as many bytes on the same machine. */
  String copy() {
    return copy;
  }
}
