// SPDX-License-Identifier: Apache-2.0
// Layers whose experts come one at a time from sources.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "moxie/layer.hpp"
#include "pack/expert_parts.hpp"
#include "support/forced_kernels.hpp"
#include "support/layer_rig.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"
#include "support/stacked_checkpoint.hpp"

namespace moxie {
namespace {

using test::RigModel;

std::vector<BlobSource> sources_of(const MoeModel& model, const ShardPlan& plan) {
  std::vector<BlobSource> sources;
  for (const RankPlan& rank : plan.ranks) sources.push_back(blob_source(model, plan, rank.rank, 0));
  return sources;
}

// Packs as before, then lets `change` do something to one expert of one rank.
template <class Change>
void plant(BlobSource& source, std::uint64_t expert, Change change) {
  source.pack_expert = [expert, change, pack = source.pack_expert](std::uint64_t at,
                                                                   std::span<std::byte> blob) {
    pack(at, blob);
    if (at == expert) change(blob);
  };
}

TEST(LayerLoad, GivesTheBitsOfPackedExpertsForEveryPlan) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    for (const auto& [tp, ep] : {std::pair{1U, 1U}, {3U, 1U}, {3U, 2U}, {13U, 1U}}) {
      const ShardPlan plan = make_plan(*model, {.tp = tp, .ep = ep});
      const LayerSpec spec = spec_of(model->config);
      const Probe probe = test::probe_of(*model, 9, spec.top_k);
      const MoeLayer packed = test::layer_of(*model, plan, spec);
      const MoeLayer loaded(plan, spec, sources_of(*model, plan));
      EXPECT_EQ(test::bits_of(test::run_layer(loaded, probe)),
                test::bits_of(test::run_layer(packed, probe)));
      for (const RankPlan& rank : plan.ranks) {
        for (const std::uint64_t e : rank.experts.ids())
          EXPECT_TRUE(test::same_bytes(loaded.blob(rank.rank, e), packed.blob(rank.rank, e)));
      }
    }
  }
}

TEST(LayerLoad, TheOrderOfSourcesDoesNotMatter) {
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {.tp = 3, .ep = 2});
  const LayerSpec spec = spec_of(model->config);
  const Probe probe = test::probe_of(*model, 9, spec.top_k);
  std::vector<BlobSource> sources = sources_of(*model, plan);
  const std::vector<float> expected = test::run_layer(MoeLayer(plan, spec, sources), probe);
  std::ranges::reverse(sources);
  EXPECT_EQ(test::bits_of(test::run_layer(MoeLayer(plan, spec, sources), probe)),
            test::bits_of(expected));
}

TEST(LayerLoad, EveryExpertIsPackedOnceAndThenTheSourceIsFinished) {
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {.ep = 2});
  std::vector<BlobSource> sources = sources_of(*model, plan);
  std::vector<std::atomic<int>> packed(model->config.experts);
  std::vector<std::uint64_t> at_finish;
  for (BlobSource& source : sources) {
    source.pack_expert = [&packed, pack = source.pack_expert](std::uint64_t expert,
                                                              std::span<std::byte> blob) {
      ++packed[expert];
      pack(expert, blob);
    };
    source.finish = [&packed, &at_finish, experts = source.experts] {
      std::uint64_t done = 0;
      for (const std::uint64_t e : experts.ids())
        done += static_cast<std::uint64_t>(packed[e].load());
      at_finish.push_back(done);
    };
  }
  const MoeLayer layer(plan, spec_of(model->config), sources);
  for (const std::atomic<int>& times : packed) EXPECT_EQ(times, 1);
  EXPECT_EQ(at_finish,
            (std::vector<std::uint64_t>{sources[0].experts.count(), sources[1].experts.count()}));
}

