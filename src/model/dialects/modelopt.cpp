// SPDX-License-Identifier: Apache-2.0
// ModelOpt NVFP4 of other models: value = E2M1 * weight_scale (UE4M3 per 16) * weight_scale_2;
// input_scale multiplies activations. Projections are named gate_proj, up_proj, down_proj, or w1,
// w3, w2.
#include "model/dialects/dialect.hpp"

namespace moxie {

namespace {

constexpr DialectNames named(std::string_view gate, std::string_view up, std::string_view down) {
  return {.projections = {gate, up, down},
          .codes = ".weight",
          .block_scales = ".weight_scale",
          .dequant_mul = ".weight_scale_2",
          .act_dequant_mul = ".input_scale",
          .bias = ".bias"};
}

constexpr DialectNames kNamings[] = {named("gate_proj", "up_proj", "down_proj"),
                                     named("w1", "w3", "w2")};

}  // namespace

const Dialect kModelopt = {
    .name = "modelopt",
    .format = BlockFormat::nvfp4,
    .namings = kNamings,
    .default_prefix = "model.layers.{}.mlp.experts",
    .lives_under = [](std::string_view prefix) { return !prefix.ends_with("ffn.experts"); }};

}  // namespace moxie
