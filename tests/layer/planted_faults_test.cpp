// SPDX-License-Identifier: Apache-2.0
// The check is tested by planting faults: each is found in the cell where it can show, and the same
// cell passes without it. docs/verification.md lists the cells.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "support/faulty_layer.hpp"
#include "support/layer_rig.hpp"
#include "support/packed_model.hpp"

namespace moxie {
namespace {

using test::Fault;
using test::FaultyLayer;
using test::RigModel;
using test::TinyModel;

using Blob = std::vector<std::byte>;
// Changes the packed experts of all ranks.
using Plant = std::function<void(std::vector<PackedExperts>&)>;

std::span<std::byte> segment_of(PackedExperts& rank, std::uint64_t local, Segment segment) {
  const PackedSegment* found = rank.layout.find(segment);
  return std::span(rank.blobs).subspan(local * rank.layout.stride + found->offset, found->bytes());
}

float global_of(PackedExperts& rank, std::uint64_t local, Segment segment) {
  float value = 0;
  std::memcpy(&value, segment_of(rank, local, segment).data(), sizeof value);
  return value;
}

void set_global(PackedExperts& rank, std::uint64_t local, Segment segment, float value) {
  std::memcpy(segment_of(rank, local, segment).data(), &value, sizeof value);
}

// A cell: a model with a plan, a spec and a probe, and the reference of its call.
class Cell {
 public:
  Cell(const MoeModel& model, const PlanOptions& options, std::uint64_t tokens,
       std::uint64_t top_k = 2)
      : model_(model), plan_(make_plan(model, options)), spec_(spec_of(model.config)) {
    spec_.activation = Activation::clamped_swiglu;
    spec_.activation_limit = model.config.activation_limit.value_or(10.0);
    spec_.top_k = top_k;
    probe_ = test::probe_of(model, tokens, top_k);
    reference_ = make_reference(model, 0, plan_, spec_, probe_);
  }

  const LayerSpec& spec() const { return spec_; }
  const ShardPlan& plan() const { return plan_; }
  const Probe& probe() const { return probe_; }
  void limit(double value) {
    spec_.activation_limit = value;
    reference_ = make_reference(model_, 0, plan_, spec_, probe_);
  }

  LayerCheck check(std::span<const float> y) const { return check_output(y, reference_, plan_); }
  std::vector<float> run(const Plant& plant, const Probe& probe) const {
    std::vector<PackedExperts> ranks = test::pack_all(model_, plan_);
    if (plant) plant(ranks);
    return test::run_layer(MoeLayer(plan_, spec_, std::move(ranks)), probe);
  }

  void expect_clean_passes() const {
    EXPECT_TRUE(check(run({}, probe_)).passed) << test::describe(plan_);
  }
  void expect_found(const Plant& plant) const { expect_found(run(plant, probe_)); }
  void expect_found(const std::vector<float>& y) const {
    expect_clean_passes();
    const LayerCheck found = check(y);
    EXPECT_FALSE(found.passed) << test::describe(plan_);
    ASSERT_FALSE(found.findings.empty());
    EXPECT_EQ(found.findings.front().code, "MOXIE-R010");
  }

 private:
  const MoeModel& model_;
  ShardPlan plan_;
  LayerSpec spec_;
  Probe probe_;
  LayerReference reference_;
};

TEST(PlantedFault, SwappedGateAndUpIsFoundInBothFormats) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    Cell(*model, {.tp = 1}, 5).expect_found([](std::vector<PackedExperts>& ranks) {
      for (std::uint64_t local = 0; local < ranks[0].experts.count(); ++local) {
        std::ranges::swap_ranges(segment_of(ranks[0], local, Segment::gate),
                                 segment_of(ranks[0], local, Segment::up));
        std::ranges::swap_ranges(segment_of(ranks[0], local, Segment::gate_scale),
                                 segment_of(ranks[0], local, Segment::up_scale));
      }
    });
  }
}