TEST(LayerLoad, WhatASourceRefusesNamesExpertAndRank) {
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {.ep = 2});
  const LayerSpec spec = spec_of(model->config);
  const auto refusal = [&](auto thrown) {
    std::vector<BlobSource> sources = sources_of(*model, plan);
    plant(sources[1], 5, [thrown](std::span<std::byte> /*blob*/) { throw thrown; });
    return test::refusal_of([&] { MoeLayer(plan, spec, sources); });
  };
  const auto expect_named = [](const Error& error, ErrorCode code, const char* finding) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(test::code_of(error), finding);
    EXPECT_EQ(error.findings()[0].where.expert, 5U) << error.what();
    EXPECT_EQ(error.findings()[0].where.rank, 1U) << error.what();
  };
  expect_named(refusal(Error(ErrorCode::input, {.code = "MOXIE-K003", .message = "no scale"})),
               ErrorCode::input, "MOXIE-K003");
  const Error other = refusal(std::runtime_error("the disk is gone"));
  expect_named(other, ErrorCode::environment, "MOXIE-R023");
  EXPECT_EQ(other.findings()[0].got, "the disk is gone");
  // A place that the source names stays.
  const Error named = refusal(Error(
      ErrorCode::input, {.code = "MOXIE-K003", .where = {.tensor = "w", .expert = 2, .rank = 0}}));
  EXPECT_EQ(named.findings()[0].where.expert, 2U);
  EXPECT_EQ(named.findings()[0].where.rank, 0U);
}

// Sources with many parts, as large experts have them.
std::vector<BlobSource> sources_in_parts(const MoeModel& model, const ShardPlan& plan) {
  std::vector<BlobSource> sources;
  for (const RankPlan& rank : plan.ranks)
    sources.push_back(blob_source_in_parts(model, plan, rank.rank, 0, 512));
  return sources;
}

TEST(LayerLoad, InPartsGivesTheBlobsOfPackedExperts) {
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {.tp = 3, .ep = 2});
  const LayerSpec spec = spec_of(model->config);
  std::vector<BlobSource> sources = sources_in_parts(*model, plan);
  for (BlobSource& source : sources) {
    ASSERT_GT(source.parts, 3U);
    source.pack_expert = {};  // parts alone
  }
  const MoeLayer packed = test::layer_of(*model, plan, spec);
  const MoeLayer loaded(plan, spec, sources);
  for (const RankPlan& rank : plan.ranks) {
    for (const std::uint64_t e : rank.experts.ids())
      EXPECT_TRUE(test::same_bytes(loaded.blob(rank.rank, e), packed.blob(rank.rank, e)));
  }
}

TEST(LayerLoad, WhatAPartRefusesNamesExpertAndRankAndAWholeBlobIsChecked) {
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {.ep = 2});
  const LayerSpec spec = spec_of(model->config);
  const std::uint64_t at = plan.layout.find(Segment::down_scale)->offset + 3;
  const auto refusal = [&](unsigned bad, bool throws) {
    std::vector<BlobSource> sources = sources_in_parts(*model, plan);
    sources[1].pack_part = [&, bad, throws, pack = sources[1].pack_part](
                               std::uint64_t expert, unsigned part, std::span<std::byte> blob) {
      pack(expert, part, blob);
      if (expert != 5 || part != bad) return;
      if (throws) throw std::runtime_error("the disk is gone");
      blob[at] = std::byte{0xFF};
    };
    return test::refusal_of([&] { MoeLayer(plan, spec, sources); });
  };
  const unsigned last = sources_in_parts(*model, plan)[1].parts - 1;
  const Error errors[] = {refusal(0, true), refusal(last, true), refusal(last, false)};
  for (const Error& error : errors) {
    EXPECT_EQ(error.findings()[0].where.expert, 5U) << error.what();
    EXPECT_EQ(error.findings()[0].where.rank, 1U) << error.what();
  }
  EXPECT_EQ(test::code_of(errors[0]), "MOXIE-R023");
  EXPECT_EQ(test::code_of(errors[1]), "MOXIE-R023");
  EXPECT_EQ(test::code_of(errors[2]), "MOXIE-R003");
}

