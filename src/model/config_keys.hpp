// SPDX-License-Identifier: Apache-2.0
// Which config key holds which field, per model family.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "moxie/model.hpp"

namespace moxie {

// Keys that may hold one field; the first present one counts.
using Keys = std::array<std::string_view, 2>;

// One family: the values of `model_type` that it answers to, and its names for the fields. The text
// model's config may be nested under `text_config`.
struct FamilyKeys {
  std::array<std::string_view, 4> model_types;
  Keys hidden;  // the first key wins: a latent width that the routed experts see comes before the
                // model's width
  Keys inter;
  Keys experts;
  Keys top_k;
  Keys layers;
  Keys routed_scaling;
  Activation activation;
  RouterKind router;
  bool gated = true;
  bool norm_topk_default = true;  // where the config does not say
  bool biases = false;            // of the experts' projections
  Keys activation_limit{};
  Keys hash_layers{};
  Keys norm_topk{};
  Keys expert_groups{};  // empty: no selection by groups
  Keys kept_groups{};
  Keys router_hidden{};  // empty: the experts' width
};

// The family of a model_type, or nullptr.
const FamilyKeys* find_family(std::string_view model_type);

// All families, for messages and tests.
std::span<const FamilyKeys> families();

}  // namespace moxie
