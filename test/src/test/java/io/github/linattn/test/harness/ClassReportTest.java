package io.github.linattn.test.harness;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;
import static org.junit.platform.engine.discovery.DiscoverySelectors.selectClass;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.junit.jupiter.api.Disabled;
import org.junit.jupiter.api.Test;
import org.junit.platform.launcher.core.LauncherConfig;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;

class ClassReportTest {
  @Test
  void aClassIsToldWithItsFailures() {
    assertThat(reportOf(true).lines())
        .satisfiesExactly(
            line ->
                assertThat(line).isEqualTo("failed: fails(): java.lang.IllegalStateException: so"),
            line ->
                assertThat(line)
                    .matches(
                        "ClassReportTest\\$Sample: 1 passed, 1 failed, 2 left out, [0-9.]+ s"));
  }

  @Test
  void nothingIsToldOutsideAnImage() {
    assertThat(reportOf(false)).isEmpty();
  }

  private static String reportOf(boolean speaks) {
    var out = new ByteArrayOutputStream();
    var report = new ClassReport(new PrintStream(out, true, StandardCharsets.UTF_8), speaks);
    var config =
        LauncherConfig.builder().enableTestExecutionListenerAutoRegistration(false).build();
    var request = LauncherDiscoveryRequestBuilder.request().selectors(selectClass(Sample.class));
    LauncherFactory.create(config).execute(request.build(), report);
    return out.toString(StandardCharsets.UTF_8);
  }

  /** Run by the tests above alone: Surefire takes no class inside another. */
  static final class Sample {
    @Test
    void passes() {}

    @Test
    void fails() {
      throw new IllegalStateException("so");
    }

    @Test
    void doesNotApply() {
      assumeTrue(false);
    }

    @Test
    @Disabled("so")
    void isNotWanted() {}
  }
}