TEST(LayerLoad, EveryBlobIsChecked) {  // C-05, C17
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    const ShardPlan plan = make_plan(*model, {.ep = 2});
    const LayerSpec spec = spec_of(model->config);
    for (const RankPlan& rank : plan.ranks) {
      for (const std::uint64_t expert : rank.experts.ids()) {
        std::vector<BlobSource> sources = sources_of(*model, plan);
        const std::uint64_t at = plan.layout.find(Segment::down_scale)->offset;
        plant(sources[rank.rank], expert,
              [at](std::span<std::byte> blob) { blob[at + 3] = std::byte{0xFF}; });
        const Error error = test::refusal_of([&] { MoeLayer(plan, spec, sources); });
        EXPECT_EQ(test::code_of(error), "MOXIE-R003");
        EXPECT_EQ(error.findings()[0].where.expert, expert);
        EXPECT_EQ(error.findings()[0].where.rank, rank.rank);
      }
    }
  }
}

// A set with the blobs of a plan of one rank in its file, read where they lie.
class BlobsInAFile {
 public:
  BlobsInAFile(const MoeModel& model, const ShardPlan& plan) {
    pack_to_folder(model, plan, {.out = folder_.path() / "set", .layout = FileLayout::kernel});
    set_ = open_packed_folder(folder_.path() / "set");
  }
  [[nodiscard]] std::vector<BlobSource> sources() const { return {blob_source(set_, 0, 0)}; }
  [[nodiscard]] std::filesystem::path file() const { return sources().front().in_file->path; }
  void write(std::uint64_t expert, std::uint64_t at, std::span<const std::byte> bytes) const {
    const std::uint64_t blob = sources().front().in_file->offset + expert * set_.plan.layout.stride;
    std::fstream stream(file(), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(blob + at));
    stream.write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
  }

 private:
  test::TempFolder folder_;
  PackedFolder set_;
};

TEST(LayerLoad, NoWayIntoALayerTakesABiasThatIsNoNumber) {
  const test::TempFolder folder;
  const MoeModel model = read_model(test::oss_checkpoint(folder, test::OssWeights::random({}, 22)));
  const ShardPlan plan = make_plan(model, {});
  const LayerSpec spec = spec_of(model.config);
  MoeLayer layer = test::layer_of(model, plan, spec);
  for (const Segment half : {Segment::gate_bias, Segment::up_bias, Segment::down_bias}) {
    const std::uint64_t at = plan.layout.find(half)->offset + 7 * sizeof(float);
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      const auto bad = std::as_bytes(std::span(&value, 1));
      const auto expect_refused = [&](const auto& action) {
        const Error error = test::refusal_of(action);
        EXPECT_EQ(test::code_of(error), "MOXIE-R003") << error.what();
        EXPECT_EQ(error.findings()[0].where.expert, 2U) << error.what();
        EXPECT_NE(error.findings()[0].message.find("row 7"), std::string::npos) << error.what();
      };
      std::vector<PackedExperts> packed = test::pack_all(model, plan);
      std::memcpy(packed[0].blobs.data() + 2 * plan.layout.stride + at, bad.data(), bad.size());
      expect_refused([&] { MoeLayer(plan, spec, std::move(packed)); });
      std::vector<BlobSource> sources = sources_of(model, plan);
      plant(sources[0], 2, [&](std::span<std::byte> blob) {
        std::memcpy(blob.data() + at, bad.data(), bad.size());
      });
      expect_refused([&] { MoeLayer(plan, spec, sources); });
      const BlobsInAFile set(model, plan);
      set.write(2, at, bad);
      expect_refused([&] { MoeLayer(plan, spec, set.sources()); });
      const Error in_file = test::refusal_of([&] { MoeLayer(plan, spec, set.sources()); });
      EXPECT_EQ(in_file.findings()[0].where.file, set.file().string());
      EXPECT_EQ(in_file.findings()[0].where.layer, 0);
      test::Bytes blob = test::packed_blob(model, plan, 0, 2);
      std::memcpy(blob.data() + at, bad.data(), bad.size());
      expect_refused([&] { layer.reload(0, 2, blob); });
    }
  }
}

