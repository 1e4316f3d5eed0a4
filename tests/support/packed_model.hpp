// SPDX-License-Identifier: Apache-2.0
// Tiny models ready to be planned and packed, and their bytes before and after.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moxie/model.hpp"
#include "moxie/pack.hpp"
#include "moxie/plan.hpp"
#include "support/temp_folder.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie::test {

using Bytes = std::vector<std::byte>;

inline constexpr BlockFormat kFormats[] = {BlockFormat::mxfp4, BlockFormat::nvfp4};
// Activation formats of the CPU without a global scale.
inline constexpr ActFormat kPlainActFormats[] = {ActFormat::bf16,  ActFormat::fp8,
                                                 ActFormat::fp8x2, ActFormat::mxfp8,
                                                 ActFormat::int8,  ActFormat::int8x2};

// A one-layer checkpoint under DeepSeek's names: w1 = gate, w3 = up, w2 = down.
inline TinyOptions tiny_options(BlockFormat format, std::uint64_t inter = 96,
                                std::uint64_t hidden = 64) {
  return {.dialect = format == BlockFormat::mxfp4 ? TinyDialect::deepseek_v4
                                                  : TinyDialect::deepseek_v4_nvfp4,
          .hidden = hidden,
          .inter = inter,
          .layers = 1};
}

// A checkpoint in a folder of its own, read.
class TinyModel {
 public:
  explicit TinyModel(const TinyOptions& options)
      : model_(read_model(tiny_checkpoint(folder_, options))) {}
  explicit TinyModel(BlockFormat format, std::uint64_t inter = 96, std::uint64_t hidden = 64)
      : TinyModel(tiny_options(format, inter, hidden)) {}

  const MoeModel& operator*() const { return model_; }
  const MoeModel* operator->() const { return &model_; }
  const LayerExperts& layer(int number = 0) const { return model_.require_layer(number); }
  // Where this test may write; the checkpoint itself is the folder "model" in it.
  const TempFolder& folder() const { return folder_; }
  std::filesystem::path operator/(std::string_view name) const { return folder_.path() / name; }

 private:
  TempFolder folder_;
  MoeModel model_;
};

inline ShardPlan plan_of(const MoeModel& model, unsigned tp, unsigned ep = 1,
                         std::uint64_t kernel_align = 32) {
  return make_plan(model, {.tp = tp, .ep = ep, .kernel_align = kernel_align});
}

// One expert packed into a blob whose every byte was `fill` before.
inline Bytes packed_blob(const MoeModel& model, const ShardPlan& plan, unsigned rank,
                         std::uint64_t expert, std::byte fill = std::byte{0xFF}) {
  Bytes blob(plan.layout.stride, fill);
  pack_expert(model, plan, plan.ranks[rank], model.require_layer(0), expert, blob);
  return blob;
}

inline std::span<const std::byte> bytes_of(const Bytes& blob, const PackedSegment& segment) {
  return std::span(blob).subspan(segment.offset, segment.bytes());
}

// The whole source tensor behind a segment; nullptr when the checkpoint has none.
inline const TensorInfo* source_of_segment(const ExpertTensors& expert, Segment segment) {
  switch (segment) {
    case Segment::gate:
      return expert.gate.codes.tensor;
    case Segment::up:
      return expert.up.codes.tensor;
    case Segment::down:
      return expert.down.codes.tensor;
    case Segment::gate_scale:
      return expert.gate.block_scales.tensor;
    case Segment::up_scale:
      return expert.up.block_scales.tensor;
    case Segment::down_scale:
      return expert.down.block_scales.tensor;
    case Segment::gate_dequant_mul:
      return expert.gate.dequant_mul.tensor;
    case Segment::up_dequant_mul:
      return expert.up.dequant_mul.tensor;
    case Segment::down_dequant_mul:
      return expert.down.dequant_mul.tensor;
    case Segment::gate_act_dequant_mul:
      return expert.gate.act_dequant_mul.tensor;
    case Segment::up_act_dequant_mul:
      return expert.up.act_dequant_mul.tensor;
    case Segment::down_act_dequant_mul:
      return expert.down.act_dequant_mul.tensor;
    case Segment::gate_bias:
      return expert.gate.bias.tensor;
    case Segment::up_bias:
      return expert.up.bias.tensor;
    case Segment::down_bias:
      return expert.down.bias.tensor;
  }
  return nullptr;
}

// The first place where two byte strings differ.
inline testing::AssertionResult same_bytes(std::span<const std::byte> expected,
                                           std::span<const std::byte> got) {
  if (expected.size() != got.size()) {
    return testing::AssertionFailure()
           << "expected " << expected.size() << " bytes, got " << got.size();
  }
  const auto at = std::ranges::mismatch(expected, got).in1 - expected.begin();
  if (static_cast<std::size_t>(at) == expected.size()) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "byte " << at << " of " << expected.size() << ": expected 0x" << std::hex
         << std::to_integer<int>(expected[static_cast<std::size_t>(at)]) << ", got 0x"
         << std::to_integer<int>(got[static_cast<std::size_t>(at)]);
}

inline bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return std::ranges::all_of(bytes, [&](std::byte b) { return b == value; });
}
inline bool all_zero(std::span<const std::byte> bytes) { return all_are(bytes, std::byte{0}); }

// Every tensor of an unpacked expert against the checkpoint.
inline testing::AssertionResult equals_source(const MoeModel& model, const ShardPlan& plan,
                                              std::uint64_t expert, const UnpackedExpert& joined) {
  for (const PackedSegment& segment : plan.layout.segments) {
    const TensorInfo* source =
        source_of_segment(model.require_layer(0).experts[expert], segment.segment);
    if (source == nullptr)
      return testing::AssertionFailure() << name_of(segment.segment) << " is not in the source";
    const auto same = same_bytes(model.checkpoint.bytes(*source),
                                 joined.tensors[static_cast<std::size_t>(segment.segment)]);
    if (!same) return testing::AssertionFailure() << source->name << ": " << same.message();
  }
  return testing::AssertionSuccess();
}

// What stands behind one rank's plan, for SCOPED_TRACE.
inline std::string describe(const ShardPlan& plan) {
  return std::string(name_of(plan.format)) + " hidden " + std::to_string(plan.hidden) + " inter " +
         std::to_string(plan.inter().original.value) + " tp " + std::to_string(plan.tp) + " ep " +
         std::to_string(plan.ep) + " kernel " + std::to_string(plan.inter().kernel.value);
}

}  // namespace moxie::test
