// SPDX-License-Identifier: Apache-2.0
// What a conversion writes: the format, the dialect and the names of the new tensors.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "checkpoint/safetensors_writer.hpp"
#include "moxie/convert.hpp"

namespace moxie::convert {

// One layer to convert: FP4 or dense, never both.
struct SourceLayer {
  int layer = 0;
  std::string prefix;
  std::array<std::string, 3> projections;  // names in the output, by ProjectionKind
  const LayerExperts* fp4 = nullptr;
  const DenseExperts* dense = nullptr;
  std::uint64_t experts = 0;
};

// Everything that is read, and which of the checkpoint's tensors the output replaces.
struct Source {
  const MoeModel* model = nullptr;
  std::vector<ProjectionKind> kinds;
  std::vector<SourceLayer> layers;
  std::optional<BlockFormat> fp4;  // absent: dense
  std::string name;                // "mxfp4", "bf16", …
  std::unordered_set<const TensorInfo*> replaced;
  std::optional<std::string> other_fp8;  // a tensor beside the experts that is block-scaled FP8
  std::optional<std::string> other_fp4;  // the same for packed pairs
  bool other_is_mtp = false;             // all of them are in multi-token-prediction blocks
  bool has_biases = false;               // stacked biases beside the experts
  bool keeps_biases = false;             // a bias beside each projection
};

// Errors: MOXIE-Q008 for experts that are missing or none at all; MOXIE-Q012 for names that are
// only read; the layers' own problems.
Source find_source(const MoeModel& model);

struct Target {
  ConvertFormat format = ConvertFormat::nvfp4;
  DialectKind dialect = DialectKind::modelopt;
  Nvfp4Recipe nvfp4_recipe = Nvfp4Recipe::amax;
  Mxfp4Recipe mxfp4_recipe = Mxfp4Recipe::ceil;
  std::string recipe;

  [[nodiscard]] bool is_fp8() const { return format == ConvertFormat::fp8; }
  [[nodiscard]] BlockFormat block_format() const {
    return format == ConvertFormat::mxfp4 ? BlockFormat::mxfp4 : BlockFormat::nvfp4;
  }
  [[nodiscard]] bool reciprocal() const { return dialect == DialectKind::compressed_tensors; }
};

// Whether the config declares block-scaled FP8 for what is not said to be otherwise.
bool has_fp8_record(const MoeModel& model);

// Whether stacked biases become a tensor per projection, as the weights do.
bool splits_biases(const Source& source, const Target& target);

// Errors: MOXIE-Q004, Q005, Q006, Q001.
Target choose_target(const Source& source, const QuantizeOptions& options);

inline constexpr std::uint64_t kFp8Tile = 128;

// Names of a stacked layer's tensors, after the prefix.
inline constexpr std::string_view kGateUpBlocks = ".gate_up_proj_blocks";
inline constexpr std::string_view kGateUpScales = ".gate_up_proj_scales";
inline constexpr std::string_view kGateUpBias = ".gate_up_proj_bias";
inline constexpr std::string_view kDownBlocks = ".down_proj_blocks";
inline constexpr std::string_view kDownScales = ".down_proj_scales";
inline constexpr std::string_view kDownBias = ".down_proj_bias";

// "PREFIX.EXPERT.LEAF".
std::string stem_of(const SourceLayer& layer, std::uint64_t expert, ProjectionKind kind);

// The rows and columns of a projection.
struct Extent {
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
};
Extent extent_of(const ModelConfig& config, ProjectionKind kind);

// The new tensors of one expert; of a stacked dialect, those of all experts of the layer.
std::vector<TensorEntry> entries_of_expert(const Source& source, const Target& target,
                                           const SourceLayer& layer, std::uint64_t expert,
                                           const std::array<bool, 3>& input_scales);
std::vector<TensorEntry> entries_of_stack(const Source& source, const SourceLayer& layer);

}  // namespace moxie::convert
