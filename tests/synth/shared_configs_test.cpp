// SPDX-License-Identifier: Apache-2.0
// The named configs against the published files.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "moxie/synth.hpp"
#include "support/temp_folder.hpp"

namespace moxie {
namespace {

std::filesystem::path configs() {
  const char* shared = std::getenv("MOXIE_SHARED_DIR");  // NOLINT(concurrency-mt-unsafe)
  return std::filesystem::path(shared != nullptr ? shared : MOXIE_SHARED_DIR) / "data" / "configs";
}

void expect_as_published(std::string_view model, const std::string& file) {
  const std::filesystem::path path = configs() / file;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  const Json published = Json::parse(test::read_bytes(path), file);
  const Json config = synth_config(model);
  EXPECT_EQ(config.members().size(), published.members().size());
  for (const JsonMember& member : published.members()) {
    const Json* value = config.find(member.key);
    ASSERT_NE(value, nullptr) << member.key;
    EXPECT_EQ(value->dump(), member.value.dump()) << member.key;
  }
}

TEST(SynthConfigsShared, FlashEqualsThePublishedConfig) {
  expect_as_published("deepseek-v4-flash", "DeepSeek-V4-Flash.json");
}

TEST(SynthConfigsShared, ProEqualsThePublishedConfig) {
  expect_as_published("deepseek-v4-pro", "DeepSeek-V4-Pro.json");
}

// Every fact of ours is the published one; the method of the quantisation may stand in a file of
// its own, and Kimi's lists noise that is left out.
void expect_facts_of(const Json& config, const Json& published) {
  for (const JsonMember& member : config.members()) {
    if (member.key == "quantization_config") continue;
    const Json* value = published.find(member.key);
    ASSERT_NE(value, nullptr) << member.key;
    if (member.key == "text_config") {
      expect_facts_of(member.value, *value);
    } else {
      EXPECT_EQ(member.value.dump(), value->dump()) << member.key;
    }
  }
}

TEST(SynthConfigsShared, OtherFamiliesHaveThePublishedFacts) {
  const std::filesystem::path folder = configs();
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  for (const auto& [model, file] : {std::pair{"kimi-k2", "Kimi-K2.5-NVFP4"},
                                    {"glm-5", "GLM-5-NVFP4"},
                                    {"qwen3-moe", "Qwen3-235B-A22B-NVFP4"}}) {
    SCOPED_TRACE(model);
    const std::string path = folder.string() + "/" + file + ".json";
    expect_facts_of(synth_config(model), Json::parse(test::read_bytes(path), file));
  }
}

TEST(SynthConfigsShared, GptOssAndV41EqualThePublishedConfigs) {
  expect_as_published("gpt-oss-20b", "gpt-oss-20b.json");
  expect_as_published("gpt-oss-120b", "gpt-oss-120b.json");
  expect_as_published("deepseek-v4.1-flash", "DeepSeek-V4.1-Flash.json");
}

}  // namespace
}  // namespace moxie
