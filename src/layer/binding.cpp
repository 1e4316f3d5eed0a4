// SPDX-License-Identifier: Apache-2.0
// What a kernel is bound to, and which blobs it may be bound to.
#include "layer/binding.hpp"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "formats/act_quant.hpp"
#include "formats/block_format.hpp"
#include "pack/bands.hpp"
#include "pack/scale_check.hpp"
#include "pack/segment_source.hpp"

namespace moxie {

namespace {

std::uint64_t offset_of(const PackedLayout& layout, Segment segment) {
  const PackedSegment* found = layout.find(segment);
  return found != nullptr ? found->offset : BlobOffsets::kAbsent;
}

[[noreturn]] void refuse(unsigned rank, std::uint64_t expert, std::string message,
                         std::string expected, std::string got) {
  throw Error(ErrorCode::input, {.code = "MOXIE-R003",
                                 .message = std::move(message),
                                 .where = {.expert = expert, .rank = rank},
                                 .expected = std::move(expected),
                                 .got = std::move(got),
                                 .hint = "pack the expert again from its checkpoint"});
}

void check_bias_values(unsigned rank, std::uint64_t expert, const PackedSegment& segment,
                       std::span<const std::byte> biases) {
  const std::size_t bad = first_bad_bias(biases);
  if (bad == biases.size() / sizeof(float)) return;
  refuse(
      rank, expert,
      std::string(name_of(segment.segment)) + " is no finite number at row " + std::to_string(bad),
      "a finite number", std::to_string(bias_at(biases, bad)));
}

}  // namespace

BlobOffsets blob_offsets(const PackedLayout& layout) {
  return {.gate = offset_of(layout, Segment::gate),
          .up = offset_of(layout, Segment::up),
          .down = offset_of(layout, Segment::down),
          .gate_scale = offset_of(layout, Segment::gate_scale),
          .up_scale = offset_of(layout, Segment::up_scale),
          .down_scale = offset_of(layout, Segment::down_scale),
          .gate_mul = offset_of(layout, Segment::gate_dequant_mul),
          .up_mul = offset_of(layout, Segment::up_dequant_mul),
          .down_mul = offset_of(layout, Segment::down_dequant_mul),
          .gate_act_mul = offset_of(layout, Segment::gate_act_dequant_mul),
          .up_act_mul = offset_of(layout, Segment::up_act_dequant_mul),
          .down_act_mul = offset_of(layout, Segment::down_act_dequant_mul),
          .gate_bias = offset_of(layout, Segment::gate_bias),
          .up_bias = offset_of(layout, Segment::up_bias),
          .down_bias = offset_of(layout, Segment::down_bias)};
}

ExpertsShape experts_shape(const ShardPlan& plan, const LayerSpec& spec, const RankPlan& rank) {
  return {.format = plan.format,
          .act_format = plan.act_format,
          .act_scale = plan.act_scale,
          .activation = spec.activation,
          .activation_limit = static_cast<float>(spec.activation_limit.value_or(0.0)),
          .hidden = plan.hidden,
          .inter = plan.inter().kernel.value,
          .experts = plan.experts,
          .local_experts = rank.experts.count(),
          .top_k = spec.top_k};
}

void check_blob(const ShardPlan& plan, unsigned rank, std::uint64_t expert,
                std::span<const std::byte> blob) {
  if (blob.size() != plan.layout.stride) {
    refuse(rank, expert, "the expert's blob has another size than the plan gives it",
           std::to_string(plan.layout.stride) + " bytes", std::to_string(blob.size()));
  }
  for (const PackedSegment& segment : plan.layout.segments) {
    const auto bytes = blob.subspan(segment.offset, segment.bytes());
    const Part part = source_of(segment.segment).part;
    if (part == Part::block_scales) {
      const std::size_t bad = first_bad_scale(plan.format, bytes);
      if (bad == bytes.size()) continue;
      const RowByte at = row_byte_of(plan.layout.kind, segment, bad);
      refuse(rank, expert,
             std::string(name_of(segment.segment)) + " holds a scale that is no number at row " +
                 std::to_string(at.row) + ", group " + std::to_string(at.byte),
             "a legal scale byte", std::to_string(std::to_integer<int>(bytes[bad])));
    }
    if (part == Part::bias) check_bias_values(rank, expert, segment, bytes);
    float value = 0;
    if (part == Part::dequant_mul || part == Part::act_dequant_mul)
      std::memcpy(&value, bytes.data(), sizeof value);
    if (part == Part::dequant_mul && !(std::isfinite(value) && value > 0)) {
      refuse(rank, expert, std::string(name_of(segment.segment)) + " is no usable global scale",
             "a finite number above 0", std::to_string(value));
    }
    if (part == Part::act_dequant_mul && consumes_act_scales(plan) && !is_act_scale(value)) {
      refuse(rank, expert, std::string(name_of(segment.segment)) + " is no usable input scale",
             "a number from 2^-117 to 2^116", std::to_string(value));
    }
  }
}

}  // namespace moxie
