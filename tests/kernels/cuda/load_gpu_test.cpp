// SPDX-License-Identifier: Apache-2.0
// Layers on a GPU whose experts come one at a time from sources.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "moxie/device.hpp"
#include "pack/expert_parts.hpp"
#include "support/device_memory.hpp"
#include "support/layer_rig.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using namespace test;

class GpuLoad : public OnGpu {
 protected:
  // Widths that the arranging kernel of sm90 takes, and more experts than lanes and slots.
  static RigOptions rig(BlockFormat format) {
    return {.format = format, .hidden = 256, .inter = 192, .experts = 130};
  }
  std::vector<BlobSource> sources_of(const MoeModel& model, const ShardPlan& plan) const {
    std::vector<BlobSource> sources;
    for (const RankPlan& rank : plan.ranks)
      sources.push_back(blob_source(model, plan, rank.rank, 0));
    return sources;
  }
  void expect_blobs(const MoeLayer& layer, const std::vector<PackedExperts>& packed) const {
    for (const PackedExperts& rank : packed) {
      for (const std::uint64_t e : rank.experts.ids()) {
        EXPECT_TRUE(std::ranges::equal(layer.blob(rank.rank, e), rank.blob(e)))
            << "rank " << rank.rank << ", expert " << e;
      }
    }
  }
  // Makes a group of expert `expert` one that the arranging kernel can not hold.
  static void plant_tiny_group(BlobSource& source, std::uint64_t expert) {
    const PackedLayout& layout = source.layout;
    source.pack_expert = [expert, codes = layout.find(Segment::up)->offset,
                          scales = layout.find(Segment::up_scale)->offset,
                          pack = source.pack_expert](std::uint64_t at, std::span<std::byte> blob) {
      pack(at, blob);
      if (at != expert) return;
      blob[codes] = std::byte{0x11};
      blob[scales] = std::byte{0};
    };
    source.parts = 1;
  }
};

TEST_F(GpuLoad, EveryBlobIsThePackedOneForEveryKernelAndPlan) {
  for (const BlockFormat format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    const RigModel model(rig(format));
    for (const ActFormat act : {ActFormat::bf16, ActFormat::fp8}) {
      if (format == BlockFormat::nvfp4 && act == ActFormat::fp8) continue;
      for (const auto& [tp, ep] : {std::pair{1U, 1U}, {3U, 1U}, {2U, 3U}}) {
        const ShardPlan plan =
            make_plan(*model, {.tp = tp, .ep = ep, .target = target_, .act_format = act});
        const MoeLayer layer(plan, spec_of(model->config), sources_of(*model, plan));
        expect_blobs(layer, pack_all(*model, plan));
      }
    }
  }
}

TEST_F(GpuLoad, InPartsEveryBlobIsThePackedOneAlsoThroughOneSlot) {
  for (const BlockFormat format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    const RigModel model(rig(format));
    const ShardPlan plan = make_plan(*model, {.tp = 2, .ep = 3, .target = target_});
    for (const std::uint64_t staging_bytes : {std::uint64_t{1}, LoadStaging::kDefaultBytes}) {
      LoadStaging staging(staging_bytes);
      std::vector<BlobSource> sources;
      for (const RankPlan& rank : plan.ranks) {
        sources.push_back(blob_source_in_parts(*model, plan, rank.rank, 0, 4096));
        sources.back().pack_expert = {};  // parts alone
      }
      const MoeLayer layer(plan, spec_of(model->config), sources, &staging);
      expect_blobs(layer, pack_all(*model, plan));
    }
  }
}

TEST_F(GpuLoad, HasTheResultsOfPackedExperts) {
  const RigModel model(rig(BlockFormat::mxfp4));
  const LayerSpec spec = spec_of(model->config);
  const ShardPlan plan = make_plan(*model, {.target = target_});
  const MoeLayer packed(plan, spec, pack_all(*model, plan));
  const MoeLayer loaded(plan, spec, sources_of(*model, plan));
  const Probe probe = probe_of(*model, 33, spec.top_k);
  const auto run = [&](const MoeLayer& layer) {
    std::vector<float> y(probe.tokens * probe.hidden);
    std::uint32_t flags = 0;
    HostCall call(layer, probe.tokens);
    EXPECT_EQ(call.forward({.x = probe.x_ref(),
                            .topk_ids = probe.topk_ids.data(),
                            .topk_weights = probe.topk_weights.data(),
                            .y = {.data = y.data(),
                                  .rows = probe.tokens,
                                  .cols = probe.hidden,
                                  .row_stride = probe.hidden},
                            .flags = &flags}),
              CallStatus::ok);
    return bits_of(y);
  };
  EXPECT_EQ(run(loaded), run(packed));
}

TEST_F(GpuLoad, StagingOfOneSlotIsEnoughAndManyLayersShareIt) {
  const RigModel model(rig(BlockFormat::mxfp4));
  const LayerSpec spec = spec_of(model->config);
  LoadStaging small(1);
  LoadStaging large;
  std::uint64_t locked = 0;
  for (const unsigned tp : {2U, 1U, 3U}) {
    const ShardPlan plan = make_plan(*model, {.tp = tp, .target = target_});
    const std::vector<PackedExperts> packed = pack_all(*model, plan);
    expect_blobs(MoeLayer(plan, spec, sources_of(*model, plan), &small), packed);
    expect_blobs(MoeLayer(plan, spec, sources_of(*model, plan), &large), packed);
    EXPECT_GE(large.bytes(), locked);
    locked = large.bytes();
  }
  const std::uint64_t blob = make_plan(*model, {.target = target_}).layout.stride;
  EXPECT_GE(small.bytes(), blob);
  EXPECT_LT(small.bytes(), blob + 4096);
  EXPECT_LE(large.bytes(), LoadStaging::kDefaultBytes);
}

