// SPDX-License-Identifier: Apache-2.0
// A kernel's result against the reference in double precision, with the comparator and the bound of
// `moxie run --check`.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "formats/bf16.hpp"
#include "formats/block_format.hpp"
#include "kernels/cuda/random_experts.hpp"
#include "kernels/ref/reference.hpp"
#include "moxie/catalog.hpp"
#include "moxie/verify.hpp"

namespace moxie::test {

inline float float_at(const std::byte* blob, std::uint64_t offset, float absent) {
  if (offset == BlobOffsets::kAbsent) return absent;
  float value = 0;
  std::memcpy(&value, blob + offset, sizeof value);
  return value;
}

// One local expert as the judge takes it.
inline ref::Expert judged_expert(const Experts& experts, std::uint64_t local) {
  const ExpertsShape& shape = experts.shape;
  const BlobOffsets& at = experts.at;
  const std::byte* blob = experts.blobs.data() + local * experts.stride;
  const auto place = [&](std::uint64_t offset) -> const std::uint8_t* {
    return offset == BlobOffsets::kAbsent ? nullptr
                                          : reinterpret_cast<const std::uint8_t*>(blob) + offset;
  };
  const auto matrix = [&](std::uint64_t codes, std::uint64_t scales, std::uint64_t columns,
                          std::uint64_t mul, std::uint64_t bias, std::uint64_t act_mul) {
    return ref::Matrix{.codes = place(codes),
                       .codes_stride = columns / 2,
                       .scales = place(scales),
                       .scales_stride = columns / scale_group(shape.format),
                       .dequant_mul = float_at(blob, mul, 1.0F),
                       .bias = place(bias),
                       .act_dequant_mul = float_at(blob, act_mul, 0.0F)};
  };
  return {.gate = matrix(at.gate, at.gate_scale, shape.hidden, at.gate_mul, at.gate_bias,
                         at.gate_act_mul),
          .up = matrix(at.up, at.up_scale, shape.hidden, at.up_mul, at.up_bias, at.up_act_mul),
          .down = matrix(at.down, at.down_scale, shape.inter, at.down_mul, at.down_bias,
                         at.down_act_mul)};
}

inline std::vector<float> floats_of(const ExpertsCall& call, std::uint64_t hidden) {
  std::vector<float> x(call.tokens * hidden);
  const std::size_t elem = bits_of(call.x_type) / 8;
  for (std::uint64_t at = 0; at < x.size(); ++at) {
    const std::byte* from = call.x.data() + (at / hidden * call.x_stride + at % hidden) * elem;
    std::uint16_t narrow = 0;
    if (elem == 2) {
      std::memcpy(&narrow, from, sizeof narrow);
      x[at] = decode_bf16(narrow);
    } else {
      std::memcpy(&x[at], from, sizeof(float));
    }
  }
  return x;
}

// `act`: the kernel's own values between the products, [slots, inter]; empty: from x alone.
inline LayerReference reference_of(const Experts& experts, const ExpertsCall& call,
                                   const SumOrder& order, std::span<const float> act) {
  const ExpertsShape& shape = experts.shape;
  const std::vector<float> x = floats_of(call, shape.hidden);
  std::vector<std::int32_t> ids = call.ids;  // those of this rank; all others are masked
  for (std::int32_t& id : ids) {
    const bool known = id >= 0 && static_cast<std::uint64_t>(id) < shape.experts;
    if (!known || experts.local_of_expert[static_cast<std::size_t>(id)] < 0) id = -1;
  }
  const ExpertsArgs common = common_args(experts, call);
  const ref::Problem problem{
      .format = shape.format,
      .act_format = shape.act_format,
      .act_scaling = {.policy = shape.act_scale,
                      .frozen = {{.x = common.x_scale, .act = common.act_scale}},
                      .group_of_slot = {}},
      .activation = shape.activation,
      .activation_limit = shape.activation_limit,
      .hidden = shape.hidden,
      .inter = shape.inter,
      .experts = shape.experts,
      .tokens = call.tokens,
      .top_k = shape.top_k,
      .gate_up_roundings = order.roundings(shape.hidden),
      .down_roundings = order.roundings(shape.inter),
      .flushes_subnormals = order.flushes_subnormals,
      .x = x.data(),
      .topk_ids = ids.data(),
      .topk_weights = call.weights.data(),
      .act = act.empty() ? nullptr : act.data(),
      .expert = [&](std::uint64_t expert) {
        return judged_expert(experts, static_cast<std::uint64_t>(experts.local_of_expert[expert]));
      }};
  ref::Result result = ref::run(problem);
  LayerReference reference{.tokens = call.tokens,
                           .hidden = shape.hidden,
                           .y = std::move(result.y),
                           .bound = std::move(result.bound),
                           .magnitude = std::move(result.magnitude),
                           .unquantised = std::move(result.unquantised),
                           .clamped = result.clamped};
  reference.act = {.outside = result.act.outside,
                   .token = result.act.slot / shape.top_k,
                   .choice = result.act.slot % shape.top_k,
                   .column = result.act.column,
                   .least = result.act.least,
                   .most = result.act.most,
                   .got = result.act.got};
  return reference;
}

inline std::string text_of(const LayerCheck& check) {
  std::string text;
  for (const Finding& finding : check.findings)
    text += finding.message + ": expected " + finding.expected + ", got " + finding.got + "\n";
  return text;
}

// Every element of y, and every value between the products where a tap shows them. A token without
// a slot here is exactly zero: its bound is.
inline void expect_within_bound(const ExpertsResult& got, const Experts& experts,
                                const ExpertsCall& call, const KernelEntry& entry,
                                DType output = DType::f32) {
  ShardPlan plan;
  plan.ranks.resize(1);
  // Once from x alone, once with the two stages apart.
  for (const std::span<const float> act : {std::span<const float>(), std::span(got.tap)}) {
    const LayerReference reference = reference_of(experts, call, entry.sum_order, act);
    const LayerCheck check = check_output(got.y, reference, plan, output);
    EXPECT_TRUE(check.passed) << (act.empty() ? "from x: " : "from the tap: ") << text_of(check);
  }
  const bool bad = std::ranges::any_of(call.ids, [&](std::int32_t id) {
    return id < -1 || id >= static_cast<std::int32_t>(experts.shape.experts);
  });
  EXPECT_EQ(got.flags, bad ? kFlagBadExpertId : 0U);
  for (std::size_t slot = 0; slot < call.ids.size(); ++slot) {
    const std::int32_t id = call.ids[slot];
    const bool known = id >= 0 && id < static_cast<std::int32_t>(experts.shape.experts);
    if (known && experts.local_of_expert[static_cast<std::size_t>(id)] >= 0) continue;
    const auto row = std::span(got.tap).subspan(slot * experts.shape.inter, experts.shape.inter);
    EXPECT_TRUE(std::ranges::all_of(row, [](float value) { return value == kTapMark; }))
        << "slot " << slot << " is not computed";
  }
}

}  // namespace moxie::test
