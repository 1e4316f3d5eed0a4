// SPDX-License-Identifier: Apache-2.0
// Wrong bytes, tensors and files around the experts: each is found under its own name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/random_placement.hpp"
#include "whole_set.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::Checksum;
using test::count_of;
using test::finding_of;
using test::flip;
using test::PlantedFault;
using test::WholeSet;

// Compressor, indexer and hash router are there too; rank 2 of 3 has a tail on every axis.
test::WholeOptions all_kinds() {
  return {.config = test::narrow_v4({{"num_hash_layers", 1}}, {4, 0})};
}

class VerifyWhole : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    set_ = std::make_unique<WholeSet>(all_kinds(), PlanOptions{.tp = 3});
  }
  static void TearDownTestSuite() { set_.reset(); }

  static std::vector<ModelTensor> tensors() {
    std::vector<ModelTensor> all = top_tensors(set_->model().config());
    for (const std::uint64_t layer : {0, 1})
      std::ranges::move(layer_tensors(set_->model().config(), layer), std::back_inserter(all));
    return all;
  }

  // One byte of a rank's part of a tensor is wrong, and nothing else says so.
  static void expect_found(const std::string& tensor, unsigned rank, std::uint64_t at,
                           const char* code) {
    const Checkpoint packed = set_->open(rank);
    const TensorInfo* info = packed.find(tensor);
    ASSERT_NE(info, nullptr);
    const std::uint64_t place = info->offset + at;
    const fs::path file = packed.files()[info->file].path;
    const PlantedFault fault(
        *set_, rank, Checksum::agrees, [&](std::string& bytes) { flip(bytes, place); }, file);
    const VerifyReport report = set_->verify();
    SCOPED_TRACE(tensor + " rank " + std::to_string(rank) + " byte " + std::to_string(at));
    EXPECT_FALSE(report.passed);
    ASSERT_EQ(report.findings.size(), 1U);
    const Finding& finding = report.findings.front();
    EXPECT_EQ(finding.code, code) << to_string(finding);
    EXPECT_EQ(finding.severity, Severity::error);
    EXPECT_EQ(finding.where.tensor, tensor);
    EXPECT_EQ(finding.where.file, file.string());
    EXPECT_EQ(finding.where.rank, rank);
    EXPECT_FALSE(fs::exists(set_->proof()));
  }

  static inline std::unique_ptr<WholeSet> set_;
};

TEST_F(VerifyWhole, WhatWasPackedPassesAndEveryByteIsCounted) {
  const VerifyReport report = set_->verify();
  EXPECT_TRUE(report.passed);
  EXPECT_TRUE(report.findings.empty());
  EXPECT_EQ(report.layers, (std::vector<int>{0, 1}));
  EXPECT_EQ(report.files, 9U);
  const auto& checkpoint = set_->model()->checkpoint;
  EXPECT_EQ(report.tensors, checkpoint.tensors().size());
  std::uint64_t bytes = 0;
  for (const TensorInfo& tensor : checkpoint.tensors()) bytes += tensor.bytes;
  EXPECT_EQ(report.real_bytes, bytes);
  EXPECT_TRUE(fs::exists(set_->proof()));
}

TEST_F(VerifyWhole, OneByteOfAnyRealPartIsFound) {
  std::set<Axis> axes;
  for (const ModelTensor& tensor : tensors()) {
    if (!tensor.cut) continue;
    axes.insert(tensor.cut->axis);
    for (const unsigned rank : {0U, 1U, 2U}) expect_found(tensor.name, rank, 0, "MOXIE-V002");
  }
  EXPECT_EQ(axes, (std::set{Axis::heads, Axis::output_groups, Axis::shared_inter, Axis::vocab}));
}

// Rows and columns, scales and sinks: rank 2's last byte is in the tail of every cut tensor.
TEST_F(VerifyWhole, OneByteOfAnyTailIsFound) {
  std::set<std::string> kinds;
  for (const ModelTensor& tensor : tensors()) {
    if (!tensor.cut) continue;
    kinds.insert(std::string(name_of(tensor.cut->unit)) +
                 (tensor.cut->tail == Tail::zero ? "" : " of sinks"));
    expect_found(tensor.name, 2, set_->open(2).find(tensor.name)->bytes - 1, "MOXIE-V003");
  }
  EXPECT_EQ(kinds,
            (std::set<std::string>{"row", "row of sinks", "column", "tile_row", "tile_column"}));
}

