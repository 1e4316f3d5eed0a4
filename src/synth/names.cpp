// SPDX-License-Identifier: Apache-2.0
// The router by hand, the experts as their dialect has them.
#include "synth/names.hpp"

#include <string>
#include <string_view>
#include <utility>

#include "base/checked.hpp"
#include "model/dialects/written_tensors.hpp"
#include "synth/gguf_tensors.hpp"
#include "synth/gpt_oss_names.hpp"

namespace moxie::synth {

namespace {

constexpr std::uint64_t kTile = 128;  // rows and columns under one scale of block-scaled FP8

Content content_of(WrittenPart part) {
  switch (part) {
    case WrittenPart::codes:
      return Content::codes;
    case WrittenPart::block_scales:
      return Content::block_scales;
    case WrittenPart::weight_global:
      return Content::weight_global;
    case WrittenPart::input_global:
      break;
  }
  return Content::input_global;
}

std::string block_prefix(const Recipe& recipe, std::uint64_t layer) {
  const BlockNames& names = block_names(recipe.dialect);
  const std::string_view prefix =
      recipe.layers_prefix.empty() ? names.prefix : recipe.layers_prefix;
  return std::string(prefix) + std::to_string(layer) + std::string(names.block);
}

class LayerBuilder {
 public:
  LayerBuilder(const Recipe& recipe, std::uint64_t layer, std::uint64_t first_number)
      : recipe_(recipe), layer_(layer), number_(first_number) {}

  std::vector<Tensor> build() {
    const std::string gate = block_prefix(recipe_, layer_) + "gate.";
    add(gate + "weight", DType::bf16, {recipe_.experts, recipe_.hidden}, Content::router_weight);
    if (layer_ < recipe_.hash_layers) {
      add(gate + "tid2eid", DType::i64, {recipe_.vocab, recipe_.top_k}, Content::token_table);
    } else if (recipe_.correction_bias) {
      add(gate + std::string(block_names(recipe_.dialect).correction_bias), DType::f32,
          {recipe_.experts}, Content::router_bias);
    }
    for (expert_ = 0; expert_ < recipe_.experts; ++expert_) {
      for (const auto kind : {ProjectionKind::gate, ProjectionKind::up, ProjectionKind::down}) {
        add_projection(kind);
      }
    }
    return std::move(tensors_);
  }

 private:
  void add_projection(ProjectionKind kind) {
    projection_ = kind;
    const bool is_down = kind == ProjectionKind::down;
    const std::uint64_t rows = is_down ? recipe_.hidden : recipe_.inter;
    const std::uint64_t cols = is_down ? recipe_.inter : recipe_.hidden;
    const auto leaf = block_names(recipe_.dialect).projections[static_cast<std::size_t>(kind)];
    const std::string stem =
        experts_prefix(recipe_, layer_) + "." + std::to_string(expert_) + "." + std::string(leaf);
    if (recipe_.dense) return add_dense(stem, rows, cols);
    for (WrittenTensor& tensor :
         written_projection(recipe_.dialect, recipe_.format, stem, rows, cols, true)) {
      add(std::move(tensor.entry.name), tensor.entry.dtype, std::move(tensor.entry.shape),
          content_of(tensor.part));
    }
  }

  void add_dense(const std::string& stem, std::uint64_t rows, std::uint64_t cols) {
    const bool is_fp8 = recipe_.dense == DenseFormat::fp8_block;
    add(stem + ".weight", is_fp8 ? DType::f8_e4m3 : DType::bf16, {rows, cols},
        Content::dense_weight);
    if (!is_fp8) return;
    add(stem + ".weight_scale_inv", DType::f32, {divide_up(rows, kTile), divide_up(cols, kTile)},
        Content::tile_scales);
  }

  void add(std::string name, DType dtype, Shape shape, Content content) {
    tensors_.push_back({.entry = {std::move(name), dtype, std::move(shape)},
                        .content = content,
                        .layer = layer_,
                        .expert = expert_,
                        .projection = projection_,
                        .number = number_++});
  }

  const Recipe& recipe_;
  std::uint64_t layer_;
  std::uint64_t expert_ = 0;
  ProjectionKind projection_ = ProjectionKind::gate;
  std::uint64_t number_;
  std::vector<Tensor> tensors_{};
};

}  // namespace

std::string experts_prefix(const Recipe& recipe, std::uint64_t layer) {
  return block_prefix(recipe, layer) + "experts";
}

std::vector<Tensor> tensors_of_layer(const Recipe& recipe, std::uint64_t layer,
                                     std::uint64_t first_number) {
  if (recipe.dialect == DialectKind::gpt_oss) return gpt_oss_layer(recipe, layer, first_number);
  if (recipe.dialect == DialectKind::gguf) return gguf_tensors(recipe, layer, first_number);
  return LayerBuilder(recipe, layer, first_number).build();
}

}  // namespace moxie::synth