TEST(PlantedFault, RowsPermutedWithoutTheirScalesAreFound) {  // B4, pit39
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    Cell(*model, {.tp = 1}, 5).expect_found([](std::vector<PackedExperts>& ranks) {
      for (std::uint64_t local = 0; local < ranks[0].experts.count(); ++local) {
        for (const Segment half : {Segment::gate, Segment::up}) {
          const auto rows = segment_of(ranks[0], local, half);
          std::rotate(
              rows.begin(),
              rows.begin() + static_cast<std::ptrdiff_t>(ranks[0].layout.find(half)->row_bytes),
              rows.end());
        }
      }
    });
  }
}

TEST(PlantedFault, AReciprocalGlobalIsFound) {  // NVFP4 only: MXFP4 has no global
  const RigModel model({.format = BlockFormat::nvfp4});
  for (const Segment which :
       {Segment::gate_dequant_mul, Segment::up_dequant_mul, Segment::down_dequant_mul}) {
    Cell(*model, {.tp = 1}, 5).expect_found([&](std::vector<PackedExperts>& ranks) {
      set_global(ranks[0], 2, which, 1 / global_of(ranks[0], 2, which));
      set_global(ranks[0], 4, which, 1 / global_of(ranks[0], 4, which));
    });
  }
}

TEST(PlantedFault, ANeighboursGlobalIsFoundWhereTheyDiffer) {  // B3
  const TinyModel model(BlockFormat::nvfp4, 352, 160);
  for (const Segment which :
       {Segment::gate_dequant_mul, Segment::up_dequant_mul, Segment::down_dequant_mul}) {
    Cell(*model, {.tp = 1}, 5).expect_found([&](std::vector<PackedExperts>& ranks) {
      set_global(ranks[0], 1, which, global_of(ranks[0], 0, which));
    });
  }
  Cell(*model, {.tp = 1}, 5).expect_found([](std::vector<PackedExperts>& ranks) {
    // One global for both halves, as readers of a fused tensor do.
    set_global(ranks[0], 1, Segment::up_dequant_mul,
               global_of(ranks[0], 1, Segment::gate_dequant_mul));
  });
}

TEST(PlantedFault, AScaleRowShiftedByOneIsFoundInEveryProjection) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    for (const Segment which : {Segment::gate_scale, Segment::up_scale, Segment::down_scale}) {
      Cell(*model, {.tp = 1}, 5).expect_found([&](std::vector<PackedExperts>& ranks) {
        for (std::uint64_t local = 0; local < ranks[0].experts.count(); ++local) {
          const auto scales = segment_of(ranks[0], local, which);
          std::rotate(
              scales.begin(),
              scales.begin() + static_cast<std::ptrdiff_t>(ranks[0].layout.find(which)->row_bytes),
              scales.end());
        }
      });
    }
  }
}

// Rank 0's kernel padding holds the first rows of rank 1 instead of zeros, in all three
// projections.
TEST(PlantedFault, ANeighboursTailIsFoundFromTwoRanksOn) {  // pit72
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    for (const unsigned tp : {2U, 3U}) {
      const Cell cell(*model, {.tp = tp, .kernel_align = 160}, 5);
      ASSERT_GT(cell.plan().inter().kernel, cell.plan().inter().local);
      cell.expect_found([&](std::vector<PackedExperts>& ranks) {
        const std::uint64_t local = cell.plan().inter().local.value;
        const std::uint64_t tail = cell.plan().inter().kernel.value - local;
        const std::uint64_t group = scale_group(format);
        const auto copy_rows = [&](std::uint64_t expert, Segment segment) {
          const std::uint64_t bytes = ranks[0].layout.find(segment)->row_bytes;
          std::ranges::copy(segment_of(ranks[1], expert, segment).first(tail * bytes),
                            segment_of(ranks[0], expert, segment).subspan(local * bytes).begin());
        };
        const auto copy_columns = [&](std::uint64_t expert, Segment segment, std::uint64_t unit) {
          const PackedSegment& down = *ranks[0].layout.find(segment);
          for (std::uint64_t row = 0; row < down.rows; ++row) {
            std::ranges::copy(
                segment_of(ranks[1], expert, segment).subspan(row * down.row_bytes, tail / unit),
                segment_of(ranks[0], expert, segment)
                    .subspan(row * down.row_bytes + local / unit)
                    .begin());
          }
        };
        for (std::uint64_t expert = 0; expert < ranks[0].experts.count(); ++expert) {
          for (const Segment rows :
               {Segment::gate, Segment::up, Segment::gate_scale, Segment::up_scale})
            copy_rows(expert, rows);
          copy_columns(expert, Segment::down, 2);
          copy_columns(expert, Segment::down_scale, group);
        }
      });
    }
  }
}

