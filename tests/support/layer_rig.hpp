// SPDX-License-Identifier: Apache-2.0
// Small models whose layers are run and checked.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "moxie/layer.hpp"
#include "moxie/model.hpp"
#include "moxie/pack.hpp"
#include "moxie/plan.hpp"
#include "moxie/probe.hpp"
#include "moxie/synth.hpp"
#include "moxie/verify.hpp"
#include "support/temp_folder.hpp"

namespace moxie::test {

struct RigOptions {
  BlockFormat format = BlockFormat::mxfp4;
  std::uint64_t hidden = 160;
  std::uint64_t inter = 352;  // eleven groups of 32: no tp but 1 and 11 divides them
  std::uint64_t experts = 7;
  Pattern pattern = Pattern::normal;
  std::uint64_t seed = 3;
};

// A synthetic checkpoint of one layer, read.
class RigModel {
 public:
  explicit RigModel(const RigOptions& options) : model_(make(folder_, options)) {}

  const MoeModel& operator*() const { return model_; }
  const MoeModel* operator->() const { return &model_; }

 private:
  static MoeModel make(const TempFolder& folder, const RigOptions& options) {
    SynthOptions synth;
    synth.config = synth_config("tiny");
    synth.experts = options.experts;
    synth.hidden = options.hidden;
    synth.inter = options.inter;
    synth.format = options.format;
    synth.pattern = options.pattern;
    synth.seed = options.seed;
    synthesise(folder.path() / "model", synth);
    return read_model(open_checkpoint(folder.path() / "model"));
  }

  TempFolder folder_;
  MoeModel model_;
};

inline std::vector<PackedExperts> pack_all(const MoeModel& model, const ShardPlan& plan) {
  std::vector<PackedExperts> ranks;
  for (const RankPlan& rank : plan.ranks) ranks.push_back(pack(model, plan, rank.rank, 0));
  return ranks;
}

inline MoeLayer layer_of(const MoeModel& model, const ShardPlan& plan, const LayerSpec& spec) {
  return MoeLayer(plan, spec, pack_all(model, plan));
}

inline Probe probe_of(const MoeModel& model, std::uint64_t tokens, std::uint64_t top_k,
                      const Routing& routing = {}, std::uint64_t seed = 11) {
  return make_probe({.tokens = tokens,
                     .hidden = model.config.hidden,
                     .experts = model.config.experts,
                     .top_k = top_k,
                     .vocab = 0,
                     .routed_scaling = 1.5,
                     .routing = routing,
                     .seed = seed});
}

// A probe as a call into dense rows.
inline LayerIo io_of(const Probe& probe, void* y, DType dtype, std::uint32_t* flags) {
  return {.x = probe.x_ref(),
          .topk_ids = probe.topk_ids.data(),
          .topk_weights = probe.topk_weights.data(),
          .y = {.data = y,
                .dtype = dtype,
                .rows = probe.tokens,
                .cols = probe.hidden,
                .row_stride = probe.hidden},
          .flags = flags};
}

// Runs a layer into a fresh f32 result; the workspace is poisoned and has a guard behind it.
inline std::vector<float> run_layer(const MoeLayer& layer, const Probe& probe,
                                    std::uint32_t* flags_out = nullptr) {
  constexpr std::byte kPoison{0xFF};
  const std::uint64_t need = layer.workspace_size(probe.tokens);
  std::vector<std::byte> workspace(need + 64, kPoison);
  std::vector<float> y(probe.tokens * probe.hidden, std::numeric_limits<float>::quiet_NaN());
  std::uint32_t flags = 0;
  const LayerIo io = io_of(probe, y.data(), DType::f32, &flags);
  EXPECT_EQ(layer.forward(io, std::span(workspace).first(need)), CallStatus::ok);
  for (std::uint64_t i = need; i < workspace.size(); ++i)
    EXPECT_EQ(workspace[i], kPoison) << "written behind the workspace";
  if (flags_out != nullptr) {
    *flags_out = flags;
  } else {
    EXPECT_EQ(flags, 0U);
  }
  return y;
}

// The bits, so that -0 and NaN count as what they are.
inline std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  if (!bits.empty()) std::memcpy(bits.data(), values.data(), bits.size() * sizeof(float));
  return bits;
}

}  // namespace moxie::test
