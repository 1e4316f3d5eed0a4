// SPDX-License-Identifier: Apache-2.0
// The tensors of DeepSeek-V4 checkpoints by name. Source: the published reference code and headers
// of the published files; what is cut, and along what, is stated once, in `Cuts`.
#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "formats/block_format.hpp"
#include "moxie/tensors.hpp"

namespace moxie {

namespace {

constexpr std::array<std::string_view, kAxes> kAxisNames = {"moe_inter", "heads", "output_groups",
                                                            "shared_inter", "vocab"};
constexpr std::array<std::string_view, 6> kUnitNames = {"row",   "column",   "byte",
                                                        "group", "tile_row", "tile_column"};

// Of the scales that belong to a weight with this cut: one entry per tile of the weight's entries.
TensorCut scales_of(TensorCut weight, std::uint64_t tile) {
  const std::uint64_t common = std::gcd(weight.entries, tile);
  weight.entries /= common;
  weight.elems *= tile / common;
  weight.unit = weight.unit == StorageUnit::row ? StorageUnit::tile_row : StorageUnit::tile_column;
  return weight;
}

struct Cuts {
  explicit Cuts(const CutWidths& widths)
      : wq_b{.axis = Axis::heads, .unit = StorageUnit::row, .entries = widths.head_dim},
        wo_a{.axis = Axis::output_groups, .unit = StorageUnit::row, .entries = widths.o_rank},
        wo_b{.axis = Axis::output_groups, .unit = StorageUnit::column, .entries = widths.o_rank} {}

  TensorCut wq_b;
  TensorCut wo_a;
  TensorCut wo_b;
  // A head without data takes part in nothing: the sink enlarges its softmax's denominator only.
  TensorCut sink{.axis = Axis::heads, .tail = Tail::minus_infinity, .width = PartWidth::kernel};
  TensorCut shared_rows{.axis = Axis::shared_inter, .unit = StorageUnit::row};
  TensorCut shared_columns{.axis = Axis::shared_inter, .unit = StorageUnit::column};
  TensorCut vocab{.axis = Axis::vocab, .unit = StorageUnit::row};
};

// Collects the tensors under one prefix.
class TensorList {
 public:
  explicit TensorList(const V4Config& config) : config_(config), cuts_(config.cut_widths()) {}

  std::vector<ModelTensor> take() { return std::move(tensors_); }
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  [[nodiscard]] const Cuts& cuts() const { return cuts_; }

  void add(std::string_view name, DType dtype, Shape shape, std::optional<TensorCut> cut = {}) {
    tensors_.push_back({prefix_ + std::string(name), dtype, std::move(shape), cut});
  }
  void bf16(std::string_view name, Shape shape) { add(name, DType::bf16, std::move(shape)); }
  void f32(std::string_view name, Shape shape) { add(name, DType::f32, std::move(shape)); }
  // Block-scaled FP8, [rows, columns] and [row tiles, column tiles].
  void fp8(const std::string& name, std::uint64_t rows, std::uint64_t columns,
           std::optional<TensorCut> cut = {}) {
    const std::uint64_t tile = config_.tile;
    add(name + ".weight", DType::f8_e4m3, {rows, columns}, cut);
    add(name + ".scale", DType::f8_e8m0, {divide_up(rows, tile), divide_up(columns, tile)},
        cut ? std::optional(scales_of(*cut, tile)) : std::nullopt);
  }

