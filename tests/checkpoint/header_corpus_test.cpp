// SPDX-License-Identifier: Apache-2.0
// Replays the fuzzer's corpus, so that what it once found stays fixed without a fuzzer.
#include <gtest/gtest.h>

#include <filesystem>
#include <span>
#include <string>

#include "checkpoint/safetensors_header.hpp"
#include "checkpoint/shard_index.hpp"
#include "moxie/status.hpp"
#include "support/header_laws.hpp"
#include "support/temp_folder.hpp"

namespace moxie {
namespace {

TEST(HeaderCorpus, IsRefusedOrObeysAllLaws) {
  int files = 0;
  int headers = 0;
  int indexes = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(MOXIE_SOURCE_DIR "/fuzz/corpus/header")) {
    SCOPED_TRACE(entry.path().filename().string());
    const std::string file = test::read_bytes(entry.path());
    const auto bytes = std::as_bytes(std::span(file));
    ++files;
    bool accepted = false;
    try {
      EXPECT_EQ(test::broken_law(read_safetensors_header(bytes, "memory"), bytes), "");
      accepted = true;
      ++headers;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::input) << error.what();
    }
    EXPECT_EQ(accepted, entry.path().filename().string().starts_with("valid-"));
    try {
      EXPECT_EQ(test::broken_law(read_shard_index(file, "memory")), "");
      ++indexes;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::input) << error.what();
    }
  }
  EXPECT_GE(files, 15);
  EXPECT_GE(headers, 5);
  EXPECT_GE(indexes, 1);
}

}  // namespace
}  // namespace moxie
