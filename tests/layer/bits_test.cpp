// SPDX-License-Identifier: Apache-2.0
// Where results must be the same bit for bit: batches, neighbours, threads, replays, reloads,
// layouts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "formats/bf16.hpp"
#include "formats/block_format.hpp"
#include "support/forced_kernels.hpp"
#include "support/layer_rig.hpp"
#include "support/packed_model.hpp"

namespace moxie {
namespace {

using test::RigModel;

// The probe's tokens [first, first + count).
Probe part_of(const Probe& probe, std::uint64_t first, std::uint64_t count) {
  Probe part = probe;
  part.tokens = count;
  const auto cut = [&](auto& values, std::uint64_t width) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first * width);
    values = {begin, begin + static_cast<std::ptrdiff_t>(count * width)};
  };
  cut(part.x, probe.hidden * bits_of(probe.x_dtype) / 8);
  cut(part.topk_ids, probe.top_k);
  cut(part.topk_weights, probe.top_k);
  return part;
}

std::vector<std::uint32_t> bits(const MoeLayer& layer, const Probe& probe) {
  return test::bits_of(test::run_layer(layer, probe));
}

TEST(LayerBits, ATokenIsTheSameAloneAndInEveryBatch) {  // K-11, B9, C14, pit64
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    for (const ActFormat act : test::kPlainActFormats) {
      const ShardPlan plan = make_plan(*model, {.tp = 3, .ep = 2, .act_format = act});
      const LayerSpec spec = spec_of(model->config);
      const MoeLayer layer = test::layer_of(*model, plan, spec);
      const Probe probe = test::probe_of(*model, 129, spec.top_k);
      const auto whole = bits(layer, probe);
      for (const std::uint64_t size : {1U, 2U, 8U, 31U, 33U, 128U}) {
        for (std::uint64_t first = 0; first < probe.tokens; first += size) {
          const std::uint64_t count = std::min(size, probe.tokens - first);
          const auto part = bits(layer, part_of(probe, first, count));
          ASSERT_TRUE(std::equal(part.begin(), part.end(),
                                 whole.begin() + static_cast<std::ptrdiff_t>(first * probe.hidden)))
              << size << " tokens from " << first;
        }
      }
    }
  }
}

TEST(LayerBits, RowZeroIsTheSameUpToThousandsOfTokens) {  // K-11, B9
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format, .hidden = 2048, .inter = 32, .experts = 4});
    const LayerSpec spec{.top_k = 1, .activation = Activation::silu, .activation_limit = {}};
    const MoeLayer layer = test::layer_of(*model, make_plan(*model, {}), spec);
    const Probe probe = test::probe_of(*model, 8064, 1);
    const auto alone = bits(layer, part_of(probe, 0, 1));
    for (const std::uint64_t tokens : {8U, 64U, 384U, 1024U, 8064U}) {
      const auto many = bits(layer, part_of(probe, 0, tokens));
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), many.begin())) << tokens;
    }
  }
}

TEST(LayerBits, NeighboursAndThreadsChangeNothing) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    const ShardPlan plan = make_plan(*model, {.tp = 2});
    LayerSpec spec = spec_of(model->config);
    const Probe probe = test::probe_of(*model, 65, spec.top_k);
    Probe crowded = probe;  // token 7 stays, all others change and go to one expert
    for (std::size_t slot = 0; slot < probe.topk_ids.size(); ++slot) {
      if (slot / spec.top_k != 7) crowded.topk_ids[slot] = probe.topk_ids[7 * spec.top_k];
    }
    const std::uint64_t row_bytes = probe.hidden * 2;
    for (std::size_t i = 0; i < crowded.x.size(); ++i) {
      if (i / row_bytes != 7) crowded.x[i] = probe.x[(i + 5 * row_bytes) % probe.x.size()];
    }
    std::vector<std::uint32_t> expected;
    for (const unsigned threads : {1U, 2U, 3U, 8U}) {
      spec.threads = threads;
      const MoeLayer layer = test::layer_of(*model, plan, spec);
      const auto whole = bits(layer, probe);
      if (expected.empty()) expected = whole;
      EXPECT_EQ(whole, expected) << threads << " threads";
      const auto other = bits(layer, crowded);
      const auto row = static_cast<std::ptrdiff_t>(7 * probe.hidden);
      EXPECT_TRUE(
          std::equal(other.begin() + row, other.begin() + row + 160, expected.begin() + row));
    }
  }
}