TEST(PlantedFault, ARouterWeightAppliedTwiceIsFound) {  // B7
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    const Cell cell(*model, {.tp = 2}, 5);
    Probe squared = cell.probe();
    for (float& weight : squared.topk_weights) weight *= weight;
    cell.expect_found(cell.run({}, squared));
    const FaultyLayer before(*model, cell.spec(), Fault::weight_before_act);
    cell.expect_found(before.run(cell.probe()));
  }
}

TEST(PlantedFault, AnActivationAfterTheSumIsFoundFromTwoSlotsOn) {  // B6
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    Cell cell(*model, {.tp = 1}, 5, 2);
    cell.expect_found(
        FaultyLayer(*model, cell.spec(), Fault::activation_after_sum).run(cell.probe()));
  }
}

TEST(PlantedFault, AClampOnTheWrongSideIsFoundWhereValuesReachIt) {  // K-03
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    for (const Fault fault :
         {Fault::gate_clamped_below, Fault::up_not_clamped_below, Fault::clamp_after_sigmoid}) {
      Cell cell(*model, {.tp = 1}, 5);
      cell.limit(0.25);
      cell.expect_found(FaultyLayer(*model, cell.spec(), fault).run(cell.probe()));
    }
  }
}

TEST(PlantedFault, AStaleRowOfALargerCallIsFound) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    const Cell cell(*model, {.tp = 1}, 5);
    const Probe larger = test::probe_of(*model, 64, 2, {}, 99);
    const std::vector<float> old = cell.run({}, larger);
    std::vector<float> y = cell.run({}, cell.probe());
    std::copy_n(old.begin() + 4 * 160, 160, y.begin() + 4 * 160);
    cell.expect_found(y);
  }
}

TEST(PlantedFault, AnExpertOffsetOffByOneIsFound) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    for (const PlanOptions& options : {PlanOptions{.tp = 1}, PlanOptions{.tp = 1, .ep = 3}}) {
      Cell(*model, options, 5).expect_found([](std::vector<PackedExperts>& ranks) {
        for (PackedExperts& rank : ranks) {
          std::rotate(rank.blobs.begin(),
                      rank.blobs.begin() + static_cast<std::ptrdiff_t>(rank.layout.stride),
                      rank.blobs.end());
        }
      });
    }
  }
}

TEST(PlantedFault, AScaleGroupOf16ReadAs32IsFound) {  // NVFP4 only; pit9
  const RigModel model({.format = BlockFormat::nvfp4});
  Cell cell(*model, {.tp = 1}, 5);
  cell.expect_found(FaultyLayer(*model, cell.spec(), Fault::scale_group_doubled).run(cell.probe()));
}

TEST(PlantedFault, TwoExchangedScaleGroupsAreFound) {  // C-04
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    Cell(*model, {.tp = 1}, 64).expect_found([](std::vector<PackedExperts>& ranks) {
      const auto scales = segment_of(ranks[0], 3, Segment::down_scale);
      const auto other = std::ranges::find_if(scales, [&](std::byte b) { return b != scales[0]; });
      ASSERT_NE(other, scales.end());
      std::swap(scales[0], *other);
    });
  }
}

TEST(PlantedFault, AnEngineWithoutAFaultPasses) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    Cell cell(*model, {.tp = 1}, 5);
    EXPECT_TRUE(cell.check(FaultyLayer(*model, cell.spec(), Fault::none).run(cell.probe())).passed);
    cell.limit(0.25);
    EXPECT_TRUE(cell.check(FaultyLayer(*model, cell.spec(), Fault::none).run(cell.probe())).passed);
  }
}

}  // namespace
}  // namespace moxie
