// SPDX-License-Identifier: Apache-2.0
// Layers whose experts lie otherwise than in contiguous ranges, and on several ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "formats/e2m1.hpp"
#include "formats/e4m3.hpp"
#include "support/layer_rig.hpp"
#include "support/packed_model.hpp"
#include "support/random_placement.hpp"

namespace moxie {
namespace {

using test::interleaved;
using test::placed;
using test::random_placement;
using test::RigModel;
using test::TinyModel;

constexpr std::uint64_t kHidden = 64;
constexpr std::uint64_t kInter = 96;

// Eight experts in NVFP4; all weights of expert e are e + 1.
TinyModel counted_model() {
  test::TinyOptions options = test::tiny_options(BlockFormat::nvfp4, kInter, kHidden);
  options.experts = 8;
  options.edits = {[](test::TinyTensor& tensor) {
    const auto at = tensor.name.find(".experts.") + std::strlen(".experts.");
    const float value = static_cast<float>(std::stoi(tensor.name.substr(at)) + 1);
    const float one = 1;
    char byte = 0x22;  // two codes of 1
    if (tensor.name.ends_with(".weight_scale")) byte = static_cast<char>(encode_e4m3_sat(value));
    if (tensor.bytes.size() == sizeof one)
      std::memcpy(tensor.bytes.data(), &one, sizeof one);
    else
      tensor.bytes.assign(tensor.bytes.size(), byte);
    return true;
  }};
  return TinyModel(options);
}

// The weight in the first row and column of a projection in one slot.
double first_weight(const PackedExperts& rank, std::uint64_t slot, Segment codes, Segment scales,
                    Segment global) {
  const std::byte* blob = rank.blobs.data() + slot * rank.layout.stride;
  const auto byte = [&](Segment segment) {
    return std::to_integer<std::uint8_t>(blob[rank.layout.find(segment)->offset]);
  };
  float mul = 0;
  std::memcpy(&mul, blob + rank.layout.find(global)->offset, sizeof mul);
  return decode_e2m1(byte(codes) & 15U) * decode_e4m3(byte(scales)) * mul;
}

TEST(LayerPlacement, P06_LoaderAndRouterUseOneMap) {
  const TinyModel model = counted_model();
  const ShardPlan plan = make_plan(*model, {.ep = 2, .placement = interleaved()});
  const std::vector<PackedExperts> ranks = test::pack_all(*model, plan);
  EXPECT_EQ(ranks[1].experts.slot_of(5), 2U);
  EXPECT_FALSE(ranks[0].experts.holds(5));
  for (const auto& [codes, scales, global] :
       {std::tuple{Segment::gate, Segment::gate_scale, Segment::gate_dequant_mul},
        std::tuple{Segment::up, Segment::up_scale, Segment::up_dequant_mul},
        std::tuple{Segment::down, Segment::down_scale, Segment::down_dequant_mul}})
    EXPECT_EQ(first_weight(ranks[1], 2, codes, scales, global), 6);

  // One token of ones, routed to global expert 5 alone.
  const Probe probe{.tokens = 1,
                    .hidden = kHidden,
                    .top_k = 1,
                    .x_dtype = DType::f32,
                    .x =
                        [] {
                          const std::vector<float> ones(kHidden, 1.0F / kHidden);
                          std::vector<std::byte> bytes(kHidden * sizeof(float));
                          std::memcpy(bytes.data(), ones.data(), bytes.size());
                          return bytes;
                        }(),
                    .topk_ids = {5},
                    .topk_weights = {0.5F},
                    .token_ids = {}};
  LayerSpec spec{.top_k = 1, .activation = Activation::silu, .activation_limit = {}};
  // Gate and up are 6, since x sums to 1; 6 * silu(6) is 35.91 and 36 in bf16.
  const auto y = test::run_layer(MoeLayer(plan, spec, ranks), probe);
  EXPECT_EQ(y, std::vector<float>(kHidden, 0.5F * 6 * kInter * 36));
  // Rank 1 computes all of it.
  spec.reduction = Reduction::caller;
  EXPECT_EQ(test::run_layer(MoeLayer(plan, spec, {ranks[0]}), probe),
            std::vector<float>(kHidden, 0.0F));
  EXPECT_EQ(test::run_layer(MoeLayer(plan, spec, {ranks[1]}), probe), y);
}

// Slots that the holders of the same expert compute.
std::uint64_t slots_of_second_holders(const ShardPlan& plan, const Probe& probe) {
  const ExpertOwners owners = owners_of(plan);
  std::uint64_t count = 0;
  for (std::uint64_t slot = 0; slot < probe.topk_ids.size(); ++slot) {
    const std::uint64_t choice = slot % probe.top_k;
    const auto owner =
        owners.owner(std::span(probe.topk_ids).subspan(slot - choice, probe.top_k), choice);
    if (owner && owners.holders(probe.topk_ids[slot]).front() != *owner) ++count;
  }
  return count;
}

TEST(LayerPlacement, AnyMapGivesTheResultOfOneRankWithinTheBound) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::uint64_t moved = 0;
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format, .experts = 9, .seed = random()});
    LayerSpec spec = spec_of(model->config);
    spec.top_k = 4;
    const ShardPlan one = make_plan(*model, {});
    Probe probe = test::probe_of(*model, 40, spec.top_k, {}, random());
    for (std::size_t slot = 0; slot < probe.topk_ids.size(); slot += 7) probe.topk_ids[slot] = -1;
    const LayerReference reference = make_reference(*model, 0, one, spec, probe);
    for (int repeat = 0; repeat < 8; ++repeat) {
      const unsigned ep = 2 + repeat % 3;
      const Placement placement = repeat == 0 ? interleaved() : random_placement(9, ep, random);
      const ShardPlan plan =
          make_plan(*model, {.tp = 1U + repeat % 2, .ep = ep, .placement = placement});
      SCOPED_TRACE(to_json(plan).dump_compact());
      moved += slots_of_second_holders(plan, probe);
      const MoeLayer layer = test::layer_of(*model, plan, spec);
      EXPECT_TRUE(check_layer(layer, reference, probe).passed);
      EXPECT_TRUE(check_layer(layer, make_reference(layer, probe), probe).passed);
    }
  }
  EXPECT_GT(moved, 100U) << "second holders compute something";
}

