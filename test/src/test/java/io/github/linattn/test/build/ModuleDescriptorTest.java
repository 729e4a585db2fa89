package io.github.linattn.test.build;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.lang.module.ModuleDescriptor;
import java.lang.module.ModuleFinder;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Breaks when a published jar is no real module, or exports what is meant for its friends. */
final class ModuleDescriptorTest {

  @ParameterizedTest
  @CsvSource({
    "io.github.linattn.bindings.Cuda, io.github.linattn.bindings",
    "io.github.linattn.kernelgen.KernelSpec, io.github.linattn.kernelgen",
    "io.github.linattn.kernels.BuiltKernels, io.github.linattn.kernels",
    "io.github.linattn.LinearAttention, io.github.linattn.runtime",
    "io.github.linattn.cli.Main, io.github.linattn.cli"
  })
  void everyJarHasADescriptorOfItsOwn(String type, String module) throws Exception {
    ModuleDescriptor descriptor = descriptorOf(type);
    assertThat(descriptor.name()).isEqualTo(module);
    assertThat(descriptor.isAutomatic()).as("automatic").isFalse();
    assertThat(descriptor.isOpen()).as("open").isFalse();
  }

  @Test
  void rawBindingsAreForTheRuntimeAlone() throws Exception {
    ModuleDescriptor bindings = descriptorOf("io.github.linattn.bindings.Cuda");
    for (ModuleDescriptor.Exports exports : bindings.exports()) {
      if (exports.isQualified()) {
        assertThat(exports.targets()).containsOnly("io.github.linattn.runtime");
      } else {
        assertThat(exports.source()).isEqualTo("io.github.linattn.cuda");
      }
    }
    assertThat(bindings.packages()).anyMatch(name -> name.contains("generated"));
  }

  @Test
  void engineInternalsAreExportedToNobody() throws Exception {
    ModuleDescriptor runtime = descriptorOf("io.github.linattn.LinearAttention");
    for (ModuleDescriptor.Exports exports : runtime.exports()) {
      if (exports.isQualified()) {
        assertThat(exports.source()).isEqualTo("io.github.linattn.files");
        assertThat(exports.targets()).containsOnly("io.github.linattn.cli");
      } else {
        assertThat(exports.source())
            .isIn("io.github.linattn", "io.github.linattn.io", "io.github.linattn.reference");
      }
    }
  }

  private static ModuleDescriptor descriptorOf(String type)
      throws ClassNotFoundException, IOException, URISyntaxException {
    URI location = Class.forName(type).getProtectionDomain().getCodeSource().getLocation().toURI();
    return ModuleFinder.of(Path.of(location)).findAll().iterator().next().descriptor();
  }
}
