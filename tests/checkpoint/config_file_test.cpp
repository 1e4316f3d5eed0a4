// SPDX-License-Identifier: Apache-2.0
// Configs as Python writes them.
#include "checkpoint/config_file.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "support/refusal.hpp"
#include "support/temp_folder.hpp"

namespace moxie {
namespace {

Json read(std::string_view text) {
  const test::TempFolder folder;
  return read_config_file(folder.write("config.json", text));
}

TEST(ConfigFile, IsNullWhenThereIsNone) {
  const test::TempFolder folder;
  EXPECT_TRUE(read_config_file(folder.path() / "config.json").is_null());
}

TEST(ConfigFile, ReadsTheWordsPythonWritesForNonFiniteNumbersAsNull) {
  const Json config = read(
      R"({"a": NaN, "b": Infinity, "c": -Infinity, "d": [NaN,Infinity,-Infinity,1.5], "e":NaN})");
  for (const std::string_view key : {"a", "b", "c", "e"})
    EXPECT_TRUE(config.find(key)->is_string()) << key;
  ASSERT_EQ(config.find("d")->elements().size(), 4U);
  EXPECT_EQ(config.find("d")->elements()[2].as_string(), "-Infinity");
  EXPECT_EQ(config.find("d")->elements()[3].as_double(), 1.5);
}

TEST(ConfigFile, KeepsThoseWordsInsideTexts) {
  const Json config = read(R"({"NaN": "Infinity \" -Infinity \\", "x": "\\\"NaN"})");
  EXPECT_EQ(config.find("NaN")->as_string(), "Infinity \" -Infinity \\");
  EXPECT_EQ(config.find("x")->as_string(), "\\\"NaN");
}

TEST(ConfigFile, WritesTheWordsBackAsTheSourceHasThem) {
  const test::TempFolder folder;
  const auto text_of = [&](std::string_view text) {
    const auto path = folder.write("config.json", text);
    return config_text(read_config_file(path), path);
  };
  const std::string bare = "{\n  \"a\": [0.0, Infinity],\n  \"b\": -Infinity,\n  \"c\": NaN\n}\n";
  EXPECT_EQ(text_of(bare), bare);
  const std::string quoted = "{\n  \"a\": \"Infinity\",\n  \"b\": -Infinity\n}\n";
  EXPECT_EQ(text_of(quoted), quoted);
  EXPECT_EQ(config_text(Json::object().set("a", "NaN"), {}), "{\n  \"a\": NaN\n}\n");
}

TEST(ConfigFile, RefusesOtherWords) {
  for (const std::string_view word :
       {"nan", "inf", "+Infinity", "--Infinity", "NaNs", "1NaN", "Infinity1", "None"}) {
    const Error error = test::refusal_of([&] { read(R"({"a": )" + std::string(word) + "}"); });
    EXPECT_EQ(error.code(), ErrorCode::input) << word;
    EXPECT_EQ(test::code_of(error), "MOXIE-C003") << word;
  }
}

TEST(ConfigFile, RefusesWhatIsNoObject) {
  for (const std::string_view text : {"[]", "1", "null", "\"x\"", "NaN"}) {
    EXPECT_EQ(test::code_of(test::refusal_of([&] { read(text); })), "MOXIE-C016") << text;
  }
  for (const std::string_view text : {"", "{", R"({"a": 1, "a": 2})", "{} {}"}) {
    EXPECT_EQ(test::code_of(test::refusal_of([&] { read(text); })), "MOXIE-C003") << text;
  }
}

}  // namespace
}  // namespace moxie