TEST_F(VerifyWhole, OneByteOfAnyReplicaIsFoundOnAnyRank) {
  for (const ModelTensor& tensor : tensors()) {
    if (tensor.cut) continue;
    const std::uint64_t bytes = set_->open(0).find(tensor.name)->bytes;
    for (const unsigned rank : {0U, 2U}) expect_found(tensor.name, rank, bytes - 1, "MOXIE-V002");
  }
}

// Damage after packing: the checksum names the file, the comparison the tensor.
TEST_F(VerifyWhole, ChecksumAndComparisonBothFindDamage) {
  for (const char* name : {"model-00000.safetensors", "model-top.safetensors"}) {
    const fs::path file = set_->file(1, name);
    const PlantedFault fault(
        *set_, 1, Checksum::stale, [](std::string& bytes) { bytes.back() ^= 1; }, file);
    const VerifyReport report = set_->verify();
    EXPECT_FALSE(report.passed);
    ASSERT_EQ(report.findings.size(), 2U);
    EXPECT_EQ(report.findings[0].code, "MOXIE-V001");
    EXPECT_EQ(report.findings[1].code, "MOXIE-V002");
    for (const Finding& finding : report.findings) EXPECT_EQ(finding.where.file, file.string());
  }
}

class VerifyWholeTensors : public testing::Test {
 protected:
  // What verify says of a file that was written with other tensors.
  VerifyReport after(unsigned rank, const char* file,
                     const std::function<void(std::vector<test::TinyTensor>&)>& change) const {
    const std::string intact = test::read_bytes(set_.file(rank, file));
    set_.rewrite(rank, file, change);
    VerifyReport report = set_.verify();
    set_.write(set_.file(rank, file), intact);
    set_.agree(rank);
    EXPECT_FALSE(report.passed);
    for (const Finding& finding : report.findings) {
      EXPECT_EQ(finding.code, "MOXIE-V004") << to_string(finding);
      EXPECT_EQ(finding.where.rank, rank);
      EXPECT_EQ(finding.where.file, set_.file(rank, file).string());
    }
    EXPECT_TRUE(set_.verify().passed);
    return report;
  }

  static bool names(const VerifyReport& report, const std::string& tensor) {
    return std::ranges::any_of(
        report.findings, [&](const Finding& finding) { return finding.where.tensor == tensor; });
  }

  WholeSet set_{all_kinds(), {.tp = 2}};
};

TEST_F(VerifyWholeTensors, AbsentTensorIsNamed) {
  for (const auto& [file, name] : {std::pair{"model-00000.safetensors", "layers.0.attn.wo_b.scale"},
                                   {"model-00001.safetensors", "mtp.0.attn.attn_sink"},
                                   {"model-00000.safetensors", "layers.0.attn.wq_a.weight"},
                                   {"model-top.safetensors", "head.weight"}}) {
    const VerifyReport report = after(1, file, [&, name = name](auto& tensors) {
      EXPECT_EQ(std::erase_if(tensors, [&](const auto& tensor) { return tensor.name == name; }),
                1U);
    });
    EXPECT_TRUE(names(report, name)) << name;
  }
}

TEST_F(VerifyWholeTensors, SuperfluousTensorIsNamed) {
  for (const char* file : {"model-00000.safetensors", "model-top.safetensors"}) {
    const VerifyReport report = after(0, file, [](auto& tensors) {
      tensors.push_back({"layers.0.attn.stranger", DType::u8, {2}, "ab"});
    });
    EXPECT_TRUE(names(report, "layers.0.attn.stranger")) << file;
  }
}

