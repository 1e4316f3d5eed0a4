// SPDX-License-Identifier: Apache-2.0
// No number of a plan can be wrong by one without being noticed.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moxie/pack.hpp"
#include "support/packed_model.hpp"
#include "support/plan_mutations.hpp"

namespace moxie {
namespace {

using test::describe;
using test::packed_blob;
using test::plan_of;
using test::PlanMutation;
using test::TinyModel;

// Packs under one plan and joins under another. True when something is refused or what is joined is
// not the source.
bool is_noticed(const MoeModel& model, const ShardPlan& packed_by, const ShardPlan& read_by) {
  try {
    UnpackedExpert joined = make_unpacked(read_by, std::byte{0xFF});
    for (unsigned rank = 0; rank < read_by.tp; ++rank) {
      unpack_expert(read_by, read_by.ranks[rank], packed_blob(model, packed_by, rank, 0), joined);
    }
    return !test::equals_source(model, read_by, 0, joined);
  } catch (const Error&) {
    return true;
  }
}

std::vector<std::string> survivors(const MoeModel& model, const ShardPlan& plan,
                                   const std::vector<PlanMutation>& mutations) {
  std::vector<std::string> survived;
  for (const PlanMutation& mutation : mutations) {
    if (!is_noticed(model, mutation.plan, plan)) survived.push_back(mutation.what);
  }
  return survived;
}

struct MutatedPlan {
  const char* what;
  BlockFormat format;
  std::uint64_t inter;
  std::uint64_t align;
};

// No byte of the source is zero, in scalars neither: an overlap by one byte shows wherever it is.
test::TinyOptions without_zero_bytes(const MutatedPlan& plan) {
  test::TinyOptions options = test::tiny_options(plan.format, plan.inter);
  options.edits = {[](test::TinyTensor& tensor) {
    for (char& byte : tensor.bytes) byte = byte == 0 ? '\x11' : byte;
    return true;
  }};
  return options;
}

class PackMutation : public testing::TestWithParam<MutatedPlan> {
 protected:
  PackMutation()
      : model_(without_zero_bytes(GetParam())), plan_(plan_of(*model_, 3, 1, GetParam().align)) {}

  TinyModel model_;
  ShardPlan plan_;
};

TEST_P(PackMutation, TheUnchangedPlanIsNotNoticed) {
  EXPECT_FALSE(is_noticed(*model_, plan_, plan_)) << describe(plan_);
}

// pit68, pit69, pit70. A mutant is equivalent when a rank is empty and only its src moves towards
// the axis: it reads nothing from there either. Away from the axis is refused.
TEST_P(PackMutation, NoSliceSurvivesAChangeByOne) {
  std::vector<std::string> equivalent;
  for (const RankPlan& rank : plan_.ranks) {
    if (rank.slice.rows.count != Elems{0}) continue;
    for (const char* unit : {"rows", "bytes", "groups"})
      equivalent.push_back("rank " + std::to_string(rank.rank) + " " + unit + ".src -1");
  }
  const auto mutations = test::slice_mutations(plan_);
  EXPECT_EQ(mutations.size(), 3U * 9 * 2);
  EXPECT_EQ(survivors(*model_, plan_, mutations), equivalent) << describe(plan_);
}

// Without equivalent mutants: each moves bytes or room of a tensor.
TEST_P(PackMutation, NoSegmentSurvivesAChangeByOne) {
  const auto mutations = test::layout_mutations(plan_);
  EXPECT_EQ(mutations.size(), plan_.layout.segments.size() * 3 * 2);
  EXPECT_EQ(survivors(*model_, plan_, mutations), std::vector<std::string>{}) << describe(plan_);
}

// The same layout on both sides is consistent with itself; segments then overlap by one byte.
TEST_P(PackMutation, NoSegmentSurvivesAChangeByOneOnBothSides) {
  for (const PlanMutation& mutation : test::layout_mutations(plan_))
    EXPECT_TRUE(is_noticed(*model_, mutation.plan, mutation.plan)) << mutation.what;
}

INSTANTIATE_TEST_SUITE_P(
    Plans, PackMutation,
    testing::Values(MutatedPlan{"Mxfp4WithTails", BlockFormat::mxfp4, 160, 128},
                    MutatedPlan{"Mxfp4WithoutTails", BlockFormat::mxfp4, 96, 32},
                    MutatedPlan{"Mxfp4WithAnEmptyRank", BlockFormat::mxfp4, 64, 64},
                    MutatedPlan{"Nvfp4WithTails", BlockFormat::nvfp4, 112, 64},
                    MutatedPlan{"Nvfp4WithoutTails", BlockFormat::nvfp4, 96, 32},
                    MutatedPlan{"Nvfp4WithAnEmptyRank", BlockFormat::nvfp4, 32, 32}),
    [](const auto& param) { return std::string(param.param.what); });

// A blob, buffer or expert of another size is our own mistake, and never an access out of bounds.
TEST(PackMisuse, WrongSizesAreInternalErrors) {
  const TinyModel model(BlockFormat::nvfp4);
  const ShardPlan plan = plan_of(*model, 2);
  const RankPlan& rank = plan.ranks[0];
  const auto internal = [](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code() == ErrorCode::internal;
    }
    return false;
  };
  for (const std::uint64_t size :
       {std::uint64_t{0}, plan.layout.stride - 1, plan.layout.stride + 1}) {
    std::vector<std::byte> blob(size);
    UnpackedExpert out = make_unpacked(plan, std::byte{0});
    EXPECT_TRUE(internal([&] { pack_expert(*model, plan, rank, model.layer(), 0, blob); }));
    EXPECT_TRUE(internal([&] { unpack_expert(plan, rank, blob, out); }));
  }
  std::vector<std::byte> blob(plan.layout.stride);
  EXPECT_TRUE(internal([&] { pack_expert(*model, plan, rank, model.layer(), 3, blob); }));
  UnpackedExpert nothing;
  EXPECT_TRUE(internal([&] { unpack_expert(plan, rank, blob, nothing); }));
  UnpackedExpert short_by_one = make_unpacked(plan, std::byte{0});
  short_by_one.tensors[0].pop_back();
  EXPECT_TRUE(internal([&] { unpack_expert(plan, rank, blob, short_by_one); }));
  EXPECT_TRUE(internal([&] { pack(*model, plan, 2, 0); }));
}

}  // namespace
}  // namespace moxie
