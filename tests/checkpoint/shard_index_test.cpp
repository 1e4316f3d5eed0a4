// SPDX-License-Identifier: Apache-2.0
// The index by itself: what is kept, what is ignored, what is refused.
#include "checkpoint/shard_index.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/refusal.hpp"

namespace moxie {
namespace {

ShardIndex read(std::string_view text) { return read_shard_index(text, "dir/index.json"); }
std::string code(std::string_view text) {
  const Error error = test::refusal_of([&] { read(text); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(error.findings().front().where.file, "dir/index.json");
  return test::code_of(error);
}

TEST(ShardIndex, MapsTensorsToShardsInOrderOfFirstMention) {
  const ShardIndex index = read(
      R"({"metadata": {"total_size": 42},
          "weight_map": {"a": "s2", "b": "s1", "c": "s2", "d": "s1"}})");
  EXPECT_EQ(index.shards, (std::vector<std::string>{"s2", "s1"}));
  ASSERT_EQ(index.weight_map.size(), 4U);
  EXPECT_EQ(index.weight_map[3].tensor, "d");
  EXPECT_EQ(index.weight_map[3].shard, 1U);
  EXPECT_EQ(index.total_size, 42U);
}

TEST(ShardIndex, IgnoresEverythingElse) {
  const ShardIndex index = read(R"({
    "format": "pt", "version": [1, {"weight_map": {"x": "y"}}], "total_size": 7,
    "metadata": {"weight_map": {"x": "y"}, "note": null, "nested": {"total_size": 8}, "list": [9]},
    "weight_map": {"a": "s"}, "extra": {"b": "t"}})");
  EXPECT_EQ(index.shards, (std::vector<std::string>{"s"}));
  EXPECT_EQ(index.weight_map.size(), 1U);
  EXPECT_EQ(index.total_size, std::nullopt);
}

TEST(ShardIndex, TakesOnlyAWholeNumberForTheTotal) {
  for (const std::string_view total :
       {"\"42\"", "42.0", "-42", "null", "[42]", "{\"total_size\":42}"}) {
    const std::string text =
        R"({"metadata":{"total_size":)" + std::string(total) + R"(},"weight_map":{}})";
    EXPECT_EQ(read(text).total_size, std::nullopt) << total;
  }
  EXPECT_EQ(read(R"({"a":{"total_size":1},"metadata":[7],"weight_map":{}})").total_size,
            std::nullopt);
}

TEST(ShardIndex, RefusesAShardOutsideTheFolder) {
  for (const std::string_view name :
       {"", ".", "..", "../x", "/etc/passwd", "a/b", "./a", "a/", R"(a\u0000b)", R"(..\u002fx)"}) {
    EXPECT_EQ(code(R"({"weight_map":{"t":")" + std::string(name) + "\"}}"), "MOXIE-C009") << name;
  }
  EXPECT_EQ(read(R"({"weight_map":{"t":"..a"}})").shards.front(), "..a");
}

TEST(ShardIndex, RefusesATensorThatIsMappedTwice) {
  EXPECT_EQ(code(R"({"weight_map":{"t":"a","u":"a","t":"b"}})"), "MOXIE-C009");
  EXPECT_EQ(code(R"({"weight_map":{"t":"a","t":"a"}})"), "MOXIE-C009");
  EXPECT_EQ(code(R"({"weight_map":{"t":"a"},"weight_map":{"u":"a"}})"), "MOXIE-C009");
}

TEST(ShardIndex, RefusesWhatIsNoMapOfTexts) {
  for (const std::string_view map :
       {"null", "[]", "\"x\"", "1", "true", "-1", "0.5", R"({"t":1})", R"({"t":null})",
        R"({"t":{}})", R"({"t":["a"]})", R"({"t":true})", R"({"t":-1})", R"({"t":0.5})"}) {
    EXPECT_EQ(code(R"({"weight_map":)" + std::string(map) + "}"), "MOXIE-C009") << map;
  }
  for (const std::string_view text :
       {"{}", "null", "[]", "\"x\"", "1", "-1", "0.5", "true", R"([{"weight_map":{}}])",
        R"({"metadata":{"weight_map":{"t":"a"}}})"}) {
    EXPECT_EQ(code(text), "MOXIE-C009") << text;
  }
}

TEST(ShardIndex, RefusesATensorNameWithNul) {
  EXPECT_EQ(code(R"({"weight_map":{"t\u0000":"a"}})"), "MOXIE-C009");
}

TEST(ShardIndex, RefusesWhatIsNoJson) {
  for (const std::string_view text : {"", "{",
                                      R"({"weight_map":{"t":"a"}})"
                                      "x",
                                      R"({"weight_map":{"t":"a",}})"}) {
    EXPECT_EQ(code(text), "MOXIE-C003") << text;
  }
}

}  // namespace
}  // namespace moxie