TEST_F(VerifyWholeTensors, AnotherShapeOrTypeIsNamed) {
  const auto change = [](const char* name, auto edit) {
    return [name, edit](auto& tensors) {
      for (auto& tensor : tensors) {
        if (tensor.name == name) edit(tensor);
      }
    };
  };
  const VerifyReport shape =
      after(1, "model-00000.safetensors", change("layers.0.attn.wo_b.weight", [](auto& tensor) {
              std::swap(tensor.shape[0], tensor.shape[1]);
            }));
  EXPECT_TRUE(names(shape, "layers.0.attn.wo_b.weight"));
  const VerifyReport type = after(1, "model-top.safetensors",
                                  change("embed.weight", [](auto& t) { t.dtype = DType::f16; }));
  EXPECT_TRUE(names(type, "embed.weight"));
}

TEST_F(VerifyWholeTensors, ATensorInAnotherFileIsNamed) {
  const std::string name = "layers.0.attn.attn_sink";
  test::TinyTensor moved;
  set_.rewrite(0, "model-00000.safetensors", [&](auto& tensors) {
    const auto at = std::ranges::find(tensors, name, &test::TinyTensor::name);
    moved = *at;
    tensors.erase(at);
  });
  set_.rewrite(0, "model-top.safetensors", [&](auto& tensors) { tensors.push_back(moved); });
  const VerifyReport report = set_.verify();
  EXPECT_FALSE(report.passed);
  EXPECT_TRUE(names(report, name));
}

// Same names, types and shapes: nothing but the bytes tells ranks apart.
TEST_F(VerifyWholeTensors, FilesThatTwoRanksExchangedAreFoundOnBoth) {
  for (const char* file :
       {"model-00000.safetensors", "model-00001.safetensors", "model-top.safetensors"}) {
    const auto exchange = [&] {
      fs::rename(set_.file(0, file), set_.path() / "other");
      fs::rename(set_.file(1, file), set_.file(0, file));
      fs::rename(set_.path() / "other", set_.file(1, file));
      set_.agree(0);
      set_.agree(1);
    };
    exchange();
    const VerifyReport report = set_.verify();
    EXPECT_FALSE(report.passed);
    for (const unsigned rank : {0U, 1U}) {
      EXPECT_TRUE(std::ranges::any_of(report.findings,
                                      [&](const Finding& finding) {
                                        return finding.code == "MOXIE-V002" &&
                                               finding.where.rank == rank &&
                                               finding.where.file == set_.file(rank, file).string();
                                      }))
          << file << " rank " << rank;
    }
    exchange();
    EXPECT_TRUE(set_.verify().passed);
  }
}

TEST_F(VerifyWholeTensors, AbsentTopOnOneRankIsFound) {
  fs::remove(set_.file(1, "model-top.safetensors"));
  const VerifyReport report = set_.verify();
  EXPECT_FALSE(report.passed);
  EXPECT_EQ(finding_of(report, "MOXIE-V004").where.file,
            set_.file(1, "model-top.safetensors").string());
}

// Every group holds all of attention, so each is compared, with experts on several ranks as well.
TEST(VerifyWholeGroups, AByteOfASecondGroupIsFoundUnderARedundantMap) {
  const WholeSet set({.config = test::narrow_v4({{"n_routed_experts", 5}})},
                     {.tp = 2, .ep = 2, .placement = test::placed({{4, 1, 0}, {3, 1, 2, 4}})},
                     FileLayout::kernel);
  EXPECT_TRUE(set.verify().passed);
  for (const char* name : {"layers.0.attn.wo_a.weight", "mtp.0.ffn.gate.weight"}) {
    const Checkpoint packed = set.open(3);
    const TensorInfo* info = packed.find(name);
    const std::uint64_t at = info->offset;
    const PlantedFault fault(
        set, 3, Checksum::agrees, [&](std::string& bytes) { flip(bytes, at); },
        packed.files()[info->file].path);
    const VerifyReport report = set.verify();
    EXPECT_FALSE(report.passed);
    EXPECT_EQ(finding_of(report, "MOXIE-V002").where.tensor, name);
    EXPECT_EQ(finding_of(report, "MOXIE-V002").where.rank, 3U);
  }
}

}  // namespace
}  // namespace moxie
