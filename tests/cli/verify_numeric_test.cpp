// SPDX-License-Identifier: Apache-2.0
// moxie verify --numeric: its document, its table and its exit codes.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/run_command.hpp"
#include "support/whole_set.hpp"

namespace moxie {
namespace {

using test::codes_of;
using test::document_of;
using test::expect_document;
using test::expect_refusal;
using test::expect_success;
using test::has;
using test::Kind;
using test::Outcome;
using test::Words;

class VerifyNumericCommand : public testing::Test {
 protected:
  VerifyNumericCommand() : model_(test::quarter_tiny(), 2), set_(model_.pack(3)) {}

  Words command(const Words& options) const {
    return Words{"verify", set_.string(), "--against", model_.path().string()} + options;
  }

  test::SyntheticWhole model_;
  std::filesystem::path set_;
};

TEST_F(VerifyNumericCommand, StatesWhatPaddingAddsInEveryLayerAskedFor) {
  const Json document = expect_document(command({"--numeric", "--layers", "0..2"}));
  EXPECT_TRUE(document.find("ok")->as_bool());
  const auto& numeric = document.find("numeric")->elements();
  ASSERT_EQ(numeric.size(), 3U);  // two layers and the draft block
  for (std::size_t layer = 0; layer < 3; ++layer) {
    const Json& entry = numeric[layer];
    EXPECT_EQ(test::keys_of(entry),
              (std::vector<std::string>{"layer", "ok", "tokens", "virtual_heads", "virtual_groups",
                                        "virtual_columns", "virtual_rows", "zero_products",
                                        "max_err_over_bound"}));
    EXPECT_EQ(test::number(entry, "layer"), layer);
    EXPECT_TRUE(entry.find("ok")->as_bool());
    EXPECT_EQ(test::number(entry, "virtual_heads"), 2U);
    EXPECT_EQ(test::number(entry, "virtual_groups"), 1U);
    EXPECT_EQ(test::number(entry, "virtual_columns"), 32U);
    EXPECT_EQ(test::number(entry, "virtual_rows"), 64U);
    EXPECT_GT(test::number(entry, "zero_products"), 100U);
    EXPECT_LE(entry.find("max_err_over_bound")->as_double(), 1);
  }
  const Outcome text = expect_success(command({"--numeric", "--layers", "1"}));
  EXPECT_TRUE(has(text.out, "products exactly 0")) << text.out;
  EXPECT_TRUE(has(text.out, "verdict: passed")) << text.out;
}

TEST_F(VerifyNumericCommand, LooksAtTheFirstLayerUnlessToldOtherwise) {
  const Json document = expect_document(command({"--numeric"}));
  ASSERT_EQ(document.find("numeric")->elements().size(), 1U);
  EXPECT_EQ(test::number(document.find("numeric")->elements()[0], "layer"), 0U);
  EXPECT_EQ(expect_document(command({})).find("numeric"), nullptr);
}

TEST_F(VerifyNumericCommand, NamesAPlantedByteInBothProofsAndAnswersOne) {
  const std::string tensor = "layers.1.attn.wq_b.weight";
  const Checkpoint packed = open_checkpoint(test::rank_folder(set_, 2));
  const test::PlantedByte planted(set_, 2, tensor, packed.find(tensor)->bytes - 1, 1);
  const Outcome outcome = test::moxie_says(command({"--numeric", "--layers", "0,1", "--json"}));
  EXPECT_EQ(outcome.exit_code, 1);
  const Json document = document_of(outcome, "verify");
  EXPECT_FALSE(document.find("ok")->as_bool(true));
  EXPECT_EQ(codes_of(document), (std::vector<std::string>{"MOXIE-V003", "MOXIE-V009"}));
  for (const Json& finding : document.find("findings")->elements()) {
    test::expect_finding(finding);
    EXPECT_EQ(test::text(*finding.find("where"), "tensor"), tensor);
    EXPECT_EQ(test::number(*finding.find("where"), "rank"), 2U);
  }
  const auto& numeric = document.find("numeric")->elements();
  ASSERT_EQ(numeric.size(), 2U);
  EXPECT_TRUE(numeric[0].find("ok")->as_bool());
  EXPECT_FALSE(numeric[1].find("ok")->as_bool(true));
}

TEST_F(VerifyNumericCommand, OfASetThatCanNotBeComputedWithTheByteProofSpeaks) {
  std::filesystem::remove(test::rank_folder(set_, 1) / "model-00000.safetensors");
  const Outcome outcome = test::moxie_says(command({"--numeric", "--json"}));
  EXPECT_EQ(outcome.exit_code, 1);
  const Json document = document_of(outcome, "verify");
  EXPECT_TRUE(std::ranges::count(codes_of(document), "MOXIE-V004")) << outcome.out;
  EXPECT_TRUE(document.find("numeric")->elements().empty());
}

TEST_F(VerifyNumericCommand, RefusesLayersThatAreNotThere) {
  const std::string line = expect_refusal(4, "MOXIE-V011", command({"--numeric", "--layers", "3"}));
  EXPECT_TRUE(has(line, "3 layers")) << line;
}

TEST_F(VerifyNumericCommand, RefusesLayersWithoutTheNumericProof) {
  expect_refusal(2, "MOXIE-U001", command({"--layers", "1"}));
}

TEST(VerifyNumeric, RefusesSetsOfExpertsAlone) {
  const test::TempFolder folder;
  const std::string model = (folder.path() / "model").string();
  const std::string set = (folder.path() / "set").string();
  expect_success({"synth", model, "--model", "tiny", "-q"});
  expect_success({"pack", model, "--out", set, "--tp", "2", "-q"});
  expect_success({"verify", set, "--against", model});
  expect_refusal(4, "MOXIE-V011", {"verify", set, "--against", model, "--numeric"});
}

}  // namespace
}  // namespace moxie
