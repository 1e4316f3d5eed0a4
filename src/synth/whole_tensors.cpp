// SPDX-License-Identifier: Apache-2.0
// The list is the model's; here every tensor gets its content and its random stream. Routers and
// experts of the main layers keep the streams that they have without the rest.
#include "synth/whole_tensors.hpp"

#include <string_view>
#include <utility>

#include "base/checked.hpp"

namespace moxie::synth {

namespace {

// FNV-1a, 64 bits.
std::uint64_t hash_of(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

bool is_main_router(std::string_view name) {
  return name.starts_with("layers.") &&
         (name.ends_with(".ffn.gate.weight") || name.ends_with(".ffn.gate.bias") ||
          name.ends_with(".ffn.gate.tid2eid"));
}

Content content_around_experts(const ModelTensor& tensor) {
  const std::string_view name = tensor.name;
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  if (tensor.dtype == DType::i64) return Content::token_table;
  if (tensor.dtype == DType::f8_e8m0) return Content::tile_exponents;
  if (tensor.dtype == DType::f32) {
    if (ends("_fn")) return Content::mix_weight;
    if (ends("_base")) return Content::mix_base;
    if (ends("_scale")) return Content::mix_scale;
    if (ends("attn_sink")) return Content::sink;
    return ends(".ape") ? Content::position_bias : Content::router_bias;
  }
  if (ends("ffn.gate.weight")) return Content::router_weight;
  const bool is_norm = name.find("norm") != std::string_view::npos;
  const bool is_engram_norm = ends(".q_weight") || ends(".k_weight");
  return is_norm || is_engram_norm ? Content::norm : Content::dense_weight;
}

Content content_of_expert(const ModelTensor& tensor) {
  const std::string_view name = tensor.name;
  if (name.ends_with("scale_2")) return Content::weight_global;
  if (name.ends_with("input_scale")) return Content::input_global;
  return name.ends_with("scale") ? Content::block_scales : Content::codes;
}

// A sum that stays at the largest number.
class Bytes {
 public:
  void add(const std::vector<ModelTensor>& tensors, std::uint64_t times = 1) {
    for (const ModelTensor& tensor : tensors) {
      std::uint64_t bytes = checked_multiply(bits_of(tensor.dtype) / 8, times).value_or(kTooMuch);
      for (const std::uint64_t extent : tensor.shape)
        bytes = checked_multiply(bytes, extent).value_or(kTooMuch);
      sum_ = checked_add(sum_, bytes).value_or(kTooMuch);
    }
  }
  [[nodiscard]] std::uint64_t sum() const { return sum_; }

 private:
  static constexpr std::uint64_t kTooMuch = ~std::uint64_t{0};
  std::uint64_t sum_ = 0;
};

}  // namespace

std::uint64_t whole_shards(const Recipe& recipe) {
  return recipe.layers + recipe.whole->drafts + 1;
}

std::vector<Tensor> tensors_of_shard(const Recipe& recipe, std::uint64_t shard,
                                     std::uint64_t first_number) {
  const V4Config& model = recipe.whole->config;
  const bool is_top = shard + 1 == whole_shards(recipe);
  const bool is_draft = shard >= recipe.layers;
  std::vector<Tensor> tensors;
  const auto add = [&](ModelTensor tensor, Content content, bool own_stream) -> Tensor& {
    const std::uint64_t stream = own_stream ? hash_of(tensor.name) : 0;
    tensors.push_back({.entry = {std::move(tensor.name), tensor.dtype, std::move(tensor.shape)},
                       .content = content,
                       .layer = shard,
                       .number = first_number + tensors.size(),
                       .stream = stream,
                       .format = is_draft ? std::optional(BlockFormat::mxfp4) : std::nullopt});
    return tensors.back();
  };
  for (ModelTensor& tensor : is_top ? top_tensors(model) : layer_tensors(model, shard)) {
    const Content content = content_around_experts(tensor);
    const bool own_stream = !is_main_router(tensor.name);
    add(std::move(tensor), content, own_stream);
  }
  if (is_top) return tensors;
  std::vector<ModelTensor> routed = routed_tensors(model, shard, recipe.format);
  constexpr ProjectionKind kOrder[] = {ProjectionKind::gate, ProjectionKind::up,
                                       ProjectionKind::down};
  const std::uint64_t experts = is_draft ? model.draft_experts : model.experts;
  const std::uint64_t parts = routed.size() / experts / 3;  // of one projection
  for (std::uint64_t i = 0; i < routed.size(); ++i) {
    const Content content = content_of_expert(routed[i]);
    Tensor& tensor = add(std::move(routed[i]), content, is_draft);
    tensor.expert = i / parts / 3;
    tensor.projection = kOrder[i / parts % 3];
  }
  return tensors;
}

std::uint64_t whole_bytes(const Recipe& recipe) {
  const V4Config& model = recipe.whole->config;
  // Experts are alike, in main layers and in drafts.
  V4Config one = model;
  one.experts = one.draft_experts = 1;
  Bytes bytes;
  bytes.add(top_tensors(model));
  for (std::uint64_t layer = 0; layer < model.layers + model.drafts; ++layer) {
    bytes.add(layer_tensors(model, layer));
    bytes.add(routed_tensors(one, layer, recipe.format),
              layer < model.layers ? model.experts : model.draft_experts);
  }
  return bytes.sum();
}

}  // namespace moxie::synth
