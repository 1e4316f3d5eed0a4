// SPDX-License-Identifier: Apache-2.0
// GGUF: all experts of a layer in one tensor per projection, codes and scales in blocks. NVFP4's
// globals are tensors of their own, one value per expert; where there is none, 1 is meant.
#include "model/dialects/dialect.hpp"

namespace moxie {

namespace {

constexpr std::array<std::string_view, 3> kWeights = {"ffn_gate_exps.weight", "ffn_up_exps.weight",
                                                      "ffn_down_exps.weight"};
constexpr std::array<std::string_view, 3> kBiases = {"ffn_gate_exps.bias", "ffn_up_exps.bias",
                                                     "ffn_down_exps.bias"};

constexpr StackedNames kMxfp4Names = {
    .kind = StackKind::gguf, .codes = kWeights, .block_scales = kWeights, .biases = kBiases};
constexpr StackedNames kNvfp4Names = {
    .kind = StackKind::gguf,
    .codes = kWeights,
    .block_scales = kWeights,
    .biases = kBiases,
    .dequant_muls = {"ffn_gate_exps.scale", "ffn_up_exps.scale", "ffn_down_exps.scale"},
    .act_dequant_muls = {"ffn_gate_exps.input_scale", "ffn_up_exps.input_scale",
                         "ffn_down_exps.input_scale"}};

constexpr std::string_view kPrefix = "blk.{}";
bool is_block(std::string_view prefix) { return prefix.starts_with("blk."); }

}  // namespace

const Dialect kGgufMxfp4 = {.name = "gguf",
                            .method = "gguf",
                            .format = BlockFormat::mxfp4,
                            .namings = {},
                            .default_prefix = kPrefix,
                            .lives_under = is_block,
                            .stacked = &kMxfp4Names};

const Dialect kGgufNvfp4 = {.name = "gguf",
                            .method = "gguf",
                            .format = BlockFormat::nvfp4,
                            .namings = {},
                            .default_prefix = kPrefix,
                            .lives_under = is_block,
                            .stacked = &kNvfp4Names};

}  // namespace moxie
