// SPDX-License-Identifier: Apache-2.0
// Model records for the planner, which reads config facts and no tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>

#include "moxie/plan.hpp"

namespace moxie::test {

struct PlanSizes {
  std::uint64_t hidden = 64;
  std::uint64_t inter = 96;
  std::uint64_t experts = 4;
  std::uint64_t layers = 1;
  bool gated = true;
};

inline MoeModel plan_model(const PlanSizes& sizes, std::optional<BlockFormat> format) {
  MoeModel model{.checkpoint = Checkpoint(nullptr),
                 .config = {},
                 .format = format,
                 .dialect = {},
                 .layers = {},
                 .findings = {}};
  model.config.model_type = "test";
  model.config.hidden = sizes.hidden;
  model.config.inter = sizes.inter;
  model.config.experts = sizes.experts;
  model.config.top_k = 1;
  model.config.num_layers = sizes.layers;
  model.config.moe_layers.resize(sizes.layers);
  std::iota(model.config.moe_layers.begin(), model.config.moe_layers.end(), 0);
  model.config.gated = sizes.gated;
  model.config.format = format;
  return model;
}

inline constexpr BlockFormat kFormats[] = {BlockFormat::mxfp4, BlockFormat::nvfp4};

inline BlockFormat format_named(const std::string& name) {
  return name == "mxfp4" ? BlockFormat::mxfp4 : BlockFormat::nvfp4;
}

// The published widths by the names of tests/golden.
inline PlanSizes published(const std::string& model) {
  if (model == "V4-Flash") return {.hidden = 4096, .inter = 2048, .experts = 256, .layers = 43};
  if (model == "V4-Pro") return {.hidden = 7168, .inter = 3072, .experts = 384, .layers = 61};
  if (model == "V4.1-Flash") return {.hidden = 5120, .inter = 2304, .experts = 384, .layers = 40};
  return {.hidden = 2880, .inter = 2880, .experts = 32, .layers = 24};  // gpt-oss-20b
}

}  // namespace moxie::test
