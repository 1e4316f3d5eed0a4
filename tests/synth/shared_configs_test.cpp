// SPDX-License-Identifier: Apache-2.0
// The named configs against the published files.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "moxie/synth.hpp"
#include "support/temp_folder.hpp"

namespace moxie {
namespace {

void expect_as_published(std::string_view model, const std::string& file) {
  const std::filesystem::path path = std::string(MOXIE_SHARED_DIR) + "/data/configs/" + file;
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

}  // namespace
}  // namespace moxie
