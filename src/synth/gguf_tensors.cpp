// SPDX-License-Identifier: Apache-2.0
// Canonical bytes come from fill(), row by row, and are put into GGUF's form.
#include "synth/gguf_tensors.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "formats/block_format.hpp"
#include "formats/gguf_block.hpp"
#include "formats/nibble_order.hpp"
#include "synth/patterns.hpp"

namespace moxie::synth {

namespace {

constexpr ProjectionKind kProjections[] = {ProjectionKind::gate, ProjectionKind::up,
                                           ProjectionKind::down};

class LayerBuilder {
 public:
  LayerBuilder(const Recipe& recipe, std::uint64_t layer, std::uint64_t first_number)
      : recipe_(recipe),
        layer_(layer),
        prefix_("blk." + std::to_string(layer) + "."),
        number_(first_number) {}

  std::vector<Tensor> build() {
    add("ffn_gate_inp.weight", DType::f32, {recipe_.experts, recipe_.hidden},
        Content::router_weight);
    if (recipe_.biases)
      add("ffn_gate_inp.bias", DType::f32, {recipe_.experts}, Content::router_bias);
    if (layer_ < recipe_.hash_layers) {
      add("ffn_gate_tid2eid.weight", DType::i32, {recipe_.vocab, recipe_.top_k},
          Content::token_table);
    } else if (recipe_.correction_bias) {
      add("exp_probs_b.bias", DType::f32, {recipe_.experts}, Content::router_bias);
    }
    for (const ProjectionKind kind : kProjections) add_projection(kind);
    return std::move(tensors_);
  }

 private:
  void add_projection(ProjectionKind kind) {
    projection_ = kind;
    const bool is_down = kind == ProjectionKind::down;
    const std::uint64_t rows = is_down ? recipe_.hidden : recipe_.inter;
    const std::uint64_t columns = is_down ? recipe_.inter : recipe_.hidden;
    const bool is_mxfp4 = recipe_.format == BlockFormat::mxfp4;
    const std::string stem = "ffn_" + std::string(name_of(kind)) + "_exps.";
    add(stem + "weight", is_mxfp4 ? DType::mxfp4_blocks : DType::nvfp4_blocks,
        {recipe_.experts, rows, columns}, Content::blocks);
    if (recipe_.biases) add(stem + "bias", DType::f32, {recipe_.experts, rows}, Content::biases);
    if (is_mxfp4) return;
    add(stem + "scale", DType::f32, {recipe_.experts}, Content::weight_globals);
    add(stem + "input_scale", DType::f32, {recipe_.experts}, Content::input_globals);
  }

  void add(const std::string& leaf, DType dtype, Shape shape, Content content) {
    tensors_.push_back({.entry = {prefix_ + leaf, dtype, std::move(shape)},
                        .content = content,
                        .layer = layer_,
                        .projection = projection_,
                        .number = number_++});
  }

