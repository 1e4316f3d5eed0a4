// SPDX-License-Identifier: Apache-2.0
// Ranks on one GPU: their sum against one rank and against the checkpoint's reference, tails that
// may hold anything or nothing, experts that are replaced under a graph.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "formats/bf16.hpp"
#include "formats/block_format.hpp"
#include "kernels/cuda/gpu_layer.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using namespace test;

constexpr std::uint64_t kHidden = 192;  // of which every kernel takes whole steps

class GpuRanks : public OnGpu {
 protected:
  ShardPlan plan_for(const MoeModel& model, unsigned tp, ActFormat act = ActFormat::bf16) const {
    return make_plan(model, {.tp = tp, .target = target_, .act_format = act});
  }
};

void expect_passed(const LayerCheck& check, const std::string& what) {
  EXPECT_TRUE(check.passed) << what << ", error / bound " << check.max_err_over_bound
                            << " at token " << check.worst_token << ", column "
                            << check.worst_column;
}

TEST_F(GpuRanks, ThreeOfThemEqualOneAndTheReference) {
  for (const BlockFormat format : test::kFormats) {
    for (const ActFormat act : {ActFormat::bf16, ActFormat::fp8, ActFormat::mxfp8}) {
      const RigModel model({.format = format, .hidden = kHidden});
      const LayerSpec spec = spec_of(model->config);
      const ShardPlan plans[] = {plan_for(*model, 1, act), plan_for(*model, 3, act)};
      const MoeLayer layers[] = {layer_of(*model, plans[0], spec),
                                 layer_of(*model, plans[1], spec)};
      for (const std::uint64_t tokens : {1U, 8U, 16U, 64U}) {
        const Probe other = probe_of(*model, tokens, spec.top_k, {}, 77);
        const Probe probe = probe_of(*model, tokens, spec.top_k, {}, std::random_device{}());
        std::vector<float> results[2];
        LayerCheck checks[2];
        for (int i = 0; i < 2; ++i) {
          const std::string what = std::string(name_of(format)) + ", " + std::string(name_of(act)) +
                                   ", tp " + std::to_string(plans[i].tp) + ", " +
                                   std::to_string(tokens) + " tokens, " + plans[i].kernel;
          results[i] = called(layers[i], probe);
          // From the checkpoint, which no packing and no arranging has touched.
          checks[i] =
              check_output(results[i], make_reference(*model, 0, plans[i], spec, probe), plans[i]);
          expect_passed(checks[i], what);
          CapturedLayer graph(layers[i], other);
          EXPECT_EQ(test::bits_of(graph.replayed(probe)), test::bits_of(results[i])) << what;
        }
        if (act != ActFormat::bf16) continue;  // groups of 128 begin anew with every rank
        for (std::size_t at = 0; at < results[0].size(); ++at) {
          const double error = std::abs(double{results[0][at]} - double{results[1][at]});
          ASSERT_TRUE(error <= checks[0].bound[at] + checks[1].bound[at]) << "element " << at;
        }
      }
    }
  }
}

// Bytes of an expert's tail: rows of gate and up, columns of down, of codes and of scales.
void fill_tail(const ShardPlan& plan, PackedExperts& packed, bool codes, std::byte value) {
  const std::uint64_t real = plan.ranks[packed.rank].slice.rows.count.value;
  const std::uint64_t of_row = codes ? 2 : scale_group(plan.format);
  for (std::uint64_t local = 0; local < packed.experts.count(); ++local) {
    std::byte* blob = packed.blobs.data() + local * plan.layout.stride;
    for (const Segment segment :
         {codes ? Segment::gate : Segment::gate_scale, codes ? Segment::up : Segment::up_scale}) {
      const PackedSegment& rows = *plan.layout.find(segment);
      std::fill(blob + rows.offset + real * rows.row_bytes, blob + rows.offset + rows.bytes(),
                value);
    }
    const PackedSegment& down = *plan.layout.find(codes ? Segment::down : Segment::down_scale);
    for (std::uint64_t row = 0; row < down.rows; ++row) {
      std::byte* at = blob + down.offset + row * down.row_bytes;
      std::fill(at + real / of_row, at + down.row_bytes, value);
    }
  }
}

