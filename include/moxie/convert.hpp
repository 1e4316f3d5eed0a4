// SPDX-License-Identifier: Apache-2.0
// Whole checkpoints with their experts in another format or dialect.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/checkpoint.hpp"
#include "moxie/model.hpp"
#include "moxie/quantize.hpp"
#include "moxie/status.hpp"

namespace moxie {

enum class ConvertFormat : std::uint8_t {
  nvfp4,
  mxfp4,
  fp8  // E4M3 with one scale for 128 x 128 elements: from MXFP4, where nothing is lost
};
MOXIE_API std::string_view name_of(ConvertFormat format);

enum class ConvertRecipe : std::uint8_t { amax, mse, four_over_six, ceil, floor, fp8_closed };
// "amax", "mse", "46", "ceil", "floor", "fp8-closed".
MOXIE_API std::string_view name_of(ConvertRecipe recipe);

struct QuantizeOptions {
  ConvertFormat format = ConvertFormat::nvfp4;
  std::optional<DialectKind> dialect;   // default: the model's own where it has the format, else
                                        // modelopt (nvfp4) or compressed-tensors (mxfp4)
  std::optional<ConvertRecipe> recipe;  // default amax (nvfp4), ceil (mxfp4)
  std::filesystem::path activations;    // empty: no new input scales
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;  // bound on the buffers
  Progress progress;                                    // bytes of tensors written
};

struct QuantizedTensor {
  int layer = 0;
  std::uint64_t expert = 0;
  ProjectionKind projection = ProjectionKind::gate;
  QuantStats stats;
  std::optional<std::uint64_t> changed_elems;  // of FP4 sources: values that are not what they were
};

struct QuantizeReport {
  std::string source;  // "bf16", "fp8-block", "mxfp4", …
  ConvertFormat format = ConvertFormat::nvfp4;
  std::optional<DialectKind> dialect;  // none: fp8
  std::string recipe;                  // empty where nothing was quantised anew
  bool input_scales = false;           // an activation scale is stored per projection
  std::uint64_t projections = 0;       // converted, all of those that the config promises
  std::uint64_t tensors = 0;
  std::uint64_t copied_tensors = 0;
  std::uint64_t files = 0;         // of tensors
  std::uint64_t bytes = 0;         // of tensors: total_size in the index
  std::uint64_t expert_bytes = 0;  // of these, the converted ones
  QuantStats total;
  std::optional<std::uint64_t> changed_elems;
  std::vector<QuantizedTensor> worst_first;  // by SNR
  std::vector<Finding> findings;             // notes
};

// Writes the checkpoint into the folder `out`, with the routed experts of its main layers in
// another format: F32, F16, BF16 or block-scaled FP8 become NVFP4 or MXFP4; MXFP4 and NVFP4 become
// each other (codes stay where the cast is exact) or FP8; a dialect becomes another with the same
// codes and scales. Other tensors keep name and bytes; config.json gets another
// quantization_config. The bytes and the report do not depend on the number of threads. `out` must
// not exist or be empty; on any error nothing is left there.
//
// `activations` is a safetensors file of what enters the projections: `layers.L.hidden_states`
// [rows, hidden] for gate and up, `layers.L.intermediate` [rows, inter] for down, BF16 or F32; a
// tensor without `layers.L.` serves all layers. Input scales are largest magnitude / 2688.
//
// Errors: Error(unsupported) MOXIE-Q001 for widths that are no whole groups, MOXIE-Q004 and Q005
// for a recipe or a dialect that does not go with the format or the model, MOXIE-Q006 for a
// conversion that does not exist, MOXIE-Q007 for MXFP4 that FP8 can not hold; Error(input)
// MOXIE-Q002 for values that are not finite, MOXIE-M007 for scales that are no multipliers or whose
// reciprocal the dialect can not store, MOXIE-Q008 when experts are missing, MOXIE-Q009 for the
// activations; Error(unsupported) MOXIE-M009 for experts in different formats; Error(usage)
// MOXIE-U002 for the output, MOXIE-K004 for too little memory.
MOXIE_API QuantizeReport quantize_checkpoint(const Checkpoint& checkpoint,
                                             const std::filesystem::path& out,
                                             const QuantizeOptions& options);

}  // namespace moxie
