// SPDX-License-Identifier: Apache-2.0
// Layers loaded from stacked experts: hand-made values, and every way to read the stack wrongly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "support/layer_rig.hpp"
#include "support/packed_model.hpp"
#include "support/stacked_checkpoint.hpp"

namespace moxie {
namespace {

using test::oss_checkpoint;
using test::OssNaming;
using test::OssWeights;
using test::TempFolder;
using Kind = ProjectionKind;

constexpr unsigned kCode[] = {0, 2, 4, 5, 6};  // of 0, 1, 2, 3, 4

// One token of f32 through one expert with weight 1.
std::vector<float> run_one(const MoeLayer& layer, const std::vector<float>& x) {
  Probe probe{.tokens = 1,
              .hidden = x.size(),
              .top_k = 1,
              .x_dtype = DType::f32,
              .x = {},
              .topk_ids = {0},
              .topk_weights = {1.0F},
              .token_ids = {}};
  const auto bytes = std::as_bytes(std::span(x));
  probe.x.assign(bytes.begin(), bytes.end());
  return test::run_layer(layer, probe);
}

std::vector<float> unit(std::uint64_t hidden) {
  std::vector<float> x(hidden, 0.0F);
  x[0] = 1.0F;
  return x;
}

LayerSpec spec_of_one(const MoeModel& model, Activation activation) {
  LayerSpec spec = spec_of(model.config);
  spec.top_k = 1;
  spec.activation = activation;
  if (!has_limit(activation)) spec.activation_limit.reset();
  return spec;
}

// Within the rounding of the activation to bf16.
void expect_near(double got, double expected) {
  EXPECT_TRUE(std::abs(got - expected) <= 0x1p-8 * std::abs(expected))
      << got << " for " << expected;
}

// The stacked rows give 1, 2, 3, 4. In turns they are gate 1, up 2, gate 3, up 4; read one half
// after the other they would be gates 1, 2 and ups 3, 4.
TEST(StackedLayer, K04_InterleavedRowsAreNotConcatenatedOnes) {  // pit39
  const test::OssSizes sizes{.hidden = 32, .inter = 32, .experts = 1};
  const auto weights_of = [&](std::array<unsigned, 2> gate, std::array<unsigned, 2> up) {
    OssWeights weights(sizes);
    for (std::uint64_t i = 0; i < 2; ++i) {
      weights.code(0, Kind::gate, i, 0, kCode[gate[i]]).code(0, Kind::up, i, 0, kCode[up[i]]);
      weights.code(0, Kind::down, i, i, kCode[1]);
    }
    return weights;
  };
  const auto run = [&](const OssWeights& weights) {
    const TempFolder folder;
    const MoeModel model = read_model(oss_checkpoint(folder, weights));
    const LayerSpec spec = spec_of_one(model, Activation::silu);
    return run_one(test::layer_of(model, test::plan_of(model, 1), spec), unit(32));
  };
  const OssWeights interleaved = weights_of({1, 3}, {2, 4});
  const auto rows = interleaved.tensors(OssNaming::published)[0].bytes;
  for (std::size_t row = 0; row < 4; ++row)
    EXPECT_EQ(rows[row * 16], static_cast<char>(kCode[row + 1])) << "the stack counts up";
  const std::vector<float> y = run(interleaved);
  expect_near(y[0], 1.462117157);
  expect_near(y[1], 11.430889515);
  const std::vector<float> other = run(weights_of({1, 2}, {3, 4}));
  expect_near(other[0], 2.193175736);
  expect_near(other[1], 7.046376622);
}

TEST(StackedLayer, D01_ADownBiasCountsOnceWhateverTheRanks) {
  OssWeights weights({.hidden = 64, .inter = 96, .experts = 2});
  weights.bias(0, Kind::down, 1.0F).bias(1, Kind::down, 5.0F);
  const TempFolder folder;
  const MoeModel model = read_model(oss_checkpoint(folder, weights));
  const LayerSpec spec = spec_of_one(model, Activation::oai_swiglu);
  for (const PlanOptions& options :
       {PlanOptions{.tp = 1}, PlanOptions{.tp = 3}, PlanOptions{.tp = 8},
        PlanOptions{.tp = 3, .ep = 2, .kernel_align = 128}}) {
    const MoeLayer layer = test::layer_of(model, make_plan(model, options), spec);
    EXPECT_EQ(run_one(layer, unit(64)), std::vector<float>(64, 1.0F)) << options.tp;
  }
}

// Gate 1 + 7 = 8 of limit 7, up -2 - 7 = -9; the activation's +1, and both biases before it.
TEST(StackedLayer, Pit47BothBiasesTheLimitAndTheOneAreApplied) {  // K-03
  OssWeights weights({.hidden = 32, .inter = 32, .experts = 1});
  weights.code(0, Kind::gate, 0, 0, kCode[1]).bias(0, Kind::gate, 7.0F);
  weights.code(0, Kind::up, 0, 0, 8 | kCode[2]).bias(0, Kind::up, -7.0F);
  weights.code(0, Kind::down, 0, 0, kCode[1]).bias(0, Kind::down, 0.5F);
  const TempFolder folder;
  const MoeModel model = read_model(oss_checkpoint(folder, weights));
  const LayerSpec spec = spec_of_one(model, Activation::oai_swiglu);
  for (const unsigned tp : {1U, 4U}) {
    const MoeLayer layer =
        test::layer_of(model, make_plan(model, {.tp = tp, .kernel_align = 64}), spec);
    const std::vector<float> y = run_one(layer, unit(32));
    expect_near(y[0], -41.999719 + 0.5);
    expect_near(y[1], 0.5);
  }
}

// A layer of random weights, its plan and reference, and a call.
class OssCell {
 public:
  OssCell(const MoeModel& model, const PlanOptions& options, std::uint64_t tokens = 5)
      : plan_(make_plan(model, options)), spec_(spec_of(model.config)) {
    probe_ = test::probe_of(model, tokens, spec_.top_k);
    reference_ = make_reference(model, 0, plan_, spec_, probe_);
  }

