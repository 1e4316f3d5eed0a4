// SPDX-License-Identifier: Apache-2.0
// Stacked experts cut over ranks: interleaved rows come apart, biases are real on one rank and zero
// behind every real row.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/packed_model.hpp"
#include "support/refusal.hpp"
#include "support/stacked_checkpoint.hpp"

namespace moxie {
namespace {

using test::all_zero;
using test::Bytes;
using test::bytes_of;
using test::oss_checkpoint;
using test::OssNaming;
using test::OssWeights;
using test::plan_of;
using test::TempFolder;

struct Half {
  ProjectionKind kind;
  Segment codes, scales, bias;
};
constexpr Half kHalves[] = {
    {ProjectionKind::gate, Segment::gate, Segment::gate_scale, Segment::gate_bias},
    {ProjectionKind::up, Segment::up, Segment::up_scale, Segment::up_bias},
    {ProjectionKind::down, Segment::down, Segment::down_scale, Segment::down_bias}};

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string wide(const std::vector<std::uint16_t>& biases) {
  std::string bytes;
  for (const std::uint16_t bias : biases) {
    const float value = decode_bf16(bias);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

TEST(PackStacked, RanksJoinToTheWeightsThatWereStacked) {  // pit39
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const OssWeights weights = OssWeights::random({}, seed);
  const TempFolder folder;
  const MoeModel model = read_model(oss_checkpoint(folder, weights));
  for (const unsigned tp : {1U, 2U, 3U, 4U, 8U}) {
    for (const std::uint64_t align : {32U, 128U}) {
      const ShardPlan plan = plan_of(model, tp, 1, align);
      SCOPED_TRACE(test::describe(plan));
      for (std::uint64_t expert = 0; expert < weights.sizes().experts; ++expert) {
        UnpackedExpert joined = make_unpacked(plan, std::byte{0xEE});
        for (const RankPlan& rank : plan.ranks)
          unpack_expert(plan, rank, test::packed_blob(model, plan, rank.rank, expert), joined);
        const auto tensor = [&](Segment segment) -> const Bytes& {
          return joined.tensors[static_cast<std::size_t>(segment)];
        };
        for (const Half& half : kHalves) {
          const auto& part = weights.part(expert, half.kind);
          EXPECT_TRUE(test::same_bytes(as_bytes(part.codes), tensor(half.codes)));
          EXPECT_TRUE(test::same_bytes(as_bytes(part.scales), tensor(half.scales)));
          EXPECT_TRUE(test::same_bytes(as_bytes(wide(part.bias)), tensor(half.bias)));
        }
      }
    }
  }
}

// A bias behind the real rows would make act(bias) of a row that does not exist, and the down
// product would meet it with whatever lies in its tail.
TEST(PackStacked, Pit77BiasesOfPaddedRowsAreZero) {
  const OssWeights weights = OssWeights::random({}, 7);
  const TempFolder folder;
  const MoeModel model = read_model(oss_checkpoint(folder, weights));
  for (const unsigned tp : {1U, 2U, 4U, 8U}) {
    const ShardPlan plan = plan_of(model, tp, 1, 128);
    for (const RankPlan& rank : plan.ranks) {
      const Bytes blob = test::packed_blob(model, plan, rank.rank, 1);
      const std::uint64_t real = rank.slice.rows.count.value;
      for (const Segment segment : {Segment::gate_bias, Segment::up_bias}) {
        const PackedSegment& biases = *plan.layout.find(segment);
        ASSERT_EQ(biases.rows, 128U);
        ASSERT_LT(real, biases.rows);
        EXPECT_TRUE(all_zero(bytes_of(blob, biases).subspan(real * sizeof(float))));
        EXPECT_EQ(all_zero(bytes_of(blob, biases).first(real * sizeof(float))), real == 0);
      }
    }
  }
}

TEST(PackStacked, D01_TheDownBiasIsRealOnOneRankOfAGroup) {
  const OssWeights weights = OssWeights::random({}, 8);
  const TempFolder folder;
  const MoeModel model = read_model(oss_checkpoint(folder, weights));
  const ShardPlan plan = plan_of(model, 3, 3);
  ASSERT_EQ(plan.ranks.size(), 9U);
  for (const RankPlan& rank : plan.ranks) {
    const Bytes blob = test::packed_blob(model, plan, rank.rank, rank.experts.id(0));
    EXPECT_EQ(all_zero(bytes_of(blob, *plan.layout.find(Segment::down_bias))), rank.tp_rank != 0);
  }
}

TEST(PackStacked, ADownBiasOnASecondRankIsATailThatIsNotZero) {  // D-01
  const OssWeights weights = OssWeights::random({}, 9);
  const TempFolder folder;
  const MoeModel model = read_model(oss_checkpoint(folder, weights));
  const ShardPlan plan = plan_of(model, 3);
  Bytes blob = test::packed_blob(model, plan, 1, 0);
  UnpackedExpert out = make_unpacked(plan, std::byte{0});
  unpack_expert(plan, plan.ranks[1], blob, out);
  const PackedSegment& bias = *plan.layout.find(Segment::down_bias);
  const Bytes first = test::packed_blob(model, plan, 0, 0);
  std::ranges::copy(bytes_of(first, bias), blob.begin() + static_cast<std::ptrdiff_t>(bias.offset));
  const Error error = test::refusal_of([&] { unpack_expert(plan, plan.ranks[1], blob, out); });
  EXPECT_EQ(test::code_of(error), "MOXIE-V003");
  EXPECT_EQ(error.findings()[0].where.tensor, "down_bias");
}

TEST(PackStacked, ABiasThatIsNoNumberIsRefusedWithItsExpertAndRow) {
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    OssWeights weights = OssWeights::random({}, 10);
    weights.part(2, ProjectionKind::up).bias[17] = encode_bf16(wrong);
    const TempFolder folder;
    const MoeModel model = read_model(oss_checkpoint(folder, weights));
    const ShardPlan plan = plan_of(model, 1);
    const Error error = test::refusal_of([&] { pack(model, plan, 0, 0); });
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_EQ(test::code_of(error), "MOXIE-K010");
    EXPECT_EQ(error.findings()[0].where.expert, 2U);
    EXPECT_NE(error.findings()[0].message.find("row 17"), std::string::npos);
    EXPECT_TRUE(error.findings()[0].where.tensor.ends_with("gate_up_proj_bias"));
  }
}

TEST(PackStacked, ANanScaleIsRefusedWithItsExpertAndRow) {  // K-05
  OssWeights weights = OssWeights::random({}, 11);
  weights.part(1, ProjectionKind::up).scales[5 * 2 + 1] = '\xFF';
  const TempFolder folder;
  const MoeModel model = read_model(oss_checkpoint(folder, weights));
  const Error error = test::refusal_of([&] { pack(model, plan_of(model, 1), 0, 0); });
  EXPECT_EQ(test::code_of(error), "MOXIE-K003");
  EXPECT_EQ(error.findings()[0].where.expert, 1U);
  EXPECT_NE(error.findings()[0].message.find("row 5, group 1"), std::string::npos);
}

}  // namespace
}  // namespace moxie
