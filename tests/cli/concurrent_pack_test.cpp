// SPDX-License-Identifier: Apache-2.0
// Two packs into one folder at the same time leave one whole set, whoever wins.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "cli/command.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie {
namespace {

using test::expect_success;
using test::Launch;
using test::Outcome;
using test::Words;

class ConcurrentPack : public testing::Test {
 protected:
  ConcurrentPack() : model_(test::write_tiny(folder_.path() / "model", {.layers = 3}).string()) {}

  // Both exit codes, first and second.
  std::string pack_twice(const std::string& first, const std::string& second) const {
    std::filesystem::remove_all(out_);
    const std::string pack = std::string(MOXIE_CLI_PATH) + " pack " + model_ + " --out " + out_;
    const Launch launch{.command = {"/bin/sh", "-c",
                                    pack + " " + first + " >/dev/null 2>&1 & one=$!; " + pack +
                                        " " + second + " >/dev/null 2>&1; two=$?; wait $one; " +
                                        "echo $? $two"}};
    return test::run(launch).out;
  }
  void expect_whole_set() const { expect_success({"verify", out_, "--against", model_}); }

  test::TempFolder folder_;
  std::string model_;
  std::string out_ = (folder_.path() / "packed").string();
};

TEST_F(ConcurrentPack, OfTwoPlansOneIsRefusedAndTheOtherIsWhole) {
  for (int round = 0; round < 8; ++round) {
    const std::string codes = pack_twice("--tp 2", "--tp 3");
    EXPECT_TRUE(codes == "0 2\n" || codes == "2 0\n") << codes;
    expect_whole_set();
  }
}

TEST_F(ConcurrentPack, OfTheSamePlanOneIsRefusedAndTheOtherIsWhole) {
  for (int round = 0; round < 8; ++round) {
    const std::string codes = pack_twice("--tp 3", "--tp 3");
    EXPECT_TRUE(codes == "0 2\n" || codes == "2 0\n") << codes;
    expect_whole_set();
  }
}

TEST_F(ConcurrentPack, OfTwoRanksGivesBoth) {
  for (int round = 0; round < 8; ++round) {
    EXPECT_EQ(pack_twice("--tp 2 --rank 0", "--tp 2 --rank 1"), "0 0\n");
    expect_whole_set();
  }
}

}  // namespace
}  // namespace moxie