TEST_F(GpuRanks, ScalesOfATailAreInvisibleAndItsCodesAreNot) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format, .hidden = kHidden});
    const LayerSpec spec = spec_of(model->config);
    const ShardPlan plan = plan_for(*model, 3);
    ASSERT_LT(plan.ranks[2].slice.rows.count.value, plan.inter().kernel.value) << "no tail";
    const Probe probe = probe_of(*model, 20, spec.top_k);
    const auto bits_with = [&](auto&& change) {
      std::vector<PackedExperts> ranks = pack_all(*model, plan);
      for (PackedExperts& rank : ranks) change(rank);
      return test::bits_of(called(MoeLayer(plan, spec, std::move(ranks)), probe));
    };
    const auto clean = bits_with([](PackedExperts&) {});
    const bool mx = format == BlockFormat::mxfp4;
    const std::byte one{mx ? std::uint8_t{0x7F} : std::uint8_t{0x38}};
    const std::byte largest{mx ? std::uint8_t{0xFE} : std::uint8_t{0x7E}};
    for (const std::byte scale : {one, largest}) {
      EXPECT_EQ(bits_with([&](PackedExperts& rank) { fill_tail(plan, rank, false, scale); }), clean)
          << name_of(format) << ", scale byte " << std::to_integer<int>(scale);
    }
    EXPECT_NE(bits_with([&](PackedExperts& rank) {
                fill_tail(plan, rank, false, one);
                fill_tail(plan, rank, true, std::byte{0x32});
              }),
              clean);
  }
}

void expect_same_bytes(std::span<const std::byte> got, std::span<const std::byte> expected,
                       const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  const auto at = std::ranges::mismatch(got, expected).in1 - got.begin();
  EXPECT_EQ(static_cast<std::size_t>(at), got.size()) << "the first byte that differs, " << what;
}

TEST_F(GpuRanks, GiveBackTheirPackedBytesAndTakeOthers) {
  for (const BlockFormat format : test::kFormats) {
    for (const std::uint64_t hidden : {160U, 192U}) {  // 160: only the portable kernel takes it
      for (const ActFormat act : {ActFormat::bf16, ActFormat::nvfp4}) {
        const RigModel model({.format = format, .hidden = hidden});
        const LayerSpec spec = spec_of(model->config);
        PlanOptions options{.tp = 2, .target = target_, .act_format = act};
        if (act == ActFormat::nvfp4) options.act_scale = ActScale::row;
        const ShardPlan plan = make_plan(*model, options);
        const std::vector<PackedExperts> packed = pack_all(*model, plan);
        MoeLayer layer(plan, spec, packed);
        const std::string what = std::string(name_of(format)) + ", " + plan.kernel;
        for (const PackedExperts& rank : packed) {
          for (const std::uint64_t e : rank.experts.ids())
            expect_same_bytes(layer.blob(rank.rank, e), rank.blob(e), what);
        }
        layer.reload(1, 2, packed[1].blob(5));
        expect_same_bytes(layer.blob(1, 2), packed[1].blob(5), what);
        expect_same_bytes(layer.blob(1, 3), packed[1].blob(3), what);
        expect_same_bytes(layer.blob(0, 2), packed[0].blob(2), what);
      }
    }
  }
}

TEST_F(GpuRanks, ReloadingUnderAGraphAndBackRestoresTheFirstBits) {  // K-13
  for (const BlockFormat format : test::kFormats) {
    const RigModel a({.format = format, .hidden = kHidden, .seed = 1});
    const RigModel b({.format = format, .hidden = kHidden, .seed = 2});
    const ShardPlan plan = plan_for(*a, 2);
    const LayerSpec spec = spec_of(a->config);
    MoeLayer layer = layer_of(*a, plan, spec);
    const Probe probe = probe_of(*a, 30, spec.top_k, {.kind = RoutingKind::one, .expert = 5});
    CapturedLayer graph(layer, probe);
    const auto bits = [&] { return test::bits_of(graph.replayed()); };
    const auto first = bits();
    EXPECT_EQ(first, test::bits_of(called(layer, probe)));
    const auto reload = [&](const MoeModel& model) {
      for (const unsigned rank : {0U, 1U})
        layer.reload(rank, 5, packed_blob(model, plan, rank, 5, std::byte{0}));
    };
    for (int round = 0; round < 3; ++round) {
      reload(*b);
      const auto other = bits();
      EXPECT_NE(other, first);
      EXPECT_EQ(other, test::bits_of(called(layer_of(*b, plan, spec), probe)));
      reload(*a);
      EXPECT_EQ(bits(), first);
    }
  }
}

