// SPDX-License-Identifier: Apache-2.0
// Stored rows in canonical bytes: copied, widened, or gathered from GGUF's blocks.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/checked.hpp"
#include "formats/block_format.hpp"
#include "formats/gguf_block.hpp"
#include "formats/nibble_order.hpp"
#include "moxie/model.hpp"

namespace moxie {

namespace {

constexpr GgufBlock kMxfp4Block = gguf_block(BlockFormat::mxfp4);
constexpr GgufBlock kNvfp4Block = gguf_block(BlockFormat::nvfp4);

// The scale bytes [first, first + out.size()) of a row of blocks.
void gather_scales(const std::byte* row, GgufBlock shape, std::uint64_t first,
                   std::span<std::byte> out) {
  for (std::uint64_t i = 0; i < out.size(); ++i) {
    const std::uint64_t group = first + i;
    out[i] = row[group / shape.scales * shape.bytes() + group % shape.scales];
  }
}

// The packed pairs [first, first + out.size()) of a row of blocks, even element low.
void gather_codes(const std::byte* row, GgufBlock shape, std::uint64_t first,
                  std::span<std::byte> out) {
  std::array<std::uint8_t, 16> pairs{};  // of the group that the byte before was in
  std::uint64_t held = ~std::uint64_t{0};
  for (std::uint64_t i = 0; i < out.size(); ++i) {
    const std::uint64_t group = (first + i) / shape.group_bytes();
    if (group != held) {
      const std::byte* codes = row + group / shape.scales * shape.bytes() + shape.scales +
                               group % shape.scales * shape.group_bytes();
      reorder_block(reinterpret_cast<const std::uint8_t*>(codes), NibbleOrder::split_half,
                    pairs.data(), NibbleOrder::even_low, shape.group_elems);
      held = group;
    }
    out[i] = std::byte{pairs[(first + i) % shape.group_bytes()]};
  }
}

// bf16 values as f32: the low half of each is zero.
void widen(const std::byte* row, std::uint64_t first, std::span<std::byte> out) {
  for (std::uint64_t i = 0; i < out.size(); ++i) {
    const std::uint64_t at = first + i;
    out[i] = at % 4 < 2 ? std::byte{0} : row[at / 4 * 2 + at % 4 - 2];
  }
}

// One scale of two neighbours. `scales` gives the UE4M3 scales [first, first + out.size()).
template <class Scales>
void join_pairs(std::uint64_t first, std::span<std::byte> out, const Scales& scales) {
  for (std::uint64_t i = 0; i < out.size(); ++i) {
    std::array<std::byte, 2> pair{};
    scales(2 * (first + i), std::span<std::byte>(pair));
    out[i] = std::byte{e8m0_of_pair(std::to_integer<std::uint8_t>(pair[0]),
                                    std::to_integer<std::uint8_t>(pair[1]))};
  }
}

}  // namespace

void read_row(const Checkpoint& checkpoint, const RowsView& view, std::uint64_t row,
              std::uint64_t first_byte, std::span<std::byte> out) {
  MOXIE_CHECK(row < view.rows, "a row that is read lies inside its tensor");
  read_row(checkpoint.bytes(*view.tensor).subspan(view.offset + row * view.row_stride).data(), view,
           first_byte, out);
}

void read_row(const std::byte* stored, const RowsView& view, std::uint64_t first_byte,
              std::span<std::byte> out) {
  MOXIE_CHECK(first_byte <= view.row_bytes && out.size() <= view.row_bytes - first_byte,
              "what is read lies inside the row");
  switch (view.packing) {
    case RowPacking::plain:
      std::copy_n(stored + first_byte, out.size(), out.begin());
      return;
    case RowPacking::bf16:
      widen(stored, first_byte, out);
      return;
    case RowPacking::mxfp4_codes:
      gather_codes(stored, kMxfp4Block, first_byte, out);
      return;
    case RowPacking::mxfp4_scales:
      gather_scales(stored, kMxfp4Block, first_byte, out);
      return;
    case RowPacking::nvfp4_codes:
      gather_codes(stored, kNvfp4Block, first_byte, out);
      return;
    case RowPacking::nvfp4_scales:
      gather_scales(stored, kNvfp4Block, first_byte, out);
      return;
    case RowPacking::nvfp4_pairs:
      join_pairs(first_byte, out, [&](std::uint64_t first, std::span<std::byte> pair) {
        std::copy_n(stored + first, pair.size(), pair.begin());
      });
      return;
    case RowPacking::nvfp4_scale_pairs:
      join_pairs(first_byte, out, [&](std::uint64_t first, std::span<std::byte> pair) {
        gather_scales(stored, kNvfp4Block, first, pair);
      });
      return;
  }
}

LayerExperts recast_layer(LayerExperts layer) {
  MOXIE_CHECK(layer.format == BlockFormat::nvfp4, "what is recast is NVFP4");
  layer.format = BlockFormat::mxfp4;
  layer.recast = true;
  for (ExpertTensors& expert : layer.experts) {
    for (const ProjectionKind kind :
         {ProjectionKind::gate, ProjectionKind::up, ProjectionKind::down}) {
      RowsView& scales = expert[kind].block_scales;
      if (!scales.present()) continue;
      scales.packing = scales.packing == RowPacking::plain ? RowPacking::nvfp4_pairs
                                                           : RowPacking::nvfp4_scale_pairs;
      scales.row_bytes /= 2;
    }
  }
  return layer;
}

MoeModel recast_model(MoeModel model) {
  model.recast = true;
  model.format = BlockFormat::mxfp4;
  for (LayerExperts& layer : model.layers) {
    if (!layer.mtp && layer.format == BlockFormat::nvfp4) layer = recast_layer(std::move(layer));
  }
  return model;
}

float stored_scalar(const Checkpoint& checkpoint, const ScalarRef& scalar) {
  MOXIE_CHECK(scalar.present(), "the scalar is there");
  if (scalar.tensor == nullptr) return 1.0F;
  float value = 0;
  const auto bytes = checkpoint.bytes(*scalar.tensor);
  MOXIE_CHECK(scalar.index < bytes.size() / sizeof value, "a scalar lies inside its tensor");
  std::memcpy(&value, bytes.data() + scalar.index * sizeof value, sizeof value);
  return value;
}

}  // namespace moxie
