// SPDX-License-Identifier: Apache-2.0
// Random experts, straight into blobs: what a benchmark of a large layer needs of a checkpoint.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.hpp"
#include "base/random.hpp"
#include "formats/block_format.hpp"
#include "moxie/pack.hpp"
#include "pack/bands.hpp"
#include "pack/segment_source.hpp"

namespace moxie {

namespace {

constexpr unsigned kWordBytes = sizeof(std::uint64_t);

// Scale bytes from random ones. E8M0: 2^-10 .. 2^-7. UE4M3: every number above zero.
constexpr unsigned kLeastE8m0 = 117;
constexpr unsigned kE8m0Choices = 4;
constexpr unsigned kUe4m3Choices = 126;  // 0x01 .. 0x7E

std::byte scale_of(BlockFormat format, unsigned random_byte) {
  return static_cast<std::byte>(format == BlockFormat::mxfp4
                                    ? kLeastE8m0 + random_byte % kE8m0Choices
                                    : 1 + (random_byte * kUe4m3Choices >> 8));
}

// Between 1 and 2.
float mantissa(std::uint64_t word) { return 1.0F + static_cast<float>(word >> 41) * 0x1p-23F; }

// Scales have a root mean square of 97 in NVFP4 and of 2^-7.8 in MXFP4; this makes the two alike.
float global_of(std::uint64_t word) { return std::ldexp(mantissa(word), -15); }
// 6 * 448 of it is 5: what normal activations reach.
float act_scale_of(std::uint64_t word) { return std::ldexp(mantissa(word), -10); }
float bias_of(std::uint64_t word) {
  const float size = std::ldexp(mantissa(word), -4);
  return (word & 1) == 0 ? size : -size;
}

void draw_bytes(const Stream& stream, std::uint64_t first_word, std::span<std::byte> out) {
  for (std::uint64_t at = 0; at < out.size(); at += kWordBytes) {
    const std::uint64_t word = stream.word(first_word + at / kWordBytes);
    std::memcpy(out.data() + at, &word, std::min<std::uint64_t>(kWordBytes, out.size() - at));
  }
}

void draw_row(const Stream& stream, std::uint64_t row, Part part, BlockFormat format,
              std::span<std::byte> out) {
  const std::uint64_t first_word = row * divide_up(out.size(), std::uint64_t{kWordBytes});
  if (part == Part::codes || part == Part::block_scales) draw_bytes(stream, first_word, out);
  if (part == Part::block_scales) {
    for (std::byte& scale : out) scale = scale_of(format, std::to_integer<unsigned>(scale));
    return;
  }
  if (part == Part::codes) return;
  const std::uint64_t word = stream.word(row);
  const float value = part == Part::dequant_mul       ? global_of(word)
                      : part == Part::act_dequant_mul ? act_scale_of(word)
                                                      : bias_of(word);
  std::memcpy(out.data(), &value, sizeof value);
}

// `drawn_as` is the rank whose numbers are drawn.
void draw_expert(const ShardPlan& plan, const RankPlan& rank, unsigned drawn_as,
                 std::uint64_t expert, std::uint64_t seed, std::span<std::byte> blob) {
  for (const PackedSegment& segment : plan.layout.segments) {
    const SegmentSource source = source_of(segment.segment);
    // Gate and up have one input, and share its scale and their global as checkpoints have them.
    const bool same = source.is_scalar() && source.is_cut_by_rows();
    const Segment named = !same                              ? segment.segment
                          : source.part == Part::dequant_mul ? Segment::up_dequant_mul
                                                             : Segment::up_act_dequant_mul;
    const Stream stream(seed, {drawn_as, expert, static_cast<std::uint64_t>(named)});
    std::uint64_t rows = segment.rows;
    std::uint64_t row_bytes = segment.row_bytes;
    if (!source.is_scalar()) {
      const std::uint64_t width =
          source.is_cut_by_rows() ? plan.inter().original.value : plan.hidden;
      const std::uint64_t source_bytes =
          source.is_cut_by_rows() || source.part == Part::bias ? segment.row_bytes
          : source.part == Part::codes ? to_packed_bytes(plan.inter().original).value
                                       : to_scale_groups(plan.inter().original, plan.format).value;
      const SegmentCut cut = checked_cut(segment, source, rank, width, source_bytes);
      rows = cut.rows;
      row_bytes = cut.row_bytes;
    }
    for (std::uint64_t row = 0; row < rows && row_bytes > 0; ++row) {
      draw_row(stream, row, source.part, plan.format,
               blob.subspan(segment.offset + row * segment.row_bytes, row_bytes));
    }
    arrange_rows(plan.layout.kind, segment, blob.subspan(segment.offset, segment.bytes()));
  }
}

}  // namespace

BlobSource drawn_source(const ShardPlan& plan, unsigned rank, std::uint64_t seed) {
  MOXIE_CHECK(rank < plan.ranks.size(), "a rank lies inside the plan");
  return {.rank = rank,
          .layout = plan.layout,
          .experts = plan.ranks[rank].experts,
          .pack_expert = [&plan, rank, seed, owners = owners_of(plan)](std::uint64_t expert,
                                                                       std::span<std::byte> blob) {
            std::ranges::fill(blob, std::byte{0});
            const RankPlan& part = plan.ranks[rank];
            // Of several holders all draw what the first one does.
            const unsigned drawn_as = owners.holders(expert).front() * plan.tp + part.tp_rank;
            draw_expert(plan, part, drawn_as, expert, seed, blob);
          }};
}

PackedExperts draw_experts(const ShardPlan& plan, unsigned rank, std::uint64_t seed) {
  return pack(drawn_source(plan, rank, seed));
}

}  // namespace moxie
