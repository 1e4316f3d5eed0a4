// SPDX-License-Identifier: Apache-2.0
// What will be written: the options of one call, resolved against the model's config.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "moxie/synth.hpp"

namespace moxie::synth {

// All tensors of a model.
struct WholeModel {
  std::uint64_t drafts = 0;
  bool full_size = false;  // all layers, experts and columns
  V4Config config{};       // what the written config.json says
};

struct Recipe {
  std::string model_type;          // of the whole model
  std::string_view layers_prefix;  // before the layer number; empty: the dialect's own
  DialectKind dialect = DialectKind::deepseek;
  BlockFormat format = BlockFormat::mxfp4;
  std::optional<DenseFormat> dense;  // instead of `format`; the dialect is then one of names only
  Pattern pattern = Pattern::normal;
  std::uint64_t seed = 0;
  std::uint64_t layers = 0;
  std::uint64_t experts = 0;
  std::uint64_t hidden = 0;
  std::uint64_t inter = 0;
  std::uint64_t top_k = 0;
  std::uint64_t hash_layers = 0;      // first layers that are routed by token id
  std::uint64_t vocab = 0;            // rows of a token table; 0 without hash layers
  bool correction_bias = false;       // layers routed by score have a selection bias
  bool biases = false;                // in GGUF: of every projection, and of the router's logits
  std::optional<WholeModel> whole{};  // without it the experts and their routers alone
};

// The text model's part of a config: `text_config` where there is one.
const Json& text_config_of(const Json& config);

// The family's key for the width of an expert.
std::string_view inter_key(std::string_view model_type);

// The experts per layer that a config states; 0 when it states none.
std::uint64_t stated_experts(const Json& config);

// Errors: Error(unsupported) MOXIE-P010 when the config is of no model that can be written, or the
// dialect does not go with the format; Error(usage) MOXIE-U003 for a size that is out of range.
Recipe make_recipe(const SynthOptions& options);

}  // namespace moxie::synth
