// SPDX-License-Identifier: Apache-2.0
// The numeric stage as a part of verify: when a proof is written, how it stops, and what it says of
// a source that holds values that are no numbers.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "moxie/verify.hpp"
#include "support/refusal.hpp"
#include "support/whole_set.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::quarter_tiny;
using test::SyntheticWhole;

class NumericStage : public testing::Test {
 protected:
  NumericStage() : model_(quarter_tiny()) {}

  // Puts bytes into the source, which the model sees.
  void plant(const std::string& tensor, std::uint64_t at, const std::string& bytes) const {
    const Checkpoint& source = (*model_).checkpoint;
    const TensorInfo* found = source.find(tensor);
    std::fstream stream(source.files()[found->file].path,
                        std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(static_cast<std::streamoff>(found->offset + at));
    stream << bytes;
  }

  SyntheticWhole model_;
};

TEST_F(NumericStage, AProofIsWrittenOnlyWhenTheRestPassesToo) {
  const fs::path set = model_.pack(2);
  const fs::path proof = set / "moxie-proof.json";
  const auto verify = [&](const FurtherCheck& further) {
    return verify_packed(set, *model_, {}, further);
  };
  EXPECT_TRUE(verify([&](const VerifyReport& bytes) {
                EXPECT_TRUE(bytes.passed);
                EXPECT_FALSE(fs::exists(proof)) << "not before the rest has passed";
                return true;
              }).passed);
  EXPECT_TRUE(fs::exists(proof));
  verify([](const VerifyReport&) { return false; });
  EXPECT_FALSE(fs::exists(proof)) << "an older one";
  verify([](const VerifyReport&) { return false; });
  EXPECT_FALSE(fs::exists(proof)) << "a new one";

  ASSERT_TRUE(verify({}).passed);
  const auto fail = [&](ErrorCode code) {
    EXPECT_THROW(verify([&](const VerifyReport&) -> bool {
                   throw Error(code, {.code = "MOXIE-V011", .message = "a test"});
                 }),
                 Error);
  };
  fail(ErrorCode::interrupted);
  EXPECT_TRUE(fs::exists(proof)) << "a stop says nothing of the set";
  fail(ErrorCode::unsupported);
  EXPECT_TRUE(fs::exists(proof)) << "nor does a question that can not be asked";
  fail(ErrorCode::input);
  EXPECT_FALSE(fs::exists(proof));

  ASSERT_TRUE(verify({}).passed);
  const std::string tensor = "layers.0.attn.wq_b.weight";
  const test::PlantedByte planted(set, 0, tensor, 0, 0x77);
  fail(ErrorCode::unsupported);
  EXPECT_FALSE(fs::exists(proof)) << "the bytes had not passed";
}

TEST_F(NumericStage, StopsWhenAskedToAfterAnyStep) {
  const fs::path set = model_.pack(3);
  std::uint64_t last = 0;
  std::uint64_t steps = 0;
  const PaddingCheck check =
      check_padding(set, *model_, {.progress = [&](std::uint64_t done, std::uint64_t total) {
                      EXPECT_EQ(done, last + 1);
                      last = done;
                      steps = total;
                      return true;
                    }});
  EXPECT_TRUE(check.passed);
  EXPECT_EQ(last, steps);
  ASSERT_GT(steps, 40U);
  for (const std::uint64_t stop : {std::uint64_t{1}, steps / 2, steps}) {
    const Error error = test::refusal_of([&] {
      check_padding(set, *model_,
                    {.progress = [&](std::uint64_t done, std::uint64_t) { return done < stop; }});
    });
    EXPECT_EQ(error.code(), ErrorCode::interrupted);
  }
}

// E4M3 and bf16 NaN, infinity in a sink: each is named, none is called a fault of the set.
TEST_F(NumericStage, ValuesThatTheSourceDoesNotHaveAreTheSources) {
  plant("layers.0.attn.wq_b.weight", 40, "\x7F");
  plant("head.weight", 6, "\xC0\x7F");
  plant("layers.0.attn.wo_b.weight", 3, "\xFF");
  plant("layers.0.ffn.shared_experts.w2.weight", 70, "\x7F");
  const fs::path set = model_.pack(3);
  EXPECT_TRUE(verify_packed(set, *model_).passed);
  const PaddingCheck check = check_padding(set, *model_);
  EXPECT_TRUE(check.passed);
  std::vector<std::string> tensors;
  for (const Finding& finding : check.findings) {
    EXPECT_EQ(finding.code, "MOXIE-K018") << to_string(finding);
    EXPECT_EQ(finding.severity, Severity::warning);
    tensors.push_back(finding.where.tensor);
  }
  EXPECT_EQ(tensors,
            (std::vector<std::string>{"layers.0.attn.wq_b.weight", "layers.0.attn.wo_b.weight",
                                      "layers.0.ffn.shared_experts.w2.weight", "head.weight"}));
  EXPECT_NE(check.findings[0].got.find("row 1, column 8"), std::string::npos)
      << to_string(check.findings[0]);

  // Beside them what the set does wrong is found: another head's row, another token's.
  for (const std::string tensor : {"layers.0.attn.wq_b.weight", "head.weight"}) {
    const test::PlantedByte planted(set, 1, tensor, 1, 0x31);
    const PaddingCheck wrong = check_padding(set, *model_);
    EXPECT_FALSE(wrong.passed) << tensor;
    EXPECT_EQ(wrong.findings.back().code.substr(0, 8), "MOXIE-V0");
  }
}

TEST_F(NumericStage, FilesThatWerePackedAndAreGoneAreAFault) {
  const fs::path set = model_.pack(2);
  const auto forget = [&](const std::string& name, bool scope) {
    for (const unsigned rank : {0U, 1U}) {
      const fs::path folder = test::rank_folder(set, rank);
      fs::remove(folder / name);
      const fs::path path = folder / "files.json";
      const Json list = Json::parse(test::read_bytes(path), path.string());
      Json files = Json::object();
      for (const JsonMember& file : list.find("files")->members()) {
        if (file.key != name) files.set(file.key, file.value);
      }
      Json other = Json::object().set("plan_hash", *list.find("plan_hash"));
      if (scope) other.set("layers", *list.find("layers")).set("top", *list.find("top"));
      std::ofstream(path) << other.set("files", std::move(files)).dump();
    }
  };
  const auto codes = [&] {
    std::vector<std::string> found;
    for (const Finding& finding : verify_packed(set, *model_).findings) {
      if (finding.severity == Severity::error) found.push_back(finding.code);
    }
    return found;
  };
  EXPECT_TRUE(codes().empty());
  forget("model-top.safetensors", true);
  EXPECT_EQ(codes(), std::vector<std::string>{"MOXIE-V004"});
  forget("model-00001.safetensors", true);
  EXPECT_EQ(codes(), (std::vector<std::string>{"MOXIE-V004", "MOXIE-V004"}));
  forget("model-00001.safetensors", false);
  EXPECT_TRUE(codes().empty()) << "sets that do not say what was packed hold what they hold";

  pack_to_folder(*model_, make_plan(*model_, {.tp = 2}), {.out = model_ / "some", .layers = {0}});
  EXPECT_TRUE(verify_packed(model_ / "some", *model_).passed);
}

}  // namespace
}  // namespace moxie
