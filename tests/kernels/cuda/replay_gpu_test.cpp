// SPDX-License-Identifier: Apache-2.0
// Replays of captured calls against the same calls made eagerly, and what is refused.
#include <gtest/gtest.h>

#include "kernels/cuda/gpu_layer.hpp"

namespace moxie {
namespace {

using namespace test;

constexpr std::uint64_t kTokens = 9;

class Replay : public OnGpu {
 protected:
  Replay() : model_({.hidden = 192}), spec_(spec_of(model_->config)) { spec_.top_k = 3; }

  MoeLayer layer() const {
    return layer_of(*model_, make_plan(*model_, {.tp = 3, .target = target_}), spec_);
  }
  std::vector<Probe> probes() const {
    std::vector<Probe> probes;
    for (std::uint64_t set = 0; set < 4; ++set)
      probes.push_back(probe_of(*model_, kTokens, spec_.top_k, {}, 20 + set));
    probes[1].topk_ids[4] = 100;  // no expert
    std::ranges::fill(probes[2].topk_ids, -1);
    return probes;
  }

  RigModel model_;
  LayerSpec spec_;
};

TEST_F(Replay, HasTheBitsAndFlagsOfCallsThatAreMadeAlone) {
  const MoeLayer bound = layer();
  const std::vector<Probe> sets = probes();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::uint64_t bytes = kTokens * model_->config.hidden * bits_of(dtype) / 8;
    std::vector<std::byte> unused(bytes);
    std::uint32_t no_flags = 0;
    std::vector<LayerIo> ios;
    for (const Probe& probe : sets) ios.push_back(io_of(probe, unused.data(), dtype, &no_flags));
    DeviceReplay replay(bound, ios);
    ASSERT_EQ(replay.sets(), sets.size());
    for (int round = 0; round < 3; ++round) {
      replay.clear_results();
      EXPECT_GT(round == 1 ? replay.call_us() : replay.replay_us(), 0);
      for (std::size_t set = 0; set < sets.size(); ++set) {
        std::vector<std::byte> expected(bytes);
        std::vector<std::byte> got(bytes);
        std::uint32_t flags = 0;
        HostCall alone(bound, kTokens);
        ASSERT_EQ(alone.forward(io_of(sets[set], expected.data(), dtype, &flags)), CallStatus::ok);
        EXPECT_EQ(replay.copy_result(set, got), flags) << set;
        EXPECT_EQ(got, expected) << set;
        EXPECT_EQ(flags, set == 1 ? kFlagBadExpertId : 0U);
      }
    }
    EXPECT_EQ(no_flags, 0U);
  }
}

TEST_F(Replay, RefusesSetsThatAreNoCalls) {
  const MoeLayer bound = layer();
  const Probe probe = probes().front();
  std::vector<float> y(kTokens * model_->config.hidden);
  std::uint32_t flags = 0;
  Trace trace;
  const LayerIo good = io_of(probe, y.data(), DType::f32, &flags);
  std::vector<LayerIo> wrong(5, good);
  wrong[0].x.rows = wrong[0].y.rows = 0;
  wrong[1].flags = nullptr;
  wrong[2].trace = &trace;
  wrong[3].y.row_stride += 1;
  wrong[4].x.cols = wrong[4].x.row_stride = wrong[4].x.cols - 1;
  for (const LayerIo& io : wrong) {
    EXPECT_THROW(DeviceReplay(bound, std::vector{good, io}), Error);
  }
  EXPECT_THROW(DeviceReplay(bound, std::vector<LayerIo>{}), Error);
}

}  // namespace
}  // namespace moxie