  const ShardPlan& plan() const { return plan_; }
  std::vector<float> run(std::vector<PackedExperts> ranks) const {
    return test::run_layer(MoeLayer(plan_, spec_, std::move(ranks)), probe_);
  }
  std::vector<float> run(const MoeModel& model) const { return run(test::pack_all(model, plan_)); }
  LayerCheck check(const std::vector<float>& y) const { return check_output(y, reference_, plan_); }

 private:
  ShardPlan plan_;
  LayerSpec spec_;
  Probe probe_;
  LayerReference reference_;
};

TEST(StackedLayer, BothNamingsGiveTheSameBits) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const OssWeights weights = OssWeights::random({}, seed);
  const TempFolder folder;
  const MoeModel published = read_model(oss_checkpoint(folder, weights));
  const MoeModel original =
      read_model(oss_checkpoint(folder, weights, OssNaming::original, {}, {}, "original"));
  for (const PlanOptions& options : {PlanOptions{.tp = 1}, PlanOptions{.tp = 3, .ep = 2},
                                     PlanOptions{.tp = 4, .kernel_align = 128}}) {
    const OssCell cell(published, options);
    const std::vector<float> y = cell.run(published);
    EXPECT_TRUE(cell.check(y).passed) << test::describe(cell.plan());
    EXPECT_EQ(test::bits_of(y), test::bits_of(cell.run(original)));
  }
}

using Wrong = std::function<void(OssWeights&)>;

// The layer as a reader would load it that makes the mistake.
void expect_found(const Wrong& wrong) {
  const OssWeights right = OssWeights::random({}, 21);
  OssWeights mistaken = right;
  wrong(mistaken);
  const TempFolder folder;
  const MoeModel model = read_model(oss_checkpoint(folder, right));
  const MoeModel other =
      read_model(oss_checkpoint(folder, mistaken, OssNaming::published, {}, {}, "mistaken"));
  for (const PlanOptions& options :
       {PlanOptions{.tp = 1}, PlanOptions{.tp = 3}, PlanOptions{.tp = 4, .kernel_align = 128}}) {
    const OssCell cell(model, options);
    EXPECT_TRUE(cell.check(cell.run(model)).passed) << test::describe(cell.plan());
    const LayerCheck found = cell.check(cell.run(other));
    EXPECT_FALSE(found.passed) << test::describe(cell.plan());
    ASSERT_FALSE(found.findings.empty());
    EXPECT_EQ(found.findings.front().code, "MOXIE-R010");
  }
  // The byte proof of a set that was packed so.
  const ShardPlan plan = test::plan_of(model, 3);
  for (const FileLayout layout : {FileLayout::logical, FileLayout::kernel}) {
    const auto out = folder.path() / ("set-" + std::string(name_of(layout)));
    pack_to_folder(model, plan, {.out = out, .layout = layout});
    const VerifyReport clean = verify_packed(out, model);
    EXPECT_TRUE(clean.findings.empty());
    const VerifyReport report = verify_packed(out, other);
    ASSERT_FALSE(report.findings.empty());
  }
}

TEST(StackedFault, GateAndUpRowsExchangedAreFound) {
  expect_found([](OssWeights& weights) {
    for (std::uint64_t expert = 0; expert < weights.sizes().experts; ++expert)
      std::swap(weights.part(expert, Kind::gate), weights.part(expert, Kind::up));
  });
}

// Codes are taken apart, scales are read as one half after the other.
TEST(StackedFault, ScalesThatStayInterleavedAreFound) {  // B4, pit39
  expect_found([](OssWeights& weights) {
    for (std::uint64_t expert = 0; expert < weights.sizes().experts; ++expert) {
      std::string& gate = weights.part(expert, Kind::gate).scales;
      std::string& up = weights.part(expert, Kind::up).scales;
      std::string stacked;
      for (std::size_t at = 0; at < gate.size(); at += 2)
        stacked += gate.substr(at, 2) + up.substr(at, 2);
      gate = stacked.substr(0, gate.size());
      up = stacked.substr(gate.size());
    }
  });
}

TEST(StackedFault, BiasesThatStayInterleavedAreFound) {  // pit39
  expect_found([](OssWeights& weights) {
    for (std::uint64_t expert = 0; expert < weights.sizes().experts; ++expert) {
      auto& gate = weights.part(expert, Kind::gate).bias;
      auto& up = weights.part(expert, Kind::up).bias;
      std::vector<std::uint16_t> stacked;
      for (std::size_t row = 0; row < gate.size(); ++row)
        stacked.insert(stacked.end(), {gate[row], up[row]});
      std::copy_n(stacked.begin(), gate.size(), gate.begin());
      std::copy_n(stacked.begin() + static_cast<long>(gate.size()), up.size(), up.begin());
    }
  });
}

TEST(StackedFault, ADroppedBiasIsFoundInEveryProjection) {
  for (const Kind kind : {Kind::gate, Kind::up, Kind::down}) {
    expect_found([kind](OssWeights& weights) { weights.bias(1, kind, 0.0F); });
  }
}

TEST(StackedFault, ADownBiasOnEveryRankIsFound) {  // D-01
  const TempFolder folder;
  const MoeModel model = read_model(oss_checkpoint(folder, OssWeights::random({}, 22)));
  const OssCell cell(model, {.tp = 3});
  std::vector<PackedExperts> ranks = test::pack_all(model, cell.plan());
  const PackedSegment& bias = *cell.plan().layout.find(Segment::down_bias);
  for (const unsigned rank : {1U, 2U}) {
    for (std::uint64_t local = 0; local < ranks[rank].experts.count(); ++local) {
      const std::uint64_t at = local * cell.plan().layout.stride + bias.offset;
      std::copy_n(ranks[0].blobs.begin() + static_cast<long>(at), bias.bytes(),
                  ranks[rank].blobs.begin() + static_cast<long>(at));
    }
  }
  const LayerCheck found = cell.check(cell.run(std::move(ranks)));
  EXPECT_FALSE(found.passed);
}

}  // namespace
}  // namespace moxie
