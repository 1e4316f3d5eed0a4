// SPDX-License-Identifier: Apache-2.0
// Checkpoints made from a model description and a seed, in the published layout of that model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/json.hpp"
#include "moxie/model.hpp"
#include "moxie/status.hpp"
#include "moxie/types.hpp"

namespace moxie {

enum class Pattern : std::uint8_t {
  normal,     // codes of block-quantised Gaussian weights, scales over a realistic range
  outliers,   // as normal, with a few groups far larger
  monotonic,  // payload bytes count up; scale byte = (31 * position + tensor number) mod 113
  constant    // every code 1.0, every scale 1.0
};
MOXIE_API std::string_view name_of(Pattern pattern);

struct SynthOptions {
  Json config;                              // a config.json: synth_config(name), or a user's own
  std::optional<std::uint64_t> num_layers;  // default 1
  std::optional<std::uint64_t> experts;     // default min(16, the config's)
  std::optional<std::uint64_t> hidden;      // default the config's
  std::optional<std::uint64_t> inter;       // default the config's
  std::optional<BlockFormat>
      format;  // default the dialect's only one, else the config's, else mxfp4
  std::optional<DialectKind> dialect;  // default the model's own
  std::optional<DenseFormat> dense;  // bf16 or fp8_block instead of an FP4 format, without dialect
  // All other tensors, too, and draft blocks; of DeepSeek-V4 under its own names alone. V4.1's
  // vision model and whole engram tables are written only with all layers, experts and columns.
  bool whole = false;
  Pattern pattern = Pattern::normal;
  std::uint64_t seed = 0;
  std::string name = "model";  // of the one file that the gguf dialect writes
  Progress progress;           // bytes of tensors written
};

struct SynthReport {
  std::uint64_t bytes = 0;  // of tensors: total_size in the index
  std::uint64_t tensors = 0;
  std::uint64_t files = 0;
  BlockFormat format = BlockFormat::mxfp4;
  std::optional<DenseFormat> dense;  // then `format` and the dialect's parts do not count
  DialectKind dialect = DialectKind::deepseek;
};

// Names that synth_config knows.
MOXIE_API std::vector<std::string_view> synth_models();
// The config of a named model as published. Error(usage) for an unknown name.
MOXIE_API Json synth_config(std::string_view model);

// Writes into the folder `out` the config files alone that synthesise() would write beside its
// tensors; of all of the config's experts unless `experts` says otherwise. Errors: as synthesise();
// Error(unsupported) MOXIE-P010 for gguf, which has none.
MOXIE_API void synthesise_config(const std::filesystem::path& out, const SynthOptions& options);

// Writes config.json (and hf_quant_config.json for ModelOpt's NVFP4), one shard per layer and their
// index into `out`, which must not exist or be empty; in the gguf dialect one file NAME.gguf. With
// `whole` shards of the draft blocks follow, and one of the tensors that belong to no layer.
// Byte-identical for the same options on every machine and for any number of threads. On any error
// what was written is removed. Errors: Error(unsupported) MOXIE-P010 for a dialect and format that
// do not go together, or a config that lacks what a checkpoint is made from; Error(usage)
// MOXIE-U002 for an output that exists, MOXIE-U003 for a size that is out of range.
MOXIE_API SynthReport synthesise(const std::filesystem::path& out, const SynthOptions& options);

}  // namespace moxie
