// SPDX-License-Identifier: Apache-2.0
// gpt-oss MXFP4: all experts of a layer in one tensor, rows of gate and up interleaved, biases. As
// published for transformers, and in the publisher's own files.
#include "model/dialects/dialect.hpp"

namespace moxie {

namespace {

constexpr StackedNames kNames = {
    .kind = StackKind::blocks,
    .codes = {"gate_up_proj_blocks", "gate_up_proj_blocks", "down_proj_blocks"},
    .block_scales = {"gate_up_proj_scales", "gate_up_proj_scales", "down_proj_scales"},
    .biases = {"gate_up_proj_bias", "gate_up_proj_bias", "down_proj_bias"}};

constexpr StackedNames kOriginalNames = {
    .kind = StackKind::blocks,
    .codes = {"mlp1_weight.blocks", "mlp1_weight.blocks", "mlp2_weight.blocks"},
    .block_scales = {"mlp1_weight.scales", "mlp1_weight.scales", "mlp2_weight.scales"},
    .biases = {"mlp1_bias", "mlp1_bias", "mlp2_bias"}};

}  // namespace

const Dialect kGptOss = {
    .name = "gpt-oss",
    .method = "mxfp4",
    .format = BlockFormat::mxfp4,
    .namings = {},
    .default_prefix = "model.layers.{}.mlp.experts",
    .lives_under = [](std::string_view prefix) { return prefix.ends_with(".experts"); },
    .stacked = &kNames};

const Dialect kGptOssOriginal = {
    .name = "gpt-oss",
    .method = "mxfp4",
    .format = BlockFormat::mxfp4,
    .namings = {},
    .default_prefix = "block.{}.mlp",
    .lives_under = [](std::string_view prefix) { return prefix.starts_with("block."); },
    .stacked = &kOriginalNames};

}  // namespace moxie
