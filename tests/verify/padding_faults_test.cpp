// SPDX-License-Identifier: Apache-2.0
// One byte that is not what padding holds, in every tensor that is padded, on every rank that pads
// it: the byte proof finds it, and so do the numbers, each by rank and tensor.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "moxie/verify.hpp"
#include "support/whole_set.hpp"

namespace moxie {
namespace {

using test::PlantedByte;
using test::quarter_tiny;
using test::rank_folder;
using test::SyntheticWhole;

// A byte of padding: the offset in the rank's tensor, and what is planted there.
struct Place {
  unsigned rank = 0;
  std::string tensor;
  std::uint64_t at = 0;
  char value = 0;
};

class PaddingFaults : public testing::TestWithParam<std::pair<unsigned, unsigned>> {
 protected:
  PaddingFaults()
      : plan_(make_plan(*model_, {.tp = GetParam().first, .ep = GetParam().second})),
        set_(model_.pack(GetParam().first, GetParam().second)) {}

  // First and last byte of the padding of one tensor, or the only one that a sink has to plant.
  void add_places(const ModelTensor& tensor, unsigned rank, std::vector<Place>& places) const {
    const auto range = cut_range(*tensor.cut, *plan_.find(tensor.cut->axis), rank % plan_.tp);
    if (range.zero().value == 0) return;
    const Checkpoint packed = open_checkpoint(rank_folder(set_, rank));
    const TensorInfo& found = *packed.find(tensor.name);
    if (tensor.cut->tail == Tail::minus_infinity) {
      // 0x80 of 0xFF800000 becomes 0: a large finite number.
      places.push_back({rank, tensor.name, range.count.value * 4 + 2, 0});
      places.push_back({rank, tensor.name, found.bytes - 1, 0x7F});  // +inf
      return;
    }
    const std::uint64_t first = dimension_of(tensor.cut->unit) == 0
                                    ? range.count.value * (found.bytes / found.shape[0])
                                    : range.count.value;
    places.push_back({rank, tensor.name, first, 1});
    places.push_back({rank, tensor.name, found.bytes - 1, 1});
    places.push_back({rank, tensor.name, found.bytes - 1, static_cast<char>(0x80)});
    places.push_back({rank, tensor.name, first, static_cast<char>(0xFF)});
  }

  std::vector<Place> all_places() const {
    std::vector<ModelTensor> tensors = layer_tensors(model_.config(), 0);
    std::ranges::copy(top_tensors(model_.config()), std::back_inserter(tensors));
    std::vector<Place> places;
    for (const ModelTensor& tensor : tensors) {
      if (!tensor.cut) continue;
      for (unsigned rank = 0; rank < plan_.ranks.size(); ++rank) add_places(tensor, rank, places);
    }
    return places;
  }

  static const Finding* finding_at(const std::vector<Finding>& findings, const std::string& code,
                                   const Place& place) {
    const auto found = std::ranges::find_if(findings, [&](const Finding& finding) {
      return finding.code == code && finding.where.rank == place.rank &&
             finding.where.tensor == place.tensor;
    });
    return found == findings.end() ? nullptr : &*found;
  }

  SyntheticWhole model_{quarter_tiny()};
  ShardPlan plan_;
  std::filesystem::path set_;
};

TEST_P(PaddingFaults, EveryPlantedByteIsFoundByVerifyAndByTheNumbers) {
  std::set<std::string> kinds;
  for (const Place& place : all_places()) {
    SCOPED_TRACE(place.tensor + " rank " + std::to_string(place.rank) + " byte " +
                 std::to_string(place.at) + " = " + std::to_string(place.value));
    const PlantedByte planted(set_, place.rank, place.tensor, place.at, place.value);
    const VerifyReport report = verify_packed(set_, *model_);
    EXPECT_FALSE(report.passed);
    EXPECT_EQ(report.findings.size(), 1U);
    EXPECT_NE(finding_at(report.findings, "MOXIE-V003", place), nullptr);
    const PaddingCheck check = check_padding(set_, *model_, {.tokens = 1});
    EXPECT_FALSE(check.passed);
    const Finding* found = finding_at(check.findings, "MOXIE-V009", place);
    ASSERT_NE(found, nullptr) << (check.findings.empty() ? "nothing"
                                                         : to_string(check.findings[0]));
    EXPECT_EQ(found->where.layer.has_value(), place.tensor.starts_with("layers.0."));
    kinds.insert(place.tensor);
  }
  // Six weights and their scales, sinks, embedding, head. At two ranks only heads of an attention
  // backend and the shared experts are padded.
  EXPECT_EQ(kinds.size(), GetParam().first == 2 ? 7U : 15U);
  EXPECT_TRUE(verify_packed(set_, *model_).passed);
  EXPECT_TRUE(check_padding(set_, *model_).passed);
}

INSTANTIATE_TEST_SUITE_P(Ranks, PaddingFaults,
                         testing::Values(std::pair{2U, 1U}, std::pair{3U, 1U}, std::pair{3U, 2U},
                                         std::pair{7U, 1U}),
                         [](const auto& param) {
                           return "Tp" + std::to_string(param.param.first) + "Ep" +
                                  std::to_string(param.param.second);
                         });

// Real bytes of a wrong rank: nothing is padding, but the sums and the heads are not the source's.
TEST(PaddingCheck, FindsRealBytesThatAreNotTheSources) {
  const SyntheticWhole model(quarter_tiny());
  const auto set = model.pack(3);
  const auto findings_with = [&](const std::string& tensor, std::uint64_t at) {
    const Checkpoint packed = open_checkpoint(rank_folder(set, 1));
    const auto byte = packed.bytes(*packed.find(tensor))[at];
    const PlantedByte planted(set, 1, tensor, at, static_cast<char>(byte ^ std::byte{0x08}));
    return check_padding(set, *model).findings;
  };
  struct Fault {
    std::string tensor;
    std::string named;
    std::string text;
  };
  const std::string attn = "layers.0.attn.";
  const std::string shared = "layers.0.ffn.shared_experts.";
  for (const Fault& fault : {Fault{attn + "wq_b.weight", attn + "wq_b.weight", "head 0"},
                             Fault{attn + "wo_a.weight", "", "the output path"},
                             Fault{attn + "wo_b.scale", "", "the output path"},
                             Fault{shared + "w1.weight", "", "the shared expert"},
                             Fault{shared + "w2.scale", "", "the shared expert"},
                             Fault{"head.weight", "head.weight", "the logit of token 128"}}) {
    SCOPED_TRACE(fault.tensor);
    const std::vector<Finding> findings = findings_with(fault.tensor, 0);
    ASSERT_FALSE(findings.empty());
    for (const Finding& finding : findings) EXPECT_EQ(finding.code, "MOXIE-V010");
    EXPECT_EQ(findings[0].where.tensor, fault.named);
    EXPECT_EQ(findings[0].where.rank.has_value(), !fault.named.empty());
    EXPECT_NE(findings[0].message.find(fault.text), std::string::npos) << findings[0].message;
  }
}

}  // namespace
}  // namespace moxie