 private:
  const V4Config& config_;
  Cuts cuts_;
  std::string prefix_{};
  std::vector<ModelTensor> tensors_{};
};

bool holds(const std::vector<std::uint64_t>& list, std::uint64_t number) {
  return std::ranges::find(list, number) != list.end();
}

bool is_draft(const V4Config& c, std::uint64_t layer) { return layer >= c.layers; }

void add_head_mix(const V4Config& c, TensorList& list) {
  list.f32("hc_head_fn", {c.copies, c.copies * c.hidden});
  list.f32("hc_head_base", {c.copies});
  list.f32("hc_head_scale", {1});
}

// Compressed keys: entries of `ratio` tokens; at ratio 4 neighbours overlap, which takes twice the
// channels.
void add_compressor(const V4Config& c, std::uint64_t ratio, TensorList& list) {
  const auto compressor = [&](const std::string& name, std::uint64_t width, std::uint64_t dim) {
    list.f32(name + ".ape", {ratio, width});
    list.bf16(name + ".wkv.weight", {width, c.hidden});
    list.bf16(name + ".wgate.weight", {width, c.hidden});
    list.bf16(name + ".norm.weight", {dim});
  };
  constexpr std::uint64_t kOverlapping = 4;
  const std::uint64_t doubled = ratio == kOverlapping ? 2 : 1;
  compressor("attn.compressor", doubled * c.head_dim, c.head_dim);
  if (ratio != kOverlapping) return;
  list.fp8("attn.indexer.wq_b", c.index_heads * c.index_dim, c.q_rank);
  list.bf16("attn.indexer.weights_proj.weight", {c.index_heads, c.hidden});
  compressor("attn.indexer.compressor", 2 * c.index_dim, c.index_dim);
}

// V4.1 shares caches between layers: few layers have a compressor, some of the others an indexer.
void add_shared_caches(const V4Config& c, std::uint64_t layer, TensorList& list) {
  if (holds(c.kv_sources, layer)) {
    list.bf16("attn.compressor.wkv.weight", {c.head_dim, c.hidden});
    list.bf16("attn.compressor.norm.weight", {c.head_dim});
    if (c.compress_ratios[layer] > 1)
      list.bf16("attn.compressor.wgate.weight", {c.head_dim, c.hidden});
    list.bf16("attn.indexer.wk.weight", {c.index_dim, c.head_dim});
    list.bf16("attn.indexer.k_norm.weight", {c.index_dim});
  }
  if (holds(c.index_sources, layer)) {
    list.fp8("attn.indexer.wq_b", c.index_heads * c.index_dim, c.q_rank);
    list.bf16("attn.indexer.weights_proj.weight", {c.index_heads, c.hidden});
  }
}

void add_engram(const V4Config& c, std::uint64_t layer, TensorList& list) {
  const auto found = std::ranges::find(c.engram_layers, layer);
  const auto which = static_cast<std::size_t>(found - c.engram_layers.begin());
  if (which >= c.engram_rows.size()) return;
  constexpr std::uint64_t kEngramGroup = 32;  // values of a row under one scale
  const std::uint64_t rows = c.engram_rows[which];
  list.add("engram.embed.weight", DType::f8_e4m3, {rows, c.engram_dim});
  list.add("engram.embed.scale", DType::f8_e8m0, {rows, divide_up(c.engram_dim, kEngramGroup)});
  // A key for every copy of the residual, and a value.
  list.fp8("engram.wkv", (c.copies + 1) * c.hidden, c.engram_width);
  list.bf16("engram.q_weight", {c.copies, c.hidden});
  list.bf16("engram.k_weight", {c.copies, c.hidden});
}

void add_attention(const V4Config& c, TensorList& list) {
  const Cuts& cuts = list.cuts();
  list.fp8("attn.wq_a", c.q_rank, c.hidden);
  list.bf16("attn.q_norm.weight", {c.q_rank});
  list.fp8("attn.wq_b", c.heads * c.head_dim, c.q_rank, cuts.wq_b);
  list.fp8("attn.wkv", c.head_dim, c.hidden);
  list.bf16("attn.kv_norm.weight", {c.head_dim});
  list.add("attn.attn_sink", DType::f32, {c.heads}, cuts.sink);
  list.fp8("attn.wo_a", c.output_groups * c.o_rank, c.group_heads() * c.head_dim, cuts.wo_a);
  list.fp8("attn.wo_b", c.hidden, c.output_groups * c.o_rank, cuts.wo_b);
}

void add_router(const V4Config& c, std::uint64_t layer, TensorList& list) {
  const std::uint64_t experts = is_draft(c, layer) ? c.draft_experts : c.experts;
  list.bf16("ffn.gate.weight", {experts, c.hidden});
  if (layer < c.hash_layers) return list.add("ffn.gate.tid2eid", DType::i64, {c.vocab, c.top_k});
  list.f32("ffn.gate.bias", {experts});
  if (c.release == V4Config::Release::v4_1) list.f32("ffn.gate.bias_vl", {experts});
}

void add_shared_experts(const V4Config& c, TensorList& list) {
  list.fp8("ffn.shared_experts.w1", c.shared_inter, c.hidden, list.cuts().shared_rows);
  list.fp8("ffn.shared_experts.w3", c.shared_inter, c.hidden, list.cuts().shared_rows);
  list.fp8("ffn.shared_experts.w2", c.hidden, c.shared_inter, list.cuts().shared_columns);
}

// What draft blocks have beside a layer's tensors.
void add_draft(const V4Config& c, std::uint64_t draft, TensorList& list) {
  if (c.release == V4Config::Release::v4) {
    list.fp8("e_proj", c.hidden, c.hidden);
    list.fp8("h_proj", c.hidden, c.hidden);
    for (const std::string_view norm : {"enorm.weight", "hnorm.weight", "norm.weight"})
      list.bf16(norm, {c.hidden});
    return add_head_mix(c, list);
  }
  constexpr std::uint64_t kTargets = 3;  // layers of the main model that the first draft sees
  if (draft == 0) {
    list.fp8("main_proj", c.hidden, kTargets * c.hidden);
    list.bf16("main_norm.weight", {c.hidden});
  }
  if (draft + 1 != c.drafts) return;
  const bool is_v4_1 = c.release == V4Config::Release::v4_1;
  list.bf16("norm.weight", {c.hidden});
  if (!is_v4_1) add_head_mix(c, list);
  for (const std::string_view table :
       is_v4_1 ? std::array{"embed", "head"} : std::array{"markov_w1", "markov_w2"}) {
    list.add("markov_head." + std::string(table) + ".weight", DType::bf16, {c.vocab, c.markov_rank},
             list.cuts().vocab);
  }
  list.bf16("confidence_head.proj.weight", {1, c.hidden + c.markov_rank});
}

void add_vision(const V4Config& c, TensorList& list) {
  const std::uint64_t width = c.vision_hidden;
  const auto biased = [&](const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    list.bf16(name + ".weight", {rows, columns});
    list.bf16(name + ".bias", {rows});
  };
  for (std::uint64_t block = 0; block < c.vision_layers; ++block) {
    const std::string prefix = "vision.blocks." + std::to_string(block) + ".";
    biased(prefix + "attn.wqkv", 3 * width, width);
    biased(prefix + "attn.wo", width, width);
    list.bf16(prefix + "mlp.w1.weight", {2 * c.vision_inter, width});
    list.bf16(prefix + "mlp.w2.weight", {width, c.vision_inter});
    list.bf16(prefix + "norm1.weight", {width});
    list.bf16(prefix + "norm2.weight", {width});
  }
  biased("vision.patch_embed.proj", width, c.vision_patch);
  biased("aligner.w1", c.hidden, c.vision_downsample * c.vision_downsample * width);
  biased("aligner.w2", c.hidden, c.hidden);
  list.bf16("vision.norm.weight", {width});
  for (const std::string_view name : {"image_start", "image_end", "image_newline"})
    list.bf16(name, {c.hidden});
}

}  // namespace

std::string_view name_of(Axis axis) { return kAxisNames[static_cast<std::size_t>(axis)]; }

std::string_view name_of(StorageUnit unit) { return kUnitNames[static_cast<std::size_t>(unit)]; }

unsigned dimension_of(StorageUnit unit) {
  return unit == StorageUnit::row || unit == StorageUnit::tile_row ? 0 : 1;
}

std::vector<CutTensor> cut_tensors(const CutWidths& widths) {
  const Cuts cuts(widths);
  std::vector<CutTensor> list;
  const auto fp8 = [&](std::string_view weight, std::string_view scale, const TensorCut& cut) {
    list.push_back({weight, cut});
    list.push_back({scale, scales_of(cut, widths.tile)});
  };
  fp8("wq_b", "wq_b_scale", cuts.wq_b);
  list.push_back({"attn_sink", cuts.sink});
  fp8("wo_a", "wo_a_scale", cuts.wo_a);
  fp8("wo_b", "wo_b_scale", cuts.wo_b);
  fp8("shared_gate", "shared_gate_scale", cuts.shared_rows);
  fp8("shared_up", "shared_up_scale", cuts.shared_rows);
  fp8("shared_down", "shared_down_scale", cuts.shared_columns);
  list.push_back({"embed", cuts.vocab});
  list.push_back({"head", cuts.vocab});
  return list;
}

std::string layer_prefix(const V4Config& c, std::uint64_t layer) {
  return is_draft(c, layer) ? "mtp." + std::to_string(layer - c.layers) + "."
                            : "layers." + std::to_string(layer) + ".";
}

std::vector<ModelTensor> layer_tensors(const V4Config& c, std::uint64_t layer) {
  TensorList list(c);
  list.set_prefix(layer_prefix(c, layer));
  list.bf16("attn_norm.weight", {c.hidden});
  list.bf16("ffn_norm.weight", {c.hidden});
  const std::uint64_t mixes = (2 + c.copies) * c.copies;
  for (const std::string mix : {"hc_attn_", "hc_ffn_"}) {
    list.f32(mix + "fn", {mixes, c.copies * c.hidden});
    list.f32(mix + "base", {mixes});
    list.f32(mix + "scale", {3});
  }
  add_attention(c, list);
  if (c.release == V4Config::Release::v4_1) {
    add_shared_caches(c, layer, list);
    add_engram(c, layer, list);
  } else if (!is_draft(c, layer) && c.compress_ratios[layer] != 0) {
    add_compressor(c, c.compress_ratios[layer], list);
  }
  add_router(c, layer, list);
  add_shared_experts(c, list);
  if (is_draft(c, layer)) add_draft(c, layer - c.layers, list);
  return list.take();
}

std::vector<ModelTensor> routed_tensors(const V4Config& c, std::uint64_t layer,
                                        BlockFormat main_format) {
  const bool draft = is_draft(c, layer);
  const BlockFormat format = draft ? BlockFormat::mxfp4 : main_format;
  const bool nvfp4 = format == BlockFormat::nvfp4;
  const std::uint64_t group = scale_group(format);
  const auto cut = [](StorageUnit unit, std::uint64_t elems) {
    return TensorCut{.unit = unit, .elems = elems, .width = PartWidth::kernel};
  };
  TensorList list(c);
  const std::uint64_t experts = draft ? c.draft_experts : c.experts;
  for (std::uint64_t expert = 0; expert < experts; ++expert) {
    list.set_prefix(layer_prefix(c, layer) + "ffn.experts." + std::to_string(expert) + ".");
    for (const std::string leaf : {"w1", "w3", "w2"}) {
      const bool down = leaf == "w2";
      const std::uint64_t rows = down ? c.hidden : c.inter;
      const std::uint64_t columns = down ? c.inter : c.hidden;
      const TensorCut codes = down ? cut(StorageUnit::byte, 2) : cut(StorageUnit::row, 1);
      const TensorCut scales = down ? cut(StorageUnit::group, group) : cut(StorageUnit::row, 1);
      list.add(leaf + ".weight", nvfp4 ? DType::u8 : DType::i8, {rows, columns / 2}, codes);
      list.add(leaf + (nvfp4 ? ".weight_scale" : ".scale"), nvfp4 ? DType::f8_e4m3 : DType::f8_e8m0,
               {rows, columns / group}, scales);
      if (!nvfp4) continue;
      list.f32(leaf + ".weight_scale_2", {});
      list.f32(leaf + ".input_scale", {});
    }
  }
  return list.take();
}

std::vector<ModelTensor> top_tensors(const V4Config& c) {
  TensorList list(c);
  list.add("embed.weight", DType::bf16, {c.vocab, c.hidden}, list.cuts().vocab);
  list.add("head.weight", DType::bf16, {c.vocab, c.hidden}, list.cuts().vocab);
  list.bf16("norm.weight", {c.hidden});
  if (c.release != V4Config::Release::v4_1) add_head_mix(c, list);
  if (c.vision_layers > 0) add_vision(c, list);
  return list.take();
}

}  // namespace moxie
