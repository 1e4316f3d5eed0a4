// SPDX-License-Identifier: Apache-2.0
// One call of the route kernel on unaligned inputs, a poisoned workspace and guarded outputs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "formats/bf16.hpp"
#include "kernels/cpu/portable/route.hpp"

namespace moxie::test {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  std::uint32_t flags = 0;
};

struct RouteCall {
  RouterShape shape;
  DType weight_type = DType::f32;
  DType x_type = DType::f32;
  std::vector<float> weight;          // [experts, hidden]; rounded to weight_type
  std::vector<float> x;               // [tokens, hidden]; rounded to x_type
  std::vector<float> bias{};          // [experts], or none
  std::vector<float> expert_scale{};  // [experts], or none
  std::vector<std::int32_t> table{};
  std::vector<std::int64_t> token_ids{};
  unsigned threads = 1;

  [[nodiscard]] std::uint64_t tokens() const { return x.size() / shape.hidden; }
};

// Rows of `cols` elements, `stride` apart, from an odd address. What lies between rows is NaN.
class UnalignedRows {
 public:
  UnalignedRows(const std::vector<float>& values, std::uint64_t cols, std::uint64_t stride,
                DType dtype) {
    const std::uint64_t rows = values.size() / cols;
    const std::size_t elem_bytes = bits_of(dtype) / 8;
    bytes_.assign(1 + rows * stride * elem_bytes, std::byte{0xFF});
    for (std::uint64_t i = 0; i < values.size(); ++i) {
      std::byte* to = bytes_.data() + 1 + (i / cols * stride + i % cols) * elem_bytes;
      const std::uint16_t narrow = encode_bf16(values[i]);
      std::memcpy(to, dtype == DType::bf16 ? static_cast<const void*>(&narrow) : &values[i],
                  elem_bytes);
    }
    ref_ = {.data = bytes_.data() + 1,
            .dtype = dtype,
            .rows = rows,
            .cols = cols,
            .row_stride = stride};
  }
  [[nodiscard]] const MatrixRef& ref() const { return ref_; }

 private:
  std::vector<std::byte> bytes_;
  MatrixRef ref_;
};

inline Routed run(const RouteCall& call) {
  constexpr std::size_t kGuard = 64;
  constexpr auto kGuardId = std::int32_t{0x5A5A5A5A};
  constexpr float kGuardWeight = -7.25F;
  const std::uint64_t hidden = call.shape.hidden;
  const std::uint64_t slots = call.tokens() * call.shape.top_k;
  const UnalignedRows weight(call.weight, hidden, hidden + 1, call.weight_type);
  const UnalignedRows x(call.x, hidden, hidden + 3, call.x_type);
  const std::uint64_t bytes = cpu::portable::kRoute.workspace_bytes(call.shape, call.tokens());
  std::vector<std::byte> workspace(1 + bytes + kGuard, std::byte{0xFF});
  std::fill_n(workspace.end() - kGuard, kGuard, std::byte{0xA5});
  Routed routed{.ids = std::vector<std::int32_t>(slots + kGuard, kGuardId),
                .weights = std::vector<float>(slots + kGuard, kGuardWeight),
                .flags = 0x80000000U};
  cpu::portable::kRoute.run(
      {.shape = call.shape,
       .weight = weight.ref(),
       .bias = call.bias.empty() ? nullptr : call.bias.data(),
       .expert_scale = call.expert_scale.empty() ? nullptr : call.expert_scale.data(),
       .token_table = call.table.empty() ? nullptr : call.table.data(),
       .tokens = call.tokens(),
       .x = x.ref(),
       .token_ids = call.token_ids.empty() ? nullptr : call.token_ids.data(),
       .topk_ids = routed.ids.data(),
       .topk_weights = routed.weights.data(),
       .workspace = workspace.data() + 1,
       .flags = &routed.flags,
       .threads = call.threads});
  EXPECT_EQ(std::count(workspace.end() - kGuard, workspace.end(), std::byte{0xA5}), kGuard);
  EXPECT_EQ(std::count(routed.ids.end() - kGuard, routed.ids.end(), kGuardId), kGuard);
  EXPECT_EQ(std::count(routed.weights.end() - kGuard, routed.weights.end(), kGuardWeight), kGuard);
  EXPECT_NE(routed.flags & 0x80000000U, 0U) << "a bit of the caller was cleared";
  routed.flags &= 0x7FFFFFFFU;
  routed.ids.resize(slots);
  routed.weights.resize(slots);
  return routed;
}

// A call whose logits are exactly these, row by row: the weight is the identity. A NaN must stand
// in `weight`, because a NaN in x reaches all experts.
inline RouteCall call_of_logits(RouterKind kind, std::uint64_t experts, std::uint64_t top_k,
                                std::vector<float> logits) {
  RouteCall call{.shape = {.kind = kind, .hidden = experts, .experts = experts, .top_k = top_k},
                 .weight = std::vector<float>(experts * experts, 0.0F),
                 .x = std::move(logits)};
  for (std::uint64_t i = 0; i < experts; ++i) call.weight[i * experts + i] = 1.0F;
  return call;
}

// The logit that a sigmoid turns into this probability.
inline float logit_of(double probability) {
  return static_cast<float>(std::log(probability / (1 - probability)));
}

inline void expect_weights(const std::vector<float>& got, const std::vector<double>& expected,
                           double bound = 1e-6) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(std::fabs(got[i] - expected[i]) <= bound)
        << "slot " << i << ": " << got[i] << " for " << expected[i];
  }
}

// The same ids, and weights of the same bits.
inline void expect_same(const Routed& a, const Routed& b) {
  EXPECT_EQ(a.ids, b.ids);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  EXPECT_EQ(std::memcmp(a.weights.data(), b.weights.data(), a.weights.size() * sizeof(float)), 0);
}

}  // namespace moxie::test
