// SPDX-License-Identifier: Apache-2.0
// Experts and calls made from a seed, run through the kernel contract on the host.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "formats/bf16.hpp"
#include "formats/block_format.hpp"
#include "kernels/contract.hpp"
#include "kernels/cpu/portable/experts.hpp"
#include "support/device_memory.hpp"

namespace moxie::test {

struct ExpertsOptions {
  BlockFormat format = BlockFormat::mxfp4;
  ActFormat act_format = ActFormat::bf16;
  ActScale act_scale = ActScale::checkpoint;
  Activation activation = Activation::silu;
  bool biases = false;
  std::uint64_t hidden = 288;  // one block of 256 terms and a group
  std::uint64_t inter = 160;
  std::uint64_t experts = 9;
  std::uint64_t local = 7;  // experts 1 to 7 are here, the others elsewhere
  std::uint64_t top_k = 3;
};

struct Experts {
  ExpertsShape shape;
  BlobOffsets at;
  std::uint64_t blob_bytes = 0;  // that mean something
  std::uint64_t stride = 0;
  std::vector<std::byte> blobs;
  std::vector<std::int32_t> local_of_expert;
};

inline Experts random_experts(const ExpertsOptions& options, std::mt19937_64& random) {
  Experts made;
  made.shape = {.format = options.format,
                .act_format = options.act_format,
                .act_scale = options.act_scale,
                .activation = options.activation,
                .activation_limit = 1.5F,  // reached often
                .hidden = options.hidden,
                .inter = options.inter,
                .experts = options.experts,
                .local_experts = options.local,
                .top_k = options.top_k};
  std::uint64_t end = 0;
  const auto take = [&](std::uint64_t bytes) { return std::exchange(end, end + bytes); };
  const bool gated = options.activation != Activation::relu2;
  const std::uint64_t codes = options.inter * options.hidden / 2;
  const std::uint64_t scales = options.inter * options.hidden / scale_group(options.format);
  BlobOffsets& at = made.at;
  at.gate = gated ? take(codes) : BlobOffsets::kAbsent;
  at.up = take(codes);
  at.down = take(codes);
  at.gate_scale = gated ? take(scales) : BlobOffsets::kAbsent;
  at.up_scale = take(scales);
  at.down_scale = take(scales);
  std::vector<std::pair<std::uint64_t, float>> floats;  // where, and up to how large
  const auto number = [&](std::uint64_t& offset, std::uint64_t count, float scale) {
    offset = take(count * sizeof(float));
    for (std::uint64_t i = 0; i < count; ++i) floats.emplace_back(offset + i * 4, scale);
  };
  if (block_spec(options.format).has_global) {
    if (gated) number(at.gate_mul, 1, 0.02F);
    number(at.up_mul, 1, 0.02F);
    number(at.down_mul, 1, 0.02F);
    // As a checkpoint has them, whoever consumes them.
    if (gated) number(at.gate_act_mul, 1, 0.002F);
    number(at.up_act_mul, 1, 0.002F);
    number(at.down_act_mul, 1, 0.002F);
  }
  if (options.biases) {
    if (gated) number(at.gate_bias, options.inter, 0.5F);
    number(at.up_bias, options.inter, 0.5F);
    number(at.down_bias, options.hidden, 0.5F);
  }
  made.blob_bytes = end;
  made.stride = end + 3;  // no alignment is promised
  made.blobs.resize(options.local * made.stride);
  for (std::byte& byte : made.blobs) byte = static_cast<std::byte>(random());
  for (std::uint64_t expert = 0; expert < options.local; ++expert) {
    std::byte* blob = made.blobs.data() + expert * made.stride;
    for (const std::uint64_t first : {at.gate_scale, at.up_scale, at.down_scale}) {
      if (first == BlobOffsets::kAbsent) continue;
      for (std::uint64_t i = 0; i < scales; ++i) {
        const bool mx = options.format == BlockFormat::mxfp4;
        blob[first + i] = static_cast<std::byte>(mx ? 118 + random() % 8 : 1 + random() % 0x50);
      }
    }
    for (const auto& [offset, most] : floats) {
      const float value = most * std::uniform_real_distribution<float>(0.1F, 1.0F)(random);
      std::memcpy(blob + offset, &value, sizeof value);
    }
  }
  made.local_of_expert.assign(options.experts, -1);
  for (std::uint64_t i = 0; i < options.local; ++i)
    made.local_of_expert[i + 1] = static_cast<std::int32_t>(i);
  return made;
}

enum class Ids : std::uint8_t {
  uniform,
  zipf,
  one,         // all slots to one expert: the others are empty
  foreign,     // other ranks' alone
  masked,      // two thirds are -1
  few,         // all but the first tokens are -1
  none,        // all are -1
  duplicates,  // a token's slots to one expert
  bad          // some are outside the model
};
inline constexpr Ids kAllIds[] = {Ids::uniform, Ids::zipf,       Ids::one,
                                  Ids::foreign, Ids::masked,     Ids::few,
                                  Ids::none,    Ids::duplicates, Ids::bad};

// How x lies in memory.
struct RowsForm {
  DType type = DType::bf16;
  std::uint64_t gap = 0;    // elements between rows
  std::uint64_t shift = 0;  // elements past an address that suits every load
};
inline RowsForm random_form(std::mt19937_64& random) {
  return {.type = random() % 2 == 0 ? DType::bf16 : DType::f32,
          .gap = random() % 3,
          .shift = random() % 2};
}

struct ExpertsCall {
  std::uint64_t tokens = 0;
  RowsForm form;
  DType x_type = DType::bf16;
  std::uint64_t x_stride = 0;
  std::vector<std::byte> x;  // rows with 0xFF between them
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

inline ExpertsCall random_call(const ExpertsShape& shape, std::uint64_t tokens, Ids kind,
                               std::mt19937_64& random, const RowsForm& form) {
  ExpertsCall call{.tokens = tokens, .form = form, .x_type = form.type};
  call.x_stride = shape.hidden + form.gap;
  const std::size_t elem = bits_of(call.x_type) / 8;
  call.x.assign(tokens * call.x_stride * elem, std::byte{0xFF});
  std::normal_distribution<float> normal;
  for (std::uint64_t token = 0; token < tokens; ++token) {
    const float spread = std::ldexp(1.0F, static_cast<int>(random() % 7) - 3);
    for (std::uint64_t i = 0; i < shape.hidden; ++i) {
      const float value = spread * normal(random);
      const std::uint16_t narrow = encode_bf16(value);
      std::memcpy(call.x.data() + (token * call.x_stride + i) * elem,
                  elem == 2 ? static_cast<const void*>(&narrow) : &value, elem);
    }
  }
  const auto experts = static_cast<std::int32_t>(shape.experts);
  for (std::uint64_t slot = 0; slot < tokens * shape.top_k; ++slot) {
    std::int32_t id = static_cast<std::int32_t>(random() % shape.experts);
    if (kind == Ids::zipf)
      id =
          static_cast<std::int32_t>(std::pow(
              static_cast<double>(experts), std::ldexp(static_cast<double>(random() >> 11), -53))) -
          1;
    if (kind == Ids::one) id = std::min(3, static_cast<std::int32_t>(shape.local_experts));
    if (kind == Ids::foreign) id = random() % 2 == 0 ? 0 : experts - 1;
    if (kind == Ids::masked && random() % 3 != 0) id = -1;
    if (kind == Ids::none || (kind == Ids::few && slot / shape.top_k >= 3)) id = -1;
    if (kind == Ids::duplicates) id = 1 + static_cast<std::int32_t>(slot / shape.top_k % 3);
    if (kind == Ids::bad && random() % 4 == 0) id = random() % 2 == 0 ? experts : -2;
    call.ids.push_back(id);
    call.weights.push_back(std::uniform_real_distribution<float>(-0.5F, 1.0F)(random));
  }
  return call;
}
inline ExpertsCall random_call(const ExpertsShape& shape, std::uint64_t tokens, Ids kind,
                               std::mt19937_64& random) {
  return random_call(shape, tokens, kind, random, random_form(random));
}

struct ExpertsResult {
  std::vector<float> y;
  std::vector<float> tap;
  std::uint32_t flags = 0;
  ActStats stats;
};

constexpr float kTapMark = -777.25F;  // in the rows of slots that are not computed

inline ExpertsArgs common_args(const Experts& experts, const ExpertsCall& call) {
  ExpertsArgs args;
  args.shape = experts.shape;
  args.weights = {.stride = experts.stride, .offsets = experts.at};
  args.tokens = call.tokens;
  args.x = {.dtype = call.x_type,
            .rows = call.tokens,
            .cols = experts.shape.hidden,
            .row_stride = call.x_stride};
  args.x_scale = 0.002F;
  args.act_scale = 0.003F;
  args.act_margin = 1.25F;
  args.threads = 2;
  return args;
}

// How a call on the host is made.
struct HostRun {
  const ExpertsKernel* kernel = &cpu::portable::kExperts;
  unsigned threads = 2;
  std::byte poison{0xFF};      // of the workspace
  MutableMatrixRef final_y{};  // written in place of the result's y
};

inline ExpertsResult run_on_host(const Experts& experts, const ExpertsCall& call,
                                 const HostRun& how = {}) {
  const ExpertsKernel& kernel = *how.kernel;
  constexpr std::size_t kGuard = 64;
  ExpertsResult result;
  result.y.assign(call.tokens * experts.shape.hidden, kTapMark);
  result.tap.assign(call.ids.size() * experts.shape.inter, kTapMark);
  const std::uint64_t bytes = kernel.workspace_bytes(experts.shape, call.tokens);
  std::vector<std::byte> workspace(bytes + kGuard, how.poison);
  std::fill(workspace.end() - kGuard, workspace.end(), std::byte{0xA5});
  ExpertsArgs args = common_args(experts, call);
  args.threads = how.threads;
  args.weights.blobs = experts.blobs.data();
  args.weights.local_of_expert = experts.local_of_expert.data();
  args.x.data = call.x.data();
  args.topk_ids = call.ids.data();
  args.topk_weights = call.weights.data();
  args.y = how.final_y.data == nullptr ? result.y.data() : nullptr;
  args.final_y = how.final_y;
  args.act_tap = result.tap.data();
  args.stats = &result.stats;
  args.workspace = workspace.data();
  args.flags = &result.flags;
  kernel.run(args);
  EXPECT_TRUE(std::all_of(workspace.end() - kGuard, workspace.end(), [](std::byte byte) {
    return byte == std::byte{0xA5};
  })) << "nothing is written behind the workspace";
  return result;
}

inline void expect_same(const ActStage& got, const ActStage& expected) {
  EXPECT_EQ(got.blocks, expected.blocks);
  EXPECT_EQ(got.saturated, expected.saturated);
  EXPECT_EQ(got.underflowed, expected.underflowed);
  EXPECT_EQ(got.not_numbers, expected.not_numbers);
  EXPECT_EQ(got.guarded, expected.guarded);
  EXPECT_EQ(got.least_scale, expected.least_scale);
  EXPECT_EQ(got.most_scale, expected.most_scale);
}

// First place where two rows of bits differ, for a message that fits the screen.
inline void expect_same_bits(const std::vector<float>& got, const std::vector<float>& expected,
                             const char* what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  const auto a = canonical_bits(got);
  const auto b = canonical_bits(expected);
  std::size_t differing = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    if (differing++ > 0) continue;
    EXPECT_EQ(a[i], b[i]) << what << " at " << i << ": " << got[i] << " for " << expected[i];
  }
  EXPECT_EQ(differing, 0U) << what << ", of " << a.size();
}

inline void expect_same(const ExpertsResult& got, const ExpertsResult& expected) {
  expect_same_bits(got.tap, expected.tap, "tap");
  expect_same_bits(got.y, expected.y, "y");
  EXPECT_EQ(got.flags, expected.flags);
  expect_same(got.stats.x, expected.stats.x);
  expect_same(got.stats.act, expected.stats.act);
}

}  // namespace moxie::test