TEST(LayerBits, AHundredRepeatsAreEqual) {  // K-12, pit58
  const RigModel model({.format = BlockFormat::mxfp4, .experts = 9});
  LayerSpec spec = spec_of(model->config);
  spec.top_k = 8;
  const MoeLayer layer = test::layer_of(*model, make_plan(*model, {.tp = 3}), spec);
  const Probe probe = test::probe_of(*model, 16, 8);
  const auto first = bits(layer, probe);
  for (int repeat = 0; repeat < 100; ++repeat) ASSERT_EQ(bits(layer, probe), first);
}

TEST(LayerBits, CallsFromSeveralThreadsDoNotDisturbEachOther) {
  const RigModel model({.format = BlockFormat::nvfp4});
  const LayerSpec spec = spec_of(model->config);
  const MoeLayer layer = test::layer_of(*model, make_plan(*model, {.tp = 2}), spec);
  const Probe probes[] = {test::probe_of(*model, 20, spec.top_k, {}, 1),
                          test::probe_of(*model, 33, spec.top_k, {}, 2)};
  const std::vector<std::uint32_t> expected[] = {bits(layer, probes[0]), bits(layer, probes[1])};
  std::vector<std::thread> callers;
  for (std::size_t i = 0; i < 2; ++i) {
    callers.emplace_back([&, i] {
      for (int repeat = 0; repeat < 20; ++repeat) EXPECT_EQ(bits(layer, probes[i]), expected[i]);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(LayerBits, ASmallCallAfterALargeOneIsAFreshOne) {  // K-14, C7, pit60, pit64
  const RigModel model({.format = BlockFormat::mxfp4, .hidden = 64, .inter = 64, .experts = 64});
  LayerSpec spec = spec_of(model->config);
  spec.top_k = 1;
  const MoeLayer layer = test::layer_of(*model, make_plan(*model, {}), spec);
  const Probe small = test::probe_of(*model, 64, 1);
  const Probe large = test::probe_of(*model, 8000, 1, {.kind = RoutingKind::zipf});
  std::vector<std::byte> workspace(layer.workspace_size(8000), std::byte{0xFF});
  const auto run = [&](const Probe& probe, std::span<std::byte> space) {
    std::vector<float> y(probe.tokens * 64, -1.0F);
    std::uint32_t flags = 0;
    const LayerIo io{.x = probe.x_ref(),
                     .topk_ids = probe.topk_ids.data(),
                     .topk_weights = probe.topk_weights.data(),
                     .y = {.data = y.data(),
                           .dtype = DType::f32,
                           .rows = probe.tokens,
                           .cols = 64,
                           .row_stride = 64},
                     .flags = &flags};
    const CallStatus status = layer.forward(io, space);
    if (status != CallStatus::ok) {
      EXPECT_EQ(status, CallStatus::workspace_too_small);
      EXPECT_EQ(y, std::vector<float>(y.size(), -1.0F)) << "a refused call wrote";
      y.clear();
    }
    return test::bits_of(y);
  };
  const auto fresh_small = bits(layer, small);
  EXPECT_EQ(run(small, workspace), fresh_small);
  EXPECT_EQ(run(large, workspace), bits(layer, large));
  EXPECT_EQ(run(small, workspace), fresh_small);
  // The larger call does not run in the smaller call's space, not even one byte short.
  EXPECT_TRUE(run(large, std::span(workspace).first(layer.workspace_size(64))).empty());
  EXPECT_TRUE(run(large, std::span(workspace).first(workspace.size() - 1)).empty());
}

TEST(LayerBits, AllTokensToOneExpertEqualManySmallCalls) {  // S-03
  const RigModel model({.format = BlockFormat::nvfp4, .hidden = 64, .inter = 64, .experts = 8});
  LayerSpec spec = spec_of(model->config);
  spec.top_k = 1;
  const MoeLayer layer = test::layer_of(*model, make_plan(*model, {}), spec);
  const Probe probe = test::probe_of(*model, 1024, 1, {.kind = RoutingKind::one, .expert = 7});
  const auto whole = bits(layer, probe);
  for (std::uint64_t first = 0; first < 1024; first += 64) {
    const auto part = bits(layer, part_of(probe, first, 64));
    EXPECT_TRUE(std::equal(part.begin(), part.end(),
                           whole.begin() + static_cast<std::ptrdiff_t>(first * 64)));
  }
}

TEST(LayerBits, ReloadingAnExpertAndBackRestoresTheResultAndMovesNothing) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel a({.format = format, .seed = 1});
    const RigModel b({.format = format, .seed = 2});
    const ShardPlan plan = make_plan(*a, {.tp = 2, .ep = 2});
    const LayerSpec spec = spec_of(a->config);
    MoeLayer layer = test::layer_of(*a, plan, spec);
    const Probe probe = test::probe_of(*a, 30, spec.top_k, {.kind = RoutingKind::one, .expert = 5});
    const auto first = bits(layer, probe);
    const auto reload = [&](const MoeModel& model) {
      for (const unsigned rank : {2U, 3U}) {
        const std::byte* address = layer.blob(rank, 5).data();
        layer.reload(rank, 5, test::packed_blob(model, plan, rank, 5));
        EXPECT_EQ(layer.blob(rank, 5).data(), address);
      }
    };
    reload(*b);
    const auto other = bits(layer, probe);
    EXPECT_NE(other, first);
    EXPECT_EQ(other, bits(test::layer_of(*b, plan, spec), probe));
    reload(*a);
    EXPECT_EQ(bits(layer, probe), first);
  }
}

TEST(LayerBits, CallsOfAnySizeLeaveTheBlobsAsTheyWerePacked) {  // pit38, B8
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    const ShardPlan plan = make_plan(*model, {.tp = 3, .ep = 2, .act_format = ActFormat::fp8});
    const LayerSpec spec = spec_of(model->config);
    const MoeLayer layer = test::layer_of(*model, plan, spec);
    const Probe probe = test::probe_of(*model, 129, spec.top_k);
    const std::byte* address = layer.blob(0, 0).data();
    for (const std::uint64_t tokens : {1U, 129U, 8U}) {
      (void)bits(layer, part_of(probe, 0, tokens));
      EXPECT_EQ(layer.blob(0, 0).data(), address);
      for (const RankPlan& rank : plan.ranks) {
        for (const std::uint64_t e : rank.experts.ids()) {
          const auto blob = layer.blob(rank.rank, e);
          const test::Bytes packed = test::packed_blob(*model, plan, rank.rank, e);
          EXPECT_TRUE(std::ranges::equal(blob, packed))
              << tokens << " tokens, rank " << rank.rank << ", expert " << e;
        }
      }
    }
  }
}

TEST(LayerBits, F32InputThatHoldsBf16ValuesGivesTheSame) {
  const RigModel model({.format = BlockFormat::mxfp4});
  const LayerSpec spec = spec_of(model->config);
  const MoeLayer layer = test::layer_of(*model, make_plan(*model, {}), spec);
  Probe probe = test::probe_of(*model, 9, spec.top_k);
  const auto narrow = bits(layer, probe);
  std::vector<std::byte> wide;
  for (std::size_t i = 0; i < probe.x.size(); i += 2) {
    wide.insert(wide.end(), {std::byte{0}, std::byte{0}, probe.x[i], probe.x[i + 1]});
  }
  probe.x = wide;
  probe.x_dtype = DType::f32;
  EXPECT_EQ(bits(layer, probe), narrow);
}

TEST(LayerBits, Bf16OutputAndStridesRoundTheSumOnce) {
  const RigModel model({.format = BlockFormat::mxfp4});
  const LayerSpec spec = spec_of(model->config);
  for (const unsigned tp : {1U, 3U}) {
    const MoeLayer layer = test::layer_of(*model, make_plan(*model, {.tp = tp}), spec);
    const Probe probe = test::probe_of(*model, 9, spec.top_k);
    const std::vector<float> exact = test::run_layer(layer, probe);
    std::vector<std::uint16_t> y(9 * 200, 0x7FFF);
    std::vector<std::byte> workspace(layer.workspace_size(9));
    std::uint32_t flags = 0;
    const LayerIo io{
        .x = probe.x_ref(),
        .topk_ids = probe.topk_ids.data(),
        .topk_weights = probe.topk_weights.data(),
        .y = {.data = y.data(), .dtype = DType::bf16, .rows = 9, .cols = 160, .row_stride = 200},
        .flags = &flags};
    ASSERT_EQ(layer.forward(io, workspace), CallStatus::ok);
    for (std::size_t t = 0; t < 9; ++t) {
      for (std::size_t i = 0; i < 200; ++i) {
        const std::uint16_t expected = i < 160 ? encode_bf16(exact[t * 160 + i]) : 0x7FFF;
        ASSERT_EQ(y[t * 200 + i], expected) << t << " " << i;
      }
    }
  }
}

TEST(LayerBits, LayersDoNotShareAnything) {  // B8, pit66
  // Two layers alike but for the down projection's global: one is twice the other.
  const RigModel model({.format = BlockFormat::nvfp4});
  const ShardPlan plan = make_plan(*model, {});
  const LayerSpec spec = spec_of(model->config);
  std::vector<PackedExperts> doubled = test::pack_all(*model, plan);
  for (std::uint64_t local = 0; local < doubled[0].experts.count(); ++local) {
    std::byte* at = doubled[0].blobs.data() + local * plan.layout.stride +
                    plan.layout.find(Segment::down_dequant_mul)->offset;
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    value *= 2;
    std::memcpy(at, &value, sizeof value);
  }
  const MoeLayer one = test::layer_of(*model, plan, spec);
  const MoeLayer two(plan, spec, std::move(doubled));
  const Probe probe = test::probe_of(*model, 12, spec.top_k);
  const std::vector<float> first = test::run_layer(one, probe);
  const std::vector<float> second = test::run_layer(two, probe);
  for (std::size_t i = 0; i < first.size(); ++i) ASSERT_EQ(second[i], 2 * first[i]);
  EXPECT_EQ(test::run_layer(one, probe), first);
}

TEST(LayerBits, TailScalesUnderZeroCodesAreInvisible) {  // pit72, L-05
  const test::PortableKernel forced;
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    const ShardPlan plan = make_plan(*model, {.tp = 3, .kernel_align = 160});
    const LayerSpec spec = spec_of(model->config);
    const Probe probe = test::probe_of(*model, 6, spec.top_k);
    const auto clean = bits(test::layer_of(*model, plan, spec), probe);
    std::vector<PackedExperts> ranks = test::pack_all(*model, plan);
    for (PackedExperts& rank : ranks) {
      const std::uint64_t real = plan.ranks[rank.rank].slice.rows.count.value;
      for (std::uint64_t local = 0; local < rank.experts.count(); ++local) {
        std::byte* blob = rank.blobs.data() + local * plan.layout.stride;
        const PackedSegment& gate = *plan.layout.find(Segment::gate_scale);
        const PackedSegment& down = *plan.layout.find(Segment::down_scale);
        const std::byte large{format == BlockFormat::mxfp4 ? std::uint8_t{0xFE}
                                                           : std::uint8_t{0x7E}};
        std::fill(blob + gate.offset + real * gate.row_bytes, blob + gate.offset + gate.bytes(),
                  large);
        for (std::uint64_t row = 0; row < down.rows; ++row) {
          std::byte* scales = blob + down.offset + row * down.row_bytes;
          std::fill(scales + real / scale_group(format), scales + down.row_bytes, large);
        }
      }
    }
    EXPECT_EQ(bits(MoeLayer(plan, spec, std::move(ranks)), probe), clean);
  }
}

}  // namespace
}  // namespace moxie
