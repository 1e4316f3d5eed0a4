// SPDX-License-Identifier: Apache-2.0
// AMD Quark MXFP4: ModelOpt's names with E8M0 scales and no scalar. A group that has ModelOpt's
// global is not this dialect, whatever the type of its scales.
#include "model/dialects/dialect.hpp"

namespace moxie {

namespace {

constexpr DialectNames named(std::string_view gate, std::string_view up, std::string_view down) {
  return {.projections = {gate, up, down},
          .codes = ".weight",
          .block_scales = ".weight_scale",
          .bias = ".bias",
          .foreign = ".weight_scale_2"};
}

constexpr DialectNames kNamings[] = {named("gate_proj", "up_proj", "down_proj"),
                                     named("w1", "w3", "w2")};

}  // namespace

const Dialect kQuark = {.name = "quark",
                        .method = "quark",
                        .format = BlockFormat::mxfp4,
                        .namings = kNamings,
                        .default_prefix = "model.layers.{}.mlp.experts",
                        .lives_under = [](std::string_view /*prefix*/) { return true; }};

}  // namespace moxie