TEST_F(GpuRanks, Bf16RowsWithGapsAreTheSumsRoundedOnce) {
  const RigModel model({.hidden = kHidden});
  const LayerSpec spec = spec_of(model->config);
  constexpr std::uint64_t kStride = kHidden + 9;
  constexpr std::uint16_t kMark = 0x7FFF;
  for (const unsigned tp : {1U, 3U}) {
    const MoeLayer layer = layer_of(*model, plan_for(*model, tp), spec);
    const Probe probe = probe_of(*model, 9, spec.top_k);
    const std::vector<float> exact = called(layer, probe);
    std::vector<std::uint16_t> y(9 * kStride, kMark);
    std::uint32_t flags = 0;
    LayerIo io = io_of(probe, y.data(), DType::bf16, &flags);
    io.y.row_stride = kStride;
    ASSERT_EQ(HostCall(layer, 9).forward(io), CallStatus::ok);
    for (std::uint64_t at = 0; at < y.size(); ++at) {
      const std::uint64_t column = at % kStride;
      ASSERT_EQ(y[at],
                column < kHidden ? encode_bf16(exact[at / kStride * kHidden + column]) : kMark)
          << "row " << at / kStride << ", column " << column << ", tp " << tp;
    }
  }
}

using SmallGpuRanks = GpuRanks;

TEST_F(SmallGpuRanks, AreWithinTheBoundOfTheirReference) {  // for a tool that looks at every access
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format, .hidden = 64, .inter = 96, .experts = 3});
    const LayerSpec spec = spec_of(model->config);
    const MoeLayer layer = layer_of(*model, plan_for(*model, 2), spec);
    const Probe probe = probe_of(*model, 5, spec.top_k);
    expect_passed(check_layer(layer, make_reference(layer, probe), probe), layer.plan().kernel);
  }
}

// 2^-127 is below what cuda.sm90.experts.fp16 holds: refused where it counts, and only there.
TEST_F(GpuRanks, RefuseAScaleOfZeroOverCodesThatAreNot) {
  const RigModel model({.hidden = kHidden});
  const LayerSpec spec = spec_of(model->config);
  const ShardPlan plan = plan_for(*model, 1);
  if (plan.kernel != "cuda.sm90.experts.fp16") GTEST_SKIP() << plan.kernel << " holds all scales";
  const std::vector<PackedExperts> good = pack_all(*model, plan);
  const std::uint64_t scale_at = plan.layout.find(Segment::up_scale)->offset + 7;
  const std::uint64_t codes_at = plan.layout.find(Segment::up)->offset + 7 * 16;
  const auto with = [&](std::byte codes) {
    const auto from = good[0].blob(2);
    std::vector<std::byte> blob(from.begin(), from.end());
    blob[scale_at] = std::byte{0};
    std::fill_n(blob.begin() + static_cast<std::ptrdiff_t>(codes_at), 16, codes);
    return blob;
  };
  const auto put = [&](std::vector<PackedExperts> ranks, const std::vector<std::byte>& blob) {
    std::ranges::copy(blob,
                      ranks[0].blobs.begin() + static_cast<std::ptrdiff_t>(2 * plan.layout.stride));
    return ranks;
  };
  const Probe probe = probe_of(*model, 8, spec.top_k, {.kind = RoutingKind::one, .expert = 2});
  expect_refusal([&] { MoeLayer(plan, spec, put(good, with(std::byte{0x02}))); },
                 ErrorCode::unsupported, "MOXIE-R022");
  MoeLayer layer(plan, spec, good);
  const auto before = test::bits_of(called(layer, probe));
  expect_refusal([&] { layer.reload(0, 2, with(std::byte{0x20})); }, ErrorCode::unsupported,
                 "MOXIE-R022");
  EXPECT_TRUE(std::ranges::equal(layer.blob(0, 2), good[0].blob(2))) << "the expert is as it was";
  EXPECT_EQ(test::bits_of(called(layer, probe)), before);
  const std::vector<std::byte> zeros = with(std::byte{0x80});  // +0 and -0
  layer.reload(0, 2, zeros);
  EXPECT_TRUE(std::ranges::equal(layer.blob(0, 2), zeros));
  expect_passed(check_layer(layer, make_reference(layer, probe), probe), "reloaded");
  const MoeLayer bound(plan, spec, put(good, zeros));
  EXPECT_EQ(test::bits_of(called(bound, probe)), test::bits_of(called(layer, probe)));
}

}  // namespace
}  // namespace moxie
