// SPDX-License-Identifier: Apache-2.0
// compressed-tensors: NVFP4 whose scalars are the reciprocals of what multiplies, and MXFP4 whose
// scales are bytes, without scalars. The codes' name is its own, so any prefix may hold them.
#include "model/dialects/dialect.hpp"

namespace moxie {

namespace {

constexpr DialectNames nvfp4(std::string_view gate, std::string_view up, std::string_view down) {
  return {.projections = {gate, up, down},
          .codes = ".weight_packed",
          .block_scales = ".weight_scale",
          .dequant_mul = ".weight_global_scale",
          .act_dequant_mul = ".input_global_scale",
          .reciprocal = true,
          .bias = ".bias"};
}

constexpr DialectNames mxfp4(std::string_view gate, std::string_view up, std::string_view down) {
  return {.projections = {gate, up, down},
          .codes = ".weight_packed",
          .block_scales = ".weight_scale",
          .bias = ".bias"};
}

constexpr DialectNames kNvfp4Namings[] = {nvfp4("gate_proj", "up_proj", "down_proj"),
                                          nvfp4("w1", "w3", "w2")};
constexpr DialectNames kMxfp4Namings[] = {mxfp4("gate_proj", "up_proj", "down_proj"),
                                          mxfp4("w1", "w3", "w2")};

constexpr std::string_view kName = "compressed-tensors";

}  // namespace

const Dialect kCompressedTensorsNvfp4 = {
    .name = kName,
    .method = kName,
    .format = BlockFormat::nvfp4,
    .namings = kNvfp4Namings,
    .default_prefix = "model.layers.{}.mlp.experts",
    .lives_under = [](std::string_view /*prefix*/) { return true; }};

const Dialect kCompressedTensorsMxfp4 = {
    .name = kName,
    .method = kName,
    .format = BlockFormat::mxfp4,
    .namings = kMxfp4Namings,
    .default_prefix = "model.layers.{}.mlp.experts",
    .lives_under = [](std::string_view /*prefix*/) { return true; }};

}  // namespace moxie
