// SPDX-License-Identifier: Apache-2.0
// Names, types and shapes as published for transformers. Rows of gate and up take turns, in codes,
// scales and biases alike.
#include "synth/gpt_oss_names.hpp"

#include <string>
#include <utility>

#include "formats/block_format.hpp"

namespace moxie::synth {

namespace {

struct Rows {
  std::uint64_t count = 0;
  std::uint64_t columns = 0;
};

}  // namespace

std::vector<Tensor> gpt_oss_layer(const Recipe& recipe, std::uint64_t layer,
                                  std::uint64_t first_number) {
  constexpr std::uint64_t kGroup = scale_group(BlockFormat::mxfp4);
  const std::string experts = experts_prefix(recipe, layer) + ".";
  const std::string router = experts.substr(0, experts.rfind("experts.")) + "router.";
  std::vector<Tensor> tensors;
  const auto add = [&](std::string name, DType dtype, Shape shape, Content content,
                       ProjectionKind projection = ProjectionKind::gate) {
    tensors.push_back({.entry = {std::move(name), dtype, std::move(shape)},
                       .content = content,
                       .layer = layer,
                       .projection = projection,
                       .number = first_number + tensors.size()});
  };
  const auto add_projection = [&](const std::string& name, ProjectionKind kind, Rows rows) {
    const std::uint64_t groups = rows.columns / kGroup;
    add(name + "_blocks", DType::u8, {recipe.experts, rows.count, groups, kGroup / 2},
        Content::codes, kind);
    add(name + "_scales", DType::u8, {recipe.experts, rows.count, groups}, Content::block_scales,
        kind);
    add(name + "_bias", DType::bf16, {recipe.experts, rows.count}, Content::expert_bias, kind);
  };
  add(router + "weight", DType::bf16, {recipe.experts, recipe.hidden}, Content::router_weight);
  add(router + "bias", DType::bf16, {recipe.experts}, Content::logit_bias);
  add_projection(experts + "gate_up_proj", ProjectionKind::gate, {2 * recipe.inter, recipe.hidden});
  add_projection(experts + "down_proj", ProjectionKind::down, {recipe.hidden, recipe.inter});
  return tensors;
}

}  // namespace moxie::synth
