// SPDX-License-Identifier: Apache-2.0
// Every small change to a valid file either leaves a file whose tensors obey all laws, or is
// refused.
#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/safetensors_header.hpp"
#include "checkpoint/shard_index.hpp"
#include "moxie/status.hpp"
#include "support/header_laws.hpp"
#include "support/safetensors_bytes.hpp"

namespace moxie {
namespace {

std::string valid_file() {
  return test::safetensors_bytes(
      test::header_of({R"("__metadata__":{"f":"pt"})", test::entry("b", "BF16", "2,1", 0, 4),
                       test::entry(R"(a\n\u00e9)", "F4", "4", 4, 6),
                       test::entry("s", "U8", "", 6, 7)}),
      "1234567");
}
constexpr std::string_view kValidIndex =
    R"({"metadata":{"total_size":7},"weight_map":{"a":"s1","b":"s2","c":"s1"}})";

struct Count {
  int accepted = 0;
  int refused = 0;
};

// Accepted and lawful, or refused as bad input; any other exception ends the test.
void judge_file(const std::string& file, Count& count) {
  const auto bytes = std::as_bytes(std::span(file));
  try {
    const SafetensorsHeader header = read_safetensors_header(bytes, "memory");
    ASSERT_EQ(test::broken_law(header, bytes), "") << file;
    ++count.accepted;
  } catch (const Error& error) {
    ASSERT_EQ(error.code(), ErrorCode::input) << error.what();
    ++count.refused;
  }
}
void judge_index(const std::string& text, Count& count) {
  try {
    ASSERT_EQ(test::broken_law(read_shard_index(text, "memory")), "") << text;
    ++count.accepted;
  } catch (const Error& error) {
    ASSERT_EQ(error.code(), ErrorCode::input) << error.what();
    ++count.refused;
  }
}

// Every byte replaced by every value, every byte removed, and every value inserted everywhere.
template <class Judge>
Count judge_all_edits(const std::string& text, std::size_t positions, const Judge& judge) {
  Count count;
  for (std::size_t at = 0; at < positions; ++at) {
    std::string edited = text;
    for (int value = 0; value < 256; ++value) {
      edited[at] = static_cast<char>(value);
      judge(edited, count);
    }
    edited = text;
    judge(edited.erase(at, 1), count);
    for (int value = 0; value < 256; ++value) {
      edited = text;
      judge(edited.insert(at, 1, static_cast<char>(value)), count);
    }
  }
  return count;
}

TEST(Mutation, AnyByteOfAHeaderMayChange) {
  const std::string file = valid_file();
  const Count count = judge_all_edits(file, file.size() - 7, judge_file);
  EXPECT_GT(count.accepted, 1000) << "letters of names and metadata may change";
  EXPECT_GT(count.refused, 50000);
}

TEST(Mutation, AHeaderMayGrowOrShrinkWithItsLengthField) {
  const std::string file = valid_file();
  const std::string header = file.substr(8, file.size() - 8 - 7);
  const Count count =
      judge_all_edits(header, header.size(), [](const std::string& edited, Count& counted) {
        judge_file(test::safetensors_bytes(edited, "1234567"), counted);
      });
  EXPECT_GT(count.accepted, 1000);
  EXPECT_GT(count.refused, 50000);
}

TEST(Mutation, AFileMayEndAnywhere) {
  const std::string file = valid_file();
  Count count;
  for (std::size_t bytes = 0; bytes <= file.size(); ++bytes)
    judge_file(file.substr(0, bytes), count);
  EXPECT_EQ(count.accepted, 1) << "the whole file";
  const std::string header = file.substr(8, file.size() - 8 - 7);
  for (std::size_t bytes = 0; bytes < header.size(); ++bytes) {
    judge_file(test::safetensors_bytes(header.substr(0, bytes), "1234567"), count);
  }
  EXPECT_EQ(count.accepted, 1) << "no shorter header";
}

TEST(Mutation, SeveralBytesMayChangeAtOnce) {
  const std::string file = valid_file();
  const std::string alphabet = "0123456789{}[]\",:\\ -.eEtfnU8F4BF16";
  std::mt19937 random(20240607);
  Count count;
  for (int round = 0; round < 100000; ++round) {
    std::string edited = file;
    for (unsigned i = 0, edits = 2 + random() % 4; i < edits; ++i) {
      edited[8 + random() % (file.size() - 15)] = alphabet[random() % alphabet.size()];
    }
    judge_file(edited, count);
  }
  EXPECT_GT(count.accepted, 100);
  EXPECT_GT(count.refused, 10000);
}

TEST(Mutation, AnyByteOfAnIndexMayChange) {
  const std::string text(kValidIndex);
  const Count count = judge_all_edits(text, text.size(), judge_index);
  EXPECT_GT(count.accepted, 1000);
  EXPECT_GT(count.refused, 20000);
  Count shorter;
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes)
    judge_index(text.substr(0, bytes), shorter);
  EXPECT_EQ(shorter.accepted, 0);
}

}  // namespace
}  // namespace moxie
