// SPDX-License-Identifier: Apache-2.0
// Every tensor of a DeepSeek-V4 checkpoint: its name, type and shape, and how ranks share it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/types.hpp"

namespace moxie {

// Axes along which ranks share a model.
enum class Axis : std::uint8_t { moe_inter, heads, output_groups, shared_inter, vocab };
inline constexpr unsigned kAxes = 5;
// "moe_inter", "heads", "output_groups", "shared_inter", "vocab".
MOXIE_API std::string_view name_of(Axis axis);

// What one stored entry along a cut dimension is. Tiles are those of block-scaled FP8.
enum class StorageUnit : std::uint8_t { row, column, byte, group, tile_row, tile_column };
MOXIE_API std::string_view name_of(StorageUnit unit);
// The dimension that is cut: 0 for rows, 1 for the others.
MOXIE_API unsigned dimension_of(StorageUnit unit);

// What fills a rank's part behind its real entries: zero bytes, or f32 minus infinity.
enum class Tail : std::uint8_t { zero, minus_infinity };

// The width of a rank's part: its share of the axis, or what the kernel wants.
enum class PartWidth : std::uint8_t { local, kernel };

// How ranks share one tensor: `elems` elements of the axis are `entries` stored ones. One of the
// two is 1.
struct TensorCut {
  Axis axis = Axis::moe_inter;
  StorageUnit unit = StorageUnit::row;
  std::uint64_t entries = 1;
  std::uint64_t elems = 1;
  Tail tail = Tail::zero;
  PartWidth width = PartWidth::local;

  friend bool operator==(const TensorCut&, const TensorCut&) = default;
};

// One tensor as the checkpoint stores it. Without a cut every rank holds all of it.
struct ModelTensor {
  std::string name;
  DType dtype = DType::u8;
  Shape shape;
  std::optional<TensorCut> cut;
};

// One kind of tensor that is cut, e.g. {"wq_b", ...} in every layer.
struct CutTensor {
  std::string_view tensor;
  TensorCut cut;
};

// What decides how many stored entries an element of an axis has.
struct CutWidths {
  std::uint64_t head_dim = 0;  // rows of wq_b per head
  std::uint64_t o_rank = 0;    // rows of wo_a, columns of wo_b per output group
  std::uint64_t tile = 0;      // rows and columns under one FP8 scale

  friend bool operator==(const CutWidths&, const CutWidths&) = default;
};

// What config.json says of a DeepSeek-V4 model beside its routed experts.
struct V4Config {
  // How the published models of the family differ in their tensors.
  enum class Release : std::uint8_t {
    v4,       // V4-Flash and V4-Pro: one multi-token-prediction block
    v4_0731,  // the later V4-Flash: three draft blocks
    v4_1      // shared caches, engrams, three draft blocks with experts of their own
  };
  Release release = Release::v4;
  std::uint64_t hidden = 0;
  std::uint64_t vocab = 0;
  std::uint64_t layers = 0;
  std::uint64_t heads = 0;
  std::uint64_t head_dim = 0;
  std::uint64_t rope_dim = 0;
  std::uint64_t q_rank = 0;
  std::uint64_t output_groups = 0;
  std::uint64_t o_rank = 0;        // rows of wo_a per output group
  std::uint64_t shared_inter = 0;  // of all shared experts together
  std::uint64_t inter = 0;         // of a routed expert
  std::uint64_t experts = 0;
  std::uint64_t top_k = 0;
  std::uint64_t hash_layers = 0;  // first layers routed by token id
  std::uint64_t copies = 0;       // of the residual (hyper-connections)
  std::uint64_t index_heads = 0;
  std::uint64_t index_dim = 0;
  std::uint64_t tile = 128;                    // rows and columns under one FP8 scale
  std::vector<std::uint64_t> compress_ratios;  // by layer, then by draft block
  std::uint64_t drafts = 0;                    // multi-token-prediction blocks
  std::uint64_t draft_experts = 0;
  std::uint64_t draft_top_k = 0;
  std::uint64_t markov_rank = 0;  // of the later drafts
  // V4.1 alone.
  std::vector<std::uint64_t> kv_sources;     // layers with a compressor
  std::vector<std::uint64_t> index_sources;  // layers with an indexer
  std::vector<std::uint64_t> engram_layers;
  std::vector<std::uint64_t> engram_rows;  // of each engram's table
  std::uint64_t engram_dim = 0;
  std::uint64_t engram_width = 0;  // what enters an engram's projection
  std::uint64_t vision_layers = 0;
  std::uint64_t vision_hidden = 0;
  std::uint64_t vision_inter = 0;
  std::uint64_t vision_patch = 0;       // values of a patch
  std::uint64_t vision_downsample = 0;  // patches that become one token, per side

  // Heads that make one output group.
  [[nodiscard]] std::uint64_t group_heads() const { return heads / output_groups; }
  [[nodiscard]] CutWidths cut_widths() const { return {head_dim, o_rank, tile}; }
};

// Every kind of tensor that ranks share, routed experts aside; of block-scaled FP8 the weight and
// its scales. Source: the published reference code; docs/formats.md.
MOXIE_API std::vector<CutTensor> cut_tensors(const CutWidths& widths);

// "layers.3."; draft blocks count after the last layer: "mtp.0.".
MOXIE_API std::string layer_prefix(const V4Config& config, std::uint64_t layer);
// The tensors of a layer around its routed experts: norms, hyper-connections, attention, router,
// shared experts.
MOXIE_API std::vector<ModelTensor> layer_tensors(const V4Config& config, std::uint64_t layer);
// The routed experts of a layer as DeepSeek names them; `format` is the main layers', draft blocks
// stay in MXFP4.
MOXIE_API std::vector<ModelTensor> routed_tensors(const V4Config& config, std::uint64_t layer,
                                                  BlockFormat format);
// The tensors that belong to no layer: embedding, head, last norm, and of V4.1 the vision model.
MOXIE_API std::vector<ModelTensor> top_tensors(const V4Config& config);

}  // namespace moxie
