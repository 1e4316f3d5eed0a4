// SPDX-License-Identifier: Apache-2.0
// The one function that computes all offsets of an expert.
#include "plan/layout.hpp"

#include <algorithm>
#include <array>

#include "base/checked.hpp"
#include "formats/block_format.hpp"

namespace moxie {

namespace {

// Experts start at cache lines, so that no two share one.
constexpr std::uint64_t kStrideAlign = 64;

constexpr std::array<std::string_view, 15> kSegmentNames = {"gate",
                                                            "up",
                                                            "down",
                                                            "gate_scale",
                                                            "up_scale",
                                                            "down_scale",
                                                            "gate_dequant_mul",
                                                            "up_dequant_mul",
                                                            "down_dequant_mul",
                                                            "gate_act_dequant_mul",
                                                            "up_act_dequant_mul",
                                                            "down_act_dequant_mul",
                                                            "gate_bias",
                                                            "up_bias",
                                                            "down_bias"};

}  // namespace

std::string_view name_of(Segment segment) {
  return kSegmentNames[static_cast<std::size_t>(segment)];
}

const PackedSegment* PackedLayout::find(Segment segment) const {
  const auto found = std::ranges::find(segments, segment, &PackedSegment::segment);
  return found == segments.end() ? nullptr : &*found;
}

PackedLayout linear_layout(std::uint64_t hidden, Elems kernel, BlockFormat format,
                           ExpertParts parts) {
  const bool gated = parts.gated;
  PackedLayout layout;
  const auto add = [&](Segment segment, std::uint64_t rows, std::uint64_t row_bytes) {
    layout.segments.push_back(
        {.segment = segment, .offset = layout.expert_bytes, .rows = rows, .row_bytes = row_bytes});
    layout.expert_bytes += rows * row_bytes;
  };
  const Elems width{hidden};
  const std::uint64_t hidden_bytes = to_packed_bytes(width).value;
  const std::uint64_t hidden_groups = to_scale_groups(width, format).value;
  const std::uint64_t inter_bytes = to_packed_bytes(kernel).value;
  const std::uint64_t inter_groups = to_scale_groups(kernel, format).value;
  if (gated) add(Segment::gate, kernel.value, hidden_bytes);
  add(Segment::up, kernel.value, hidden_bytes);
  add(Segment::down, hidden, inter_bytes);
  if (gated) add(Segment::gate_scale, kernel.value, hidden_groups);
  add(Segment::up_scale, kernel.value, hidden_groups);
  add(Segment::down_scale, hidden, inter_groups);
  if (parts.globals) {
    for (const Segment first : {Segment::gate_dequant_mul, Segment::gate_act_dequant_mul}) {
      for (unsigned projection = gated ? 0 : 1; projection < 3; ++projection) {
        add(static_cast<Segment>(static_cast<unsigned>(first) + projection), 1, sizeof(float));
      }
    }
  }
  if (parts.biases) {
    if (gated) add(Segment::gate_bias, kernel.value, sizeof(float));
    add(Segment::up_bias, kernel.value, sizeof(float));
    add(Segment::down_bias, hidden, sizeof(float));
  }
  layout.stride = round_up(layout.expert_bytes, kStrideAlign);
  return layout;
}

}  // namespace moxie