// Each choice is computed by one rank and by that alone: the taps say who did.
TEST(LayerPlacement, EveryChoiceIsComputedOnce) {
  std::mt19937_64 random(8);
  const RigModel model({.experts = 6});
  const LayerSpec spec = spec_of(model->config);
  const Probe probe = test::probe_of(*model, 64, spec.top_k);
  const std::uint64_t slots = probe.topk_ids.size();
  for (int repeat = 0; repeat < 5; ++repeat) {
    const ShardPlan plan =
        make_plan(*model, {.ep = 3, .placement = random_placement(6, 3, random)});
    const MoeLayer layer = test::layer_of(*model, plan, spec);
    const std::uint64_t width = plan.inter().kernel.value;
    std::vector<float> taps(3 * slots * width, std::numeric_limits<float>::quiet_NaN());
    std::vector<float> y(probe.tokens * probe.hidden);
    std::vector<std::byte> workspace(layer.workspace_size(probe.tokens), std::byte{0xFF});
    std::uint32_t flags = 0;
    LayerIo io = test::io_of(probe, y.data(), DType::f32, &flags);
    io.act_tap = taps.data();
    ASSERT_EQ(layer.forward(io, workspace), CallStatus::ok);
    for (std::uint64_t slot = 0; slot < slots; ++slot) {
      int computed = 0;
      for (std::uint64_t rank = 0; rank < 3; ++rank)
        computed += std::isnan(taps[(rank * slots + slot) * width]) ? 0 : 1;
      ASSERT_EQ(computed, 1) << "slot " << slot;
    }
    const LayerReference stages =
        make_reference(*model, 0, plan, spec, probe, {.act = joined_acts(plan, probe, taps)});
    EXPECT_TRUE(check_output(y, stages, plan).passed);
  }
}

// The probe with its tokens in another order.
Probe permuted(const Probe& probe, const std::vector<std::uint64_t>& order) {
  Probe result = probe;
  result.tokens = order.size();
  result.x.clear();
  result.topk_ids.clear();
  result.topk_weights.clear();
  const std::uint64_t row_bytes = probe.hidden * bits_of(probe.x_dtype) / 8;
  for (const std::uint64_t token : order) {
    const auto append = [token](auto& to, const auto& from, std::uint64_t width) {
      const auto begin = from.begin() + static_cast<std::ptrdiff_t>(token * width);
      to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
    };
    append(result.x, probe.x, row_bytes);
    append(result.topk_ids, probe.topk_ids, probe.top_k);
    append(result.topk_weights, probe.topk_weights, probe.top_k);
  }
  return result;
}

