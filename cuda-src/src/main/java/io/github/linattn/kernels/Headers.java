package io.github.linattn.kernels;

import io.github.linattn.kernelgen.KernelText;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;

/** The hand-written device headers, as this module ships them. */
final class Headers {
  /** Folder of the include path, beside the generated kernels. */
  static final String INCLUDE = "include";

  private static final String[] NAMES = {
    "linattn/arguments.h",
    "linattn/arithmetic.h",
    "linattn/chunk_items.cuh",
    "linattn/chunk_rows.cuh",
    "linattn/chunked_arguments.h",
    "linattn/coefficient_arguments.h",
    "linattn/coefficient_sums.cuh",
    "linattn/decode.cuh",
    "linattn/dependent_launch.cuh",
    "linattn/element.cuh",
    "linattn/gradient_arguments.h",
    "linattn/gradient_items.cuh",
    "linattn/gradient_outputs.cuh",
    "linattn/gradient_recurrence.cuh",
    "linattn/gradient_rows.cuh",
    "linattn/gradient_sums.cuh",
    "linattn/hopper.cuh",
    "linattn/hopper_auxiliary.cuh",
    "linattn/hopper_block.cuh",
    "linattn/hopper_converter.cuh",
    "linattn/hopper_delta.cuh",
    "linattn/hopper_forward.cuh",
    "linattn/hopper_gradient.cuh",
    "linattn/hopper_gradient_sums.cuh",
    "linattn/hopper_normalizer.cuh",
    "linattn/hopper_one_sweep.cuh",
    "linattn/hopper_one_sweep_plan.cuh",
    "linattn/hopper_one_sweep_prefix.cuh",
    "linattn/hopper_one_sweep_score.cuh",
    "linattn/hopper_one_sweep_state.cuh",
    "linattn/hopper_operand.cuh",
    "linattn/hopper_output_rows.cuh",
    "linattn/hopper_outputs.cuh",
    "linattn/hopper_plan.cuh",
    "linattn/hopper_producer.cuh",
    "linattn/hopper_relay.cuh",
    "linattn/hopper_reverse.cuh",
    "linattn/hopper_scales.cuh",
    "linattn/hopper_score.cuh",
    "linattn/hopper_score_exchange.cuh",
    "linattn/hopper_state.cuh",
    "linattn/hopper_state_outputs.cuh",
    "linattn/hopper_stream.cuh",
    "linattn/hopper_sums.cuh",
    "linattn/hopper_sums_state.cuh",
    "linattn/hopper_values.cuh",
    "linattn/memory.cuh",
    "linattn/mma.cuh",
    "linattn/mma_forward.cuh",
    "linattn/mma_gradient.cuh",
    "linattn/mma_gradient_plan.cuh",
    "linattn/mma_gradient_score.cuh",
    "linattn/mma_gradient_state.cuh",
    "linattn/mma_plan.cuh",
    "linattn/mma_products.cuh",
    "linattn/mma_score.cuh",
    "linattn/mma_state.cuh",
    "linattn/recurrence.cuh",
    "linattn/reduce.cuh",
    "linattn/row_kernels.cuh",
    "linattn/sliced_scan.cuh",
    "linattn/state_outputs.cuh",
    "linattn/state_scan.cuh",
    "linattn/state_sums.cuh",
  };

  private Headers() {}

  /** Text by the name it is included with. */
  static SortedMap<String, String> shipped() throws IOException {
    SortedMap<String, String> texts = new TreeMap<>();
    for (String name : NAMES) {
      String resource = INCLUDE + "/" + name;
      try (InputStream stream = Headers.class.getResourceAsStream(resource)) {
        if (stream == null) {
          throw new FileNotFoundException("this build lacks the device header " + name);
        }
        texts.put(name, new String(stream.readAllBytes(), StandardCharsets.UTF_8));
      }
    }
    return texts;
  }

  /**
   * Writes the headers below {@code out/include}, those that differ.
   *
   * @return whether any did
   */
  static boolean write(Map<String, String> headers, Path out) throws IOException {
    boolean changed = false;
    for (Map.Entry<String, String> header : headers.entrySet()) {
      Path file = out.resolve(INCLUDE).resolve(header.getKey());
      changed |= KernelText.writeIfChanged(file, header.getValue());
    }
    return changed;
  }
}
