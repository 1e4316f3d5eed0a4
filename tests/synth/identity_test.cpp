// SPDX-License-Identifier: Apache-2.0
// The same options give the same bytes: on every run, for any number of threads, on every machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "base/hash.hpp"
#include "small_checkpoint.hpp"

namespace moxie {
namespace {

using test::data_of;
using test::small_options;
using test::synthesised;
using test::TempFolder;

// Every file of a folder by name.
std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files[entry.path().filename().string()] = test::read_bytes(entry.path());
  }
  return files;
}

// Sets the number of threads for one scope.
class Threads {
 public:
  explicit Threads(const char* count) {
    if (const char* before = std::getenv("OMP_NUM_THREADS")) before_ = before;
    ::setenv("OMP_NUM_THREADS", count, 1);
  }
  ~Threads() {
    if (before_.empty()) {
      ::unsetenv("OMP_NUM_THREADS");
    } else {
      ::setenv("OMP_NUM_THREADS", before_.c_str(), 1);
    }
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  std::string before_;
};

TEST(SynthIdentity, RunsAndThreadCountsGiveTheSameFiles) {
  const TempFolder folder;
  SynthOptions options;
  options.config = synth_config("tiny");  // 2.1 MB: several pieces per batch
  options.num_layers = 2;
  for (const char* threads : {"1", "2", "7"}) {
    const Threads scope(threads);
    synthesise(folder.path() / threads, options);
  }
  synthesise(folder.path() / "again", options);
  const auto expected = files_of(folder.path() / "again");
  EXPECT_EQ(expected.size(), 4U);
  for (const char* threads : {"1", "2", "7"}) {
    EXPECT_TRUE(files_of(folder.path() / threads) == expected) << threads << " threads";
  }
}

TEST(SynthIdentity, SeedsDifferInEveryRandomTensor) {
  const TempFolder folder;
  auto options = small_options(BlockFormat::nvfp4);
  const auto first = synthesised(folder, options, "first");
  options.seed = 8;
  const auto second = synthesised(folder, options, "second");
  for (const TensorInfo& tensor : first.tensors()) {
    const auto a = test::bytes_of(first, tensor.name);
    const auto b = test::bytes_of(second, tensor.name);
    EXPECT_FALSE(std::ranges::equal(a, b)) << tensor.name;
  }
}

TEST(SynthIdentity, AnExpertHasTheSameBytesHoweverManyItHasBesideIt) {
  const TempFolder folder;
  auto options = small_options(BlockFormat::nvfp4);
  const auto few = synthesised(folder, options, "few");
  options.experts = 5;
  options.num_layers = 3;
  const auto many = synthesised(folder, options, "many");
  for (const TensorInfo& tensor : few.tensors()) {
    if (tensor.name.find("experts") == std::string::npos) continue;
    EXPECT_TRUE(
        std::ranges::equal(test::bytes_of(few, tensor.name), test::bytes_of(many, tensor.name)))
        << tensor.name;
  }
}

struct Golden {
  BlockFormat format;
  DialectKind dialect;
  Pattern pattern;
  std::string_view checksum;  // xxh3_128 of all tensor data
};

// A change here changes every checkpoint that was made from a seed. The dialects have the same
// data, but for reciprocal scalars.
constexpr std::array kGolden{
    Golden{BlockFormat::mxfp4, DialectKind::deepseek, Pattern::normal,
           "8fcd687999f6ffe1c57717b7d2ebb0bf"},
    Golden{BlockFormat::mxfp4, DialectKind::deepseek, Pattern::outliers,
           "ef2d930c69a789d9820d80ee8e8d01f4"},
    Golden{BlockFormat::mxfp4, DialectKind::deepseek, Pattern::monotonic,
           "d68b876fa62578d656059320998bee7e"},
    Golden{BlockFormat::mxfp4, DialectKind::deepseek, Pattern::constant,
           "c31bad13ee89e31273eb6b6629b74b33"},
    Golden{BlockFormat::nvfp4, DialectKind::deepseek, Pattern::normal,
           "9de589f6a923d8765674df1a30daee9e"},
    Golden{BlockFormat::nvfp4, DialectKind::deepseek, Pattern::outliers,
           "3cb0a08c3254f8d65d63b90174640b62"},
    Golden{BlockFormat::nvfp4, DialectKind::deepseek, Pattern::monotonic,
           "78e9afe465576cf4fbdbcf944b86ece0"},
    Golden{BlockFormat::nvfp4, DialectKind::deepseek, Pattern::constant,
           "45dd4139f7076654e1ae453e01b1b11f"},
    Golden{BlockFormat::nvfp4, DialectKind::modelopt, Pattern::normal,
           "9de589f6a923d8765674df1a30daee9e"},
    Golden{BlockFormat::nvfp4, DialectKind::modelopt, Pattern::outliers,
           "3cb0a08c3254f8d65d63b90174640b62"},
    Golden{BlockFormat::nvfp4, DialectKind::modelopt, Pattern::monotonic,
           "78e9afe465576cf4fbdbcf944b86ece0"},
    Golden{BlockFormat::nvfp4, DialectKind::modelopt, Pattern::constant,
           "45dd4139f7076654e1ae453e01b1b11f"},
    Golden{BlockFormat::mxfp4, DialectKind::compressed_tensors, Pattern::normal,
           "8fcd687999f6ffe1c57717b7d2ebb0bf"},
    Golden{BlockFormat::mxfp4, DialectKind::compressed_tensors, Pattern::outliers,
           "ef2d930c69a789d9820d80ee8e8d01f4"},
    Golden{BlockFormat::mxfp4, DialectKind::compressed_tensors, Pattern::monotonic,
           "d68b876fa62578d656059320998bee7e"},
    Golden{BlockFormat::mxfp4, DialectKind::compressed_tensors, Pattern::constant,
           "c31bad13ee89e31273eb6b6629b74b33"},
    Golden{BlockFormat::mxfp4, DialectKind::quark, Pattern::normal,
           "8fcd687999f6ffe1c57717b7d2ebb0bf"},
    Golden{BlockFormat::mxfp4, DialectKind::quark, Pattern::outliers,
           "ef2d930c69a789d9820d80ee8e8d01f4"},
    Golden{BlockFormat::mxfp4, DialectKind::quark, Pattern::monotonic,
           "d68b876fa62578d656059320998bee7e"},
    Golden{BlockFormat::mxfp4, DialectKind::quark, Pattern::constant,
           "c31bad13ee89e31273eb6b6629b74b33"},
    Golden{BlockFormat::nvfp4, DialectKind::compressed_tensors, Pattern::normal,
           "b53655bc5000e67c5f59f3ca1fe56bb3"},
    Golden{BlockFormat::nvfp4, DialectKind::compressed_tensors, Pattern::outliers,
           "f514599b0582f543ae83343c74697aee"},
    Golden{BlockFormat::nvfp4, DialectKind::compressed_tensors, Pattern::monotonic,
           "6a6aa1faaecfd2da1edadbd7c74f03c6"},
    Golden{BlockFormat::nvfp4, DialectKind::compressed_tensors, Pattern::constant,
           "45dd4139f7076654e1ae453e01b1b11f"},
};

TEST(SynthIdentity, BytesAreThoseOfEveryOtherMachine) {
  const TempFolder folder;
  for (std::size_t i = 0; i < kGolden.size(); ++i) {
    const Golden& golden = kGolden[i];
    const auto checkpoint = synthesised(
        folder, small_options(golden.format, golden.dialect, golden.pattern), std::to_string(i));
    EXPECT_EQ(hash_hex(data_of(checkpoint)), golden.checksum)
        << name_of(golden.format) << " " << name_of(golden.dialect) << " "
        << name_of(golden.pattern);
  }
}

}  // namespace
}  // namespace moxie