TEST(LayerLoad, AFileThatBecameShorterIsRefusedBeforeItIsRead) {
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {});
  const LayerSpec spec = spec_of(model->config);
  for (const std::uint64_t missing : {std::uint64_t{1}, std::uint64_t{5000}}) {
    const BlobsInAFile set(*model, plan);
    const std::vector<BlobSource> sources = set.sources();
    const std::filesystem::path other = set.file().string() + ".new";
    std::filesystem::copy_file(set.file(), other);
    std::filesystem::resize_file(other, std::filesystem::file_size(other) - missing);
    std::filesystem::rename(other, set.file());
    test::expect_refusal([&] { MoeLayer(plan, spec, sources); }, ErrorCode::environment,
                         "MOXIE-E001");
  }
}

TEST(LayerLoad, APlanWhoseKernelIsLeftOutByTheEnvironmentIsRefused) {
  const RigModel model({});
  const LayerSpec spec = spec_of(model->config);
  ShardPlan plan;
  {
    const test::PortableKernel forced;
    plan = make_plan(*model, {});
    EXPECT_NO_THROW(MoeLayer(plan, spec, sources_of(*model, plan)));
  }
  EXPECT_NO_THROW(MoeLayer(plan, spec, sources_of(*model, plan)));
  const auto expect_refused_under = [&](const char* start, const char* code) {
    const test::ForcedKernels forced(start);
    test::expect_refusal([&] { MoeLayer(plan, spec, sources_of(*model, plan)); }, ErrorCode::usage,
                         code);
  };
  expect_refused_under("cpu.avx2", "MOXIE-R013");
  expect_refused_under("cpu.avx512.experts", "MOXIE-R013");
  expect_refused_under("cpu.avx", "MOXIE-P025");
}

TEST(LayerLoad, RanksAndLayoutsAreRefusedBeforeTheFirstExpertIsPacked) {  // D-02
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {.tp = 2});
  const ShardPlan other = make_plan(*model, {.tp = 2, .kernel_align = 160});
  const LayerSpec spec = spec_of(model->config);
  const auto expect_early = [&](std::vector<BlobSource> sources, ErrorCode code,
                                const char* finding) {
    std::atomic<int> packed = 0;
    for (BlobSource& source : sources)
      source.pack_expert = [&packed](std::uint64_t, std::span<std::byte>) { ++packed; };
    test::expect_refusal([&] { MoeLayer(plan, spec, sources); }, code, finding);
    EXPECT_EQ(packed, 0);
  };
  expect_early({}, ErrorCode::unsupported, "MOXIE-R002");
  expect_early({sources_of(*model, plan)[0]}, ErrorCode::unsupported, "MOXIE-R002");
  const BlobSource one = sources_of(*model, plan)[1];
  expect_early({one, one}, ErrorCode::unsupported, "MOXIE-R002");
  expect_early(sources_of(*model, other), ErrorCode::input, "MOXIE-R003");
  std::vector<BlobSource> beyond = sources_of(*model, plan);
  beyond[0].rank = 2;
  beyond[1].rank = 3;
  expect_early(beyond, ErrorCode::input, "MOXIE-R003");
}

TEST(LayerLoad, ASourceMayRefuseAtItsEnd) {
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {});
  std::vector<BlobSource> sources = sources_of(*model, plan);
  sources[0].finish = [] {
    throw Error(ErrorCode::input, {.code = "MOXIE-K005", .message = "wrong checksum"});
  };
  test::expect_refusal([&] { MoeLayer(plan, spec_of(model->config), sources); }, ErrorCode::input,
                       "MOXIE-K005");
}

TEST(LayerLoad, TheCpuLocksNoMemory) {
  const RigModel model({});
  const ShardPlan plan = make_plan(*model, {});
  LoadStaging staging;
  const MoeLayer layer(plan, spec_of(model->config), sources_of(*model, plan), &staging);
  EXPECT_EQ(staging.bytes(), 0U);
}

}  // namespace
}  // namespace moxie
