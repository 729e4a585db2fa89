package io.github.linattn.test.harness;

import io.github.linattn.Backend;

/** A backend under test, with the name that reports show. */
public record Subject(String name, Backend backend) {

  /** Whether it computes everything that the operator offers. */
  public boolean isComplete() {
    return backend.name().equals("cpu");
  }

  /** Whether it computes this problem; what it does not, it must refuse. */
  public boolean does(Case problem) {
    return isComplete() || problem.isForPaperKernels();
  }

  @Override
  public String toString() {
    return name;
  }
}