TEST(LayerPlacement, ATokenIsTheSameAloneAndAnywhereInABatch) {  // K-11, B9
  std::mt19937_64 random(3);
  const RigModel model({.experts = 8});
  LayerSpec spec = spec_of(model->config);
  spec.top_k = 3;
  for (int repeat = 0; repeat < 4; ++repeat) {
    const ShardPlan plan =
        make_plan(*model, {.tp = 2, .ep = 3, .placement = random_placement(8, 3, random)});
    const MoeLayer layer = test::layer_of(*model, plan, spec);
    const Probe probe = test::probe_of(*model, 33, spec.top_k, {}, random());
    ASSERT_GT(slots_of_second_holders(plan, probe), 0U);
    const auto whole = test::bits_of(test::run_layer(layer, probe));
    const auto row = [&](const auto& bits, std::uint64_t token) {
      const auto begin = bits.begin() + static_cast<std::ptrdiff_t>(token * probe.hidden);
      return std::vector(begin, begin + static_cast<std::ptrdiff_t>(probe.hidden));
    };
    std::vector<std::uint64_t> order(probe.tokens);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    const auto mixed = test::bits_of(test::run_layer(layer, permuted(probe, order)));
    for (std::uint64_t i = 0; i < order.size(); ++i) {
      ASSERT_EQ(row(mixed, i), row(whole, order[i])) << "token " << order[i] << " at " << i;
      const auto alone = test::bits_of(test::run_layer(layer, permuted(probe, {order[i]})));
      ASSERT_EQ(alone, row(whole, order[i])) << "token " << order[i];
    }
  }
}

TEST(LayerPlacement, TheSumOfTheRanksOfOtherProcessesIsTheLayers) {  // D-02
  std::mt19937_64 random(4);
  const RigModel model({.experts = 8});
  LayerSpec spec = spec_of(model->config);
  const ShardPlan plan =
      make_plan(*model, {.tp = 2, .ep = 2, .placement = random_placement(8, 2, random)});
  const Probe probe = test::probe_of(*model, 17, spec.top_k);
  const std::vector<PackedExperts> ranks = test::pack_all(*model, plan);
  const auto whole = test::run_layer(MoeLayer(plan, spec, ranks), probe);
  spec.reduction = Reduction::caller;
  std::vector<float> sum(whole.size(), 0.0F);
  for (const PackedExperts& rank : ranks) {
    const auto part = test::run_layer(MoeLayer(plan, spec, {rank}), probe);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  EXPECT_EQ(test::bits_of(sum), test::bits_of(whole));
}

TEST(LayerPlacement, Nvfp4ActivationsPassUnderEveryPolicy) {
  std::mt19937_64 random(6);
  const RigModel model({.format = BlockFormat::nvfp4, .experts = 6});
  LayerSpec spec = spec_of(model->config);
  spec.top_k = 3;
  for (const ActScale policy :
       {ActScale::checkpoint, ActScale::warmup, ActScale::dynamic, ActScale::row}) {
    const ShardPlan plan = make_plan(*model, {.tp = 2,
                                              .ep = 3,
                                              .act_format = ActFormat::nvfp4,
                                              .act_scale = policy,
                                              .placement = random_placement(6, 3, random)});
    MoeLayer layer = test::layer_of(*model, plan, spec);
    const Probe probe = test::probe_of(*model, 24, spec.top_k);
    if (policy == ActScale::warmup) {
      std::vector<float> y(probe.tokens * probe.hidden);
      std::uint32_t flags = 0;
      const auto scales = HostCall(layer, probe.tokens)
                              .warm_up(test::io_of(probe, y.data(), DType::f32, &flags), 8);
      std::uint64_t seen = 0;  // every slot by one group, of which each rank counts it
      for (const ActScales& scale : scales) seen += scale.slots;
      EXPECT_EQ(seen, 2 * probe.topk_ids.size());
      layer.freeze(scales);
    }
    const LayerCheck check = check_layer(layer, make_reference(layer, probe), probe);
    EXPECT_TRUE(check.passed) << name_of(policy) << " " << check.max_err_over_bound;
  }
}

TEST(LayerPlacement, IdsOfNoExpertAreReportedAndSkipped) {
  const RigModel model({.experts = 6});
  const LayerSpec spec = spec_of(model->config);
  const ShardPlan plan =
      make_plan(*model, {.ep = 2, .placement = placed({{0, 1, 2, 3, 4}, {4, 5, 0}})});
  const MoeLayer layer = test::layer_of(*model, plan, spec);
  Probe probe = test::probe_of(*model, 8, spec.top_k);
  probe.topk_ids[3] = 6;
  std::uint32_t flags = 0;
  const auto bad = test::run_layer(layer, probe, &flags);
  EXPECT_EQ(flags, kFlagBadExpertId);
  probe.topk_ids[3] = -1;
  EXPECT_EQ(test::bits_of(test::run_layer(layer, probe)), test::bits_of(bad));
}

}  // namespace
}  // namespace moxie
