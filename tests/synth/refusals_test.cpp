// SPDX-License-Identifier: Apache-2.0
// What is refused, and that refusals and interruptions leave nothing behind.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "small_checkpoint.hpp"

namespace moxie {
namespace {

using test::small_options;
using test::TempFolder;

SynthOptions with(const std::function<void(SynthOptions&)>& change) {
  SynthOptions options = small_options(BlockFormat::mxfp4);
  change(options);
  return options;
}

// The finding of a refusal that wrote nothing.
Finding refusal_of(const SynthOptions& options, ErrorCode code) {
  const TempFolder folder;
  try {
    synthesise(folder.path() / "model", options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    return error.findings().front();
  }
  ADD_FAILURE() << "not refused";
  return {};
}

TEST(SynthRefusals, WidthsBetweenScaleGroupsNameTheAxisAndTheUnit) {  // C-01
  const auto refused = [](const std::function<void(SynthOptions&)>& change) {
    Finding finding = refusal_of(with(change), ErrorCode::unsupported);
    EXPECT_EQ(finding.code, "MOXIE-P003");
    return finding;
  };
  const Finding hidden = refused([](auto& options) { options.hidden = 48; });
  EXPECT_EQ(hidden.where.axis, "hidden");
  EXPECT_NE(hidden.expected.find("multiple of 32"), std::string::npos);
  EXPECT_EQ(hidden.got, "48");
  const Finding inter = refused([](auto& options) {
    options.format = BlockFormat::nvfp4;
    options.inter = 40;
  });
  EXPECT_EQ(inter.where.axis, "moe_inter");
  EXPECT_NE(inter.expected.find("multiple of 16"), std::string::npos);
}

TEST(SynthRefusals, SizesOutOfRangeNameTheAxis) {
  const auto refused = [](const std::function<void(SynthOptions&)>& change) {
    Finding finding = refusal_of(with(change), ErrorCode::usage);
    EXPECT_EQ(finding.code, "MOXIE-U003");
    return finding;
  };
  EXPECT_EQ(refused([](auto& options) { options.hidden = 0; }).got, "0");
  EXPECT_EQ(refused([](auto& options) { options.experts = 0; }).where.axis, "experts");
  EXPECT_EQ(refused([](auto& options) { options.num_layers = 0; }).where.axis, "layers");
  EXPECT_EQ(refused([](auto& options) { options.num_layers = 100000; }).where.axis, "layers");
  EXPECT_EQ(refused([](auto& options) { options.hidden = ~0ULL - 31; }).where.axis, "hidden");
  EXPECT_EQ(refused([](auto& options) { options.experts = ~0ULL; }).where.axis, "experts");
}

TEST(SynthRefusals, WhatNoDiskHoldsIsRefusedBeforeTheFirstByte) {
  const Finding finding = refusal_of(with([](auto& options) {
                                       options.hidden = 262'144;
                                       options.inter = 262'144;
                                       options.experts = 1024;
                                     }),
                                     ErrorCode::environment);
  EXPECT_EQ(finding.code, "MOXIE-E002");
  EXPECT_GT(finding.expected.size(), finding.got.size()) << "more digits are asked for";
}

TEST(SynthRefusals, ModeloptHasNoMxfp4) {
  const Finding finding =
      refusal_of(small_options(BlockFormat::mxfp4, DialectKind::modelopt), ErrorCode::unsupported);
  EXPECT_EQ(finding.code, "MOXIE-P010");
  EXPECT_EQ(finding.got, "modelopt with mxfp4");
}

TEST(SynthRefusals, QuarkHasNoNvfp4) {
  const Finding finding =
      refusal_of(small_options(BlockFormat::nvfp4, DialectKind::quark), ErrorCode::unsupported);
  EXPECT_EQ(finding.code, "MOXIE-P010");
  EXPECT_EQ(finding.got, "quark with nvfp4");
  EXPECT_EQ(finding.expected, "quark with mxfp4");
}

TEST(SynthRefusals, AConfigWithoutTheSizesIsRefusedByWhatItLacks) {
  const Finding finding = refusal_of(with([](auto& options) {
                                       options.config.erase("hidden_size");
                                       options.config.set("num_experts_per_tok", 0);
                                     }),
                                     ErrorCode::unsupported);
  EXPECT_EQ(finding.code, "MOXIE-P010");
  EXPECT_EQ(finding.got, "none for hidden_size, num_experts_per_tok");
}

TEST(SynthRefusals, AnotherFamilyNeedsTheModeloptDialect) {
  const auto qwen = [](std::optional<DialectKind> dialect) {
    return with([&](auto& options) {
      options.config.set("model_type", "qwen3_moe");
      options.dialect = dialect;
    });
  };
  for (const auto dialect : {std::optional<DialectKind>(), std::optional(DialectKind::deepseek)}) {
    const Finding finding = refusal_of(qwen(dialect), ErrorCode::unsupported);
    EXPECT_EQ(finding.code, "MOXIE-P010");
    EXPECT_NE(finding.hint.find("--dialect modelopt"), std::string::npos);
  }
}

TEST(SynthRefusals, AnEmptyConfigIsRefused) {
  EXPECT_EQ(
      refusal_of(with([](auto& options) { options.config = Json(); }), ErrorCode::unsupported).code,
      "MOXIE-P010");
}

TEST(SynthRefusals, AnOutputThatExistsStaysAsItIs) {
  const TempFolder folder;
  const auto file = folder.write("model/notes.txt", "keep");
  for (const auto& out : {folder.path() / "model", file}) {
    try {
      synthesise(out, small_options(BlockFormat::mxfp4));
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      EXPECT_EQ(error.findings().front().code, "MOXIE-U002");
    }
  }
  EXPECT_EQ(test::read_bytes(file), "keep");
}

TEST(SynthRefusals, AnEmptyFolderIsTakenWithOrWithoutATrailingSlash) {
  const TempFolder folder;
  for (const std::string name : {"plain", "slash/"}) {
    std::filesystem::create_directory(folder.path() / name);
    synthesise(folder.path() / name, small_options(BlockFormat::mxfp4));
    EXPECT_TRUE(std::filesystem::exists(folder.path() / name / "config.json"));
  }
}

TEST(SynthRefusals, InterruptionLeavesNothingBehind) {
  for (const int allowed : {0, 1, 2}) {
    const TempFolder folder;
    auto options = small_options(BlockFormat::mxfp4);
    int calls = 0;
    options.progress = [&](std::uint64_t, std::uint64_t) { return calls++ < allowed; };
    try {
      synthesise(folder.path() / "model", options);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::interrupted);
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << allowed << " calls";
  }
}

TEST(SynthRefusals, ProgressRisesToTheTotal) {
  const TempFolder folder;
  auto options = small_options(BlockFormat::nvfp4);
  std::uint64_t last = 0;
  std::uint64_t announced = 0;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_TRUE(announced == 0 || announced == total);
    last = done;
    announced = total;
    return true;
  };
  const auto report = synthesise(folder.path() / "model", options);
  EXPECT_EQ(last, report.bytes);
  EXPECT_EQ(announced, report.bytes);
}

}  // namespace
}  // namespace moxie