TEST_F(GpuLoad, AnExpertThatTheKernelCanNotHoldIsRefusedByName) {
  const RigModel model(rig(BlockFormat::mxfp4));
  const ShardPlan plan = make_plan(*model, {.ep = 2, .target = target_});
  if (plan.kernel == "cuda.portable.experts") GTEST_SKIP() << plan.kernel << " holds all values";
  for (const std::uint64_t expert : {65U, 99U, 129U}) {
    std::vector<BlobSource> sources = sources_of(*model, plan);
    plant_tiny_group(sources[1], expert);
    const Error error = refusal_of([&] { MoeLayer(plan, spec_of(model->config), sources); });
    EXPECT_EQ(code_of(error), "MOXIE-R022");
    EXPECT_EQ(error.findings()[0].where.expert, expert) << error.what();
    EXPECT_EQ(error.findings()[0].where.rank, 1U) << error.what();
  }
}

TEST_F(GpuLoad, AReloadThatIsRefusedLeavesTheExpertAsItWas) {  // K-13
  const RigModel model(rig(BlockFormat::mxfp4));
  const ShardPlan plan = make_plan(*model, {.ep = 2, .target = target_});
  if (plan.kernel == "cuda.portable.experts") GTEST_SKIP() << plan.kernel << " holds all values";
  MoeLayer layer(plan, spec_of(model->config), sources_of(*model, plan));
  BlobSource bad = sources_of(*model, plan)[1];
  plant_tiny_group(bad, 70);
  std::vector<std::byte> blob(plan.layout.stride);
  bad.pack_expert(70, blob);
  const Error error = refusal_of([&] { layer.reload(1, 70, blob); });
  EXPECT_EQ(code_of(error), "MOXIE-R022");
  EXPECT_EQ(error.findings()[0].where.expert, 70U);
  expect_blobs(layer, pack_all(*model, plan));
}

TEST_F(GpuLoad, ABadExpertInTheMiddleIsRefusedAndTheNextLoadIsWhole) {
  const RigModel model(rig(BlockFormat::nvfp4));
  const ShardPlan plan = make_plan(*model, {.ep = 2, .target = target_});
  const LayerSpec spec = spec_of(model->config);
  LoadStaging staging;
  const auto refusal = [&](auto change) {
    std::vector<BlobSource> sources = sources_of(*model, plan);
    sources[1].pack_expert = [change, pack = sources[1].pack_expert](std::uint64_t expert,
                                                                     std::span<std::byte> blob) {
      pack(expert, blob);
      if (expert == 97) change(blob);
    };
    sources[1].parts = 1;
    const Error error = refusal_of([&] { MoeLayer(plan, spec, sources, &staging); });
    EXPECT_EQ(error.findings()[0].where.expert, 97U) << error.what();
    EXPECT_EQ(error.findings()[0].where.rank, 1U) << error.what();
    return code_of(error);
  };
  const std::uint64_t scales = plan.layout.find(Segment::down_scale)->offset;
  EXPECT_EQ(refusal([&](std::span<std::byte> blob) { blob[scales] = std::byte{0x7F}; }),
            "MOXIE-R003");
  EXPECT_EQ(refusal([](std::span<std::byte> /*blob*/) { throw std::runtime_error("gone"); }),
            "MOXIE-R023");
  const MoeLayer layer(plan, spec, sources_of(*model, plan), &staging);
  expect_blobs(layer, pack_all(*model, plan));
}

// What a load takes at its most: 1.03 of the packed experts, and room for one more page of 2 MiB
// that small things share.
TEST_F(GpuLoad, TakesLittleMoreDeviceMemoryThanTheExperts) {
  const RigModel shape({.hidden = 1024, .inter = 1024, .experts = 256});
  const ShardPlan plan = make_plan(*shape, {.target = target_});
  const LayerSpec spec = spec_of(shape->config);
  LoadStaging staging;
  {
    const MoeLayer warm(plan, spec, {drawn_source(plan, 0, 1)}, &staging);
  }  // loads the code
  const auto used = [] {
    const GpuMemory memory = gpu_memory();
    return memory.bytes - memory.free_bytes;
  };
  const std::uint64_t before = used();
  BlobSource source = drawn_source(plan, 0, 1);
  std::mutex mutex;
  std::uint64_t most = 0;
  source.pack_expert = [&, pack = source.pack_expert](std::uint64_t expert,
                                                      std::span<std::byte> blob) {
    pack(expert, blob);
    const std::lock_guard lock(mutex);
    most = std::max(most, used());
  };
  const MoeLayer layer(plan, spec, {source}, &staging);
  const std::uint64_t packed = 256 * plan.layout.stride;
  ASSERT_GE(most, before + packed * 9 / 10) << "another process freed memory meanwhile";
  EXPECT_LE(most - before, packed * 103 / 100 + (std::uint64_t{2} << 20));
  EXPECT_LE(used() - before, packed * 101 / 100 + (std::uint64_t{2} << 20));
}

}  // namespace
}  // namespace moxie