  const Recipe& recipe_;
  std::uint64_t layer_;
  std::string prefix_;
  ProjectionKind projection_ = ProjectionKind::gate;
  std::uint64_t number_;
  std::vector<Tensor> tensors_{};
};

// Calls fill_piece(index, piece) for the pieces of `piece_bytes` that the range touches, each in a
// buffer of its whole size.
template <class FillPiece>
void fill_pieces(std::uint64_t piece_bytes, std::uint64_t begin, std::span<std::byte> out,
                 const FillPiece& fill_piece) {
  std::vector<std::byte> piece(piece_bytes);
  while (!out.empty()) {
    const std::uint64_t skip = begin % piece_bytes;
    const std::uint64_t bytes = std::min<std::uint64_t>(piece_bytes - skip, out.size());
    fill_piece(begin / piece_bytes, std::span(piece));
    std::copy_n(piece.begin() + static_cast<std::ptrdiff_t>(skip), bytes, out.begin());
    out = out.subspan(bytes);
    begin += bytes;
  }
}

Tensor of_expert(const Tensor& stacked, Content content, std::uint64_t expert) {
  Tensor tensor = stacked;
  tensor.content = content;
  tensor.expert = expert;
  return tensor;
}

// A piece is a row: blocks of scales, then codes with split halves.
void fill_blocks(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
                 std::span<std::byte> out) {
  const std::uint64_t rows = tensor.entry.shape[1];
  const std::uint64_t columns = tensor.entry.shape[2];
  const std::uint64_t group = scale_group(recipe.format);
  const std::uint64_t block_groups = gguf_block(recipe.format).scales;
  const std::uint64_t groups = columns / group;
  std::vector<std::byte> codes(columns / 2);
  std::vector<std::byte> scales(groups);
  fill_pieces(
      codes.size() + groups, begin, out, [&](std::uint64_t index, std::span<std::byte> row) {
        const std::uint64_t expert = index / rows;
        fill(recipe, of_expert(tensor, Content::codes, expert), index % rows * codes.size(), codes);
        fill(recipe, of_expert(tensor, Content::block_scales, expert), index % rows * groups,
             scales);
        std::uint64_t at = 0;
        for (std::uint64_t first = 0; first < groups; first += block_groups) {
          std::copy_n(scales.begin() + static_cast<std::ptrdiff_t>(first), block_groups,
                      row.begin() + static_cast<std::ptrdiff_t>(at));
          at += block_groups;
          for (std::uint64_t i = first; i < first + block_groups; ++i) {
            reorder_block(reinterpret_cast<const std::uint8_t*>(codes.data() + i * group / 2),
                          NibbleOrder::even_low, reinterpret_cast<std::uint8_t*>(row.data() + at),
                          NibbleOrder::split_half, group);
            at += group / 2;
          }
        }
      });
}

// One scalar per expert.
void fill_scalars(const Recipe& recipe, const Tensor& tensor, Content content, std::uint64_t begin,
                  std::span<std::byte> out) {
  fill_pieces(sizeof(float), begin, out, [&](std::uint64_t expert, std::span<std::byte> scalar) {
    fill(recipe, of_expert(tensor, content, expert), 0, scalar);
  });
}

// bf16 values in the upper halves of f32 ones.
void fill_widened(const Recipe& recipe, Tensor tensor, std::uint64_t begin,
                  std::span<std::byte> out) {
  tensor.entry.dtype = DType::bf16;
  const std::uint64_t row = tensor.entry.shape[1];
  std::vector<std::byte> narrow(2 * row);
  fill_pieces(4 * row, begin, out, [&](std::uint64_t index, std::span<std::byte> wide) {
    fill(recipe, tensor, index * narrow.size(), narrow);
    for (std::size_t i = 0; i < row; ++i) {
      wide[4 * i] = wide[4 * i + 1] = std::byte{0};
      wide[4 * i + 2] = narrow[2 * i];
      wide[4 * i + 3] = narrow[2 * i + 1];
    }
  });
}

// Ids below 2^31, without the zeros above.
void fill_narrowed(const Recipe& recipe, Tensor tensor, std::uint64_t begin,
                   std::span<std::byte> out) {
  tensor.entry.dtype = DType::i64;
  const std::uint64_t row = tensor.entry.shape[1];
  std::vector<std::byte> wide(8 * row);
  fill_pieces(4 * row, begin, out, [&](std::uint64_t index, std::span<std::byte> narrow) {
    fill(recipe, tensor, index * wide.size(), wide);
    for (std::size_t i = 0; i < row; ++i)
      std::copy_n(wide.begin() + static_cast<std::ptrdiff_t>(8 * i), 4,
                  narrow.begin() + static_cast<std::ptrdiff_t>(4 * i));
  });
}

// An expert's values have a stream of their own.
void fill_biases(const Recipe& recipe, Tensor tensor, std::uint64_t begin,
                 std::span<std::byte> out) {
  const std::uint64_t row = tensor.entry.shape[1];
  tensor.entry.shape.clear();  // marks one expert's part
  fill_pieces(4 * row, begin, out, [&](std::uint64_t expert, std::span<std::byte> values) {
    fill(recipe, of_expert(tensor, Content::biases, expert), 0, values);
  });
}

}  // namespace

std::vector<Tensor> gguf_tensors(const Recipe& recipe, std::uint64_t layer,
                                 std::uint64_t first_number) {
  return LayerBuilder(recipe, layer, first_number).build();
}

bool fill_gguf(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
               std::span<std::byte> out) {
  switch (tensor.content) {
    case Content::blocks:
      fill_blocks(recipe, tensor, begin, out);
      return true;
    case Content::weight_globals:
      fill_scalars(recipe, tensor, Content::weight_global, begin, out);
      return true;
    case Content::input_globals:
      fill_scalars(recipe, tensor, Content::input_global, begin, out);
      return true;
    case Content::router_weight:
      if (tensor.entry.dtype != DType::f32) return false;
      fill_widened(recipe, tensor, begin, out);
      return true;
    case Content::token_table:
      if (tensor.entry.dtype != DType::i32) return false;
      fill_narrowed(recipe, tensor, begin, out);
      return true;
    case Content::biases:
      if (tensor.entry.shape.empty()) return false;
      fill_biases(recipe, tensor, begin, out);
      return true;
    default:
      return false;
  }
}

}  // namespace moxie::synth
