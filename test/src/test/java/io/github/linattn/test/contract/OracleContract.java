package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.OracleFile;
import io.github.linattn.test.harness.Results;
import io.github.linattn.test.harness.Run;
import io.github.linattn.test.harness.Subject;
import io.github.linattn.test.harness.Tolerance;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** Breaks when a backend and our own reference share a mistake: the answers come from elsewhere. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
abstract class OracleContract {

  abstract List<Subject> subjects();

  List<Arguments> filesAndSubjects() {
    List<Arguments> rows = new ArrayList<>();
    for (String file : OracleFile.NAMES) {
      for (Subject subject : subjects()) {
        for (DType dtype : DType.values()) {
          rows.add(Arguments.of(file, dtype, subject));
        }
      }
    }
    return rows;
  }

  @ParameterizedTest(name = "{0} in {1} on {2}")
  @MethodSource("filesAndSubjects")
  void answersWhatAnIndependentProgramDoes(String name, DType dtype, Subject subject) {
    OracleFile file = OracleFile.read(name);
    Case problem = file.problem().dtype(dtype).build();
    if (!subject.does(problem)) {
      Refusals.assertRefused(problem, subject);
      return;
    }
    Results results = Run.of(problem, subject.backend());
    results.assertRight(problem, file.answer(), Tolerance.unrounded(problem));
    if (dtype == DType.F32) {
      for (Mode mode : List.of(Mode.DEFAULT, Mode.TF32)) {
        Case other = problem.but(mode.name()).mode(mode).build();
        Tolerance.Bounds bounds =
            subject.isComplete() // multiplies in fp32 in every mode
                ? Tolerance.unrounded(other)
                : Tolerance.ofMode(other);
        Run.of(other, subject.backend()).assertRight(other, file.answer(), bounds);
      }
    } else {
      Case inexact = problem.but("TF32").mode(Mode.TF32).build();
      assertThatThrownBy(() -> Run.of(inexact, subject.backend()))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("mode TF32 is for fp32 tensors; " + dtype);
    }
  }
}
