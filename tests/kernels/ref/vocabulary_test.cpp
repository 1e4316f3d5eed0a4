// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/vocabulary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "formats/bf16.hpp"
#include "kernels/ref/fp8_weights.hpp"

namespace moxie {
namespace {

constexpr double kMasked = -std::numeric_limits<double>::infinity();
constexpr std::uint64_t kVocab = 10;
constexpr std::uint64_t kHidden = 6;

// Rows of one shard, virtual ones zero.
struct Shard {
  Shard(std::span<const std::uint16_t> table, std::uint64_t local, std::uint64_t rank)
      : part(test::part_of(kVocab, local, rank)), rows(local * kHidden) {
    const auto own = table.subspan(part.first * kHidden, part.real * kHidden);
    std::ranges::copy(own, rows.begin());
  }
  [[nodiscard]] ref::VocabularyShard view() const {
    return {.first = part.first, .real_rows = part.real, .hidden = kHidden, .rows = rows};
  }
  test::Part part;
  std::vector<std::uint16_t> rows;
};

std::vector<std::uint16_t> random_table(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint16_t> table;
  for (const double value : test::random_values(kVocab * kHidden, random))
    table.push_back(encode_bf16(static_cast<float>(value)));
  return table;
}

std::vector<ref::ShardLogits> logits_of(std::span<const std::uint16_t> table, std::uint64_t tp,
                                        std::span<const double> x) {
  const std::uint64_t local = divide_up(kVocab, tp);
  std::vector<ref::ShardLogits> shards;
  for (std::uint64_t rank = 0; rank < tp; ++rank)
    shards.push_back(ref::logits(Shard(table, local, rank).view(), x));
  return shards;
}

TEST(Vocabulary, ShardsGiveTheLogitsOfTheWholeAndMaskVirtualRows) {
  const auto table = random_table(1);
  std::mt19937_64 random(2);
  const auto x = test::random_values(kHidden, random);
  const auto whole = logits_of(table, 1, x);
  for (const std::uint64_t tp : {2, 3, 4, 7}) {
    std::vector<double> all;
    for (const auto& shard : logits_of(table, tp, x))
      all.insert(all.end(), shard.logits.begin(), shard.logits.end());
    ASSERT_EQ(all.size(), tp * divide_up(kVocab, tp));
    for (std::size_t id = 0; id < all.size(); ++id)
      EXPECT_EQ(all[id], id < kVocab ? whole[0].logits[id] : kMasked) << id;
    EXPECT_EQ(ref::argmax(logits_of(table, tp, x)), ref::argmax(whole));
  }
}

TEST(Vocabulary, ALogitIsTheProductWithItsRowAndHasItsMagnitude) {
  std::vector<std::uint16_t> table(kVocab * kHidden);
  table[3 * kHidden] = encode_bf16(2);
  table[3 * kHidden + 5] = encode_bf16(-0.5F);
  const auto shards = logits_of(table, 1, std::vector<double>{1, 9, 9, 9, 9, 8});
  EXPECT_EQ(shards[0].logits[3], -2);
  EXPECT_EQ(shards[0].magnitude[3], 6);
}

// Where all real logits are negative, a virtual row of zeros would win.
TEST(Vocabulary, AVirtualRowNeverWins) {
  const std::vector<std::uint16_t> table(kVocab * kHidden, encode_bf16(-1));
  const std::vector<double> x(kHidden, 1);
  EXPECT_EQ(ref::argmax(logits_of(table, 3, x)), 0U);

  Shard last(table, 4, 2);
  std::fill(last.rows.begin() + 2 * kHidden, last.rows.end(), encode_bf16(100));
  const auto masked = ref::logits(last.view(), x);
  EXPECT_EQ(masked.logits, (std::vector<double>{-6, -6, kMasked, kMasked}));
  EXPECT_EQ(masked.magnitude[2], 0);
}

TEST(Vocabulary, TheLowestIdWinsTiesInAnyOrderOfShards) {
  const std::vector<ref::ShardLogits> shards = {{.first = 4, .logits = {1, 5, 5, kMasked}},
                                                {.first = 0, .logits = {0, 2, 5, 5}}};
  EXPECT_EQ(ref::argmax(shards), 2U);
}

TEST(Vocabulary, NanAndShardsWithoutARealRowHaveNoBestId) {
  const double nan = std::nan("");
  EXPECT_EQ(ref::argmax(std::vector<ref::ShardLogits>{{.first = 0, .logits = {1, nan}}}),
            std::nullopt);
  EXPECT_EQ(ref::argmax(std::vector<ref::ShardLogits>{{.first = 0, .logits = {kMasked}}}),
            std::nullopt);
  EXPECT_EQ(ref::argmax({}), std::nullopt);

  auto table = random_table(3);
  table[7 * kHidden + 2] = 0x7FC0;
  EXPECT_EQ(ref::argmax(logits_of(table, 3, std::vector<double>(kHidden, 1))), std::nullopt);
}

TEST(Vocabulary, EmbeddingsOfShardsAddUpToTheRow) {
  const auto table = random_table(4);
  for (const std::uint64_t tp : {1, 2, 3, 7}) {
    const std::uint64_t local = divide_up(kVocab, tp);
    for (std::uint64_t id = 0; id < kVocab; ++id) {
      std::vector<double> sum;
      std::uint64_t owners = 0;
      for (std::uint64_t rank = 0; rank < tp; ++rank) {
        const auto own = ref::embed(Shard(table, local, rank).view(), id);
        owners += test::all_zero(own) ? 0 : 1;
        test::add_to(sum, own);
      }
      EXPECT_EQ(owners, 1U);
      for (std::uint64_t i = 0; i < kHidden; ++i)
        EXPECT_EQ(sum[i], decode_bf16(table[id * kHidden + i]));
    }
  }
}

TEST(Vocabulary, VirtualRowsAreNoEmbeddingsEither) {
  const auto table = random_table(5);
  Shard last(table, 4, 2);
  std::fill(last.rows.begin() + 2 * kHidden, last.rows.end(), encode_bf16(100));
  EXPECT_TRUE(test::all_zero(ref::embed(last.view(), kVocab)));
}

}  // namespace
}  // namespace moxie
