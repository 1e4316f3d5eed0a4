// SPDX-License-Identifier: Apache-2.0
// Names, types and shapes as DeepSeek, NVIDIA's re-quantisation, ModelOpt, compressed-tensors and
// Quark publish them.
#include "synth/names.hpp"

#include <string>
#include <string_view>
#include <utility>

#include "formats/block_format.hpp"
#include "synth/gguf_tensors.hpp"

namespace moxie::synth {

namespace {

struct LayerNames {
  std::string_view prefix;           // before the layer index
  std::string_view block;            // after it
  std::string_view projections[3];   // by ProjectionKind
  std::string_view correction_bias;  // under the block's gate
};

constexpr LayerNames kDeepseek{"layers.", ".ffn.", {"w1", "w3", "w2"}, "bias"};
constexpr LayerNames kOthers{
    "model.layers.", ".mlp.", {"gate_proj", "up_proj", "down_proj"}, "e_score_correction_bias"};

const LayerNames& names_of(DialectKind dialect) {
  return dialect == DialectKind::deepseek ? kDeepseek : kOthers;
}

std::string block_prefix(const Recipe& recipe, std::uint64_t layer) {
  const LayerNames& names = names_of(recipe.dialect);
  return std::string(names.prefix) + std::to_string(layer) + std::string(names.block);
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
      add(gate + std::string(names_of(recipe_.dialect).correction_bias), DType::f32,
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
    const Elems row_elems{is_down ? recipe_.inter : recipe_.hidden};
    const Shape codes{rows, to_packed_bytes(row_elems).value};
    const Shape scales{rows, to_scale_groups(row_elems, recipe_.format).value};

    const auto leaf = names_of(recipe_.dialect).projections[static_cast<std::size_t>(kind)];
    const std::string prefix = experts_prefix(recipe_, layer_) + "." + std::to_string(expert_) +
                               "." + std::string(leaf) + ".";
    const bool is_mxfp4 = recipe_.format == BlockFormat::mxfp4;
    if (is_mxfp4 && recipe_.dialect == DialectKind::deepseek) {
      add(prefix + "weight", DType::i8, codes, Content::codes);
      add(prefix + "scale", DType::f8_e8m0, scales, Content::block_scales);
      return;
    }
    const bool inverse = recipe_.dialect == DialectKind::compressed_tensors;
    add(prefix + (inverse ? "weight_packed" : "weight"), DType::u8, codes, Content::codes);
    add(prefix + "weight_scale", is_mxfp4 ? DType::u8 : DType::f8_e4m3, scales,
        Content::block_scales);
    if (is_mxfp4) return;
    const Shape one = inverse ? Shape{1} : Shape{};
    add(prefix + (inverse ? "weight_global_scale" : "weight_scale_2"), DType::f32, one,
        Content::weight_global);
    add(prefix + (inverse ? "input_global_scale" : "input_scale"), DType::f32, one,
        Content::input_global);
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
  if (recipe.dialect == DialectKind::gguf) return gguf_tensors(recipe, layer, first_number);
  return LayerBuilder(recipe, layer, first_number).build();
}

}  // namespace moxie::synth
