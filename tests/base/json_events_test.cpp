// SPDX-License-Identifier: Apache-2.0
// The reader's strictness, text by text.
#include "base/json_events.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/json.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

std::optional<Json> accepted(std::string_view text) {
  try {
    return Json::parse(text, "memory");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_EQ(test::code_of(error), "MOXIE-C003");
    return std::nullopt;
  }
}

TEST(JsonEvents, AcceptsWhatTheStandardAllows) {
  for (const std::string_view text :
       {" {} ", "\t[\r\n]\n", "0", "-0", "1e5", "1E+5", "1.5e-3", "0.0", "-0.5", "\"\"", "true",
        "false", "null", R"("\"\\\/\b\f\n\r\t\u00e9\uD83D\uDE00")", "[1,2 , 3]", "\"\x7F\"",
        "\xEF\xBB\xBF{}"}) {
    EXPECT_TRUE(accepted(text)) << text;
  }
}

TEST(JsonEvents, RefusesWhatTheStandardForbids) {
  for (const std::string_view text : {"",
                                      " ",
                                      "{",
                                      "}",
                                      "[",
                                      "]",
                                      "[1,]",
                                      "[,1]",
                                      "[1 2]",
                                      "{,}",
                                      R"({"a"})",
                                      R"({"a":})",
                                      R"({"a":1,})",
                                      "{a:1}",
                                      "{'a':1}",
                                      R"({"a":1 "b":2})",
                                      "{1:2}",
                                      "[1}",
                                      "{]",
                                      "01",
                                      "-",
                                      "-a",
                                      "1.",
                                      ".5",
                                      "1.e5",
                                      "1e",
                                      "1e+",
                                      "+1",
                                      "0x10",
                                      "1_000",
                                      "Infinity",
                                      "NaN",
                                      "-Infinity",
                                      "nul",
                                      "nulL",
                                      "True",
                                      "truefalse",
                                      "/* c */ 1",
                                      "// c\n1",
                                      "\"",
                                      "\"abc",
                                      R"("\x41")",
                                      R"("\u12")",
                                      R"("\u12G4")",
                                      R"("\u 123")",
                                      R"("\u+123")",
                                      R"("\)",
                                      "\"a\nb\"",
                                      "\"a\tb\"",
                                      "'a'",
                                      "\v1",
                                      "\f1",
                                      "1e400",
                                      "-1e400"}) {
    EXPECT_FALSE(accepted(text)) << text;
  }
}

TEST(JsonEvents, RefusesTextAfterTheDocument) {
  for (const std::string_view text : {"{} {}", "{}x", "1 2", "null,", "[]]", "{}\xEF\xBB\xBF"}) {
    EXPECT_FALSE(accepted(text)) << text;
  }
}

TEST(JsonEvents, TakesNulForAByteLikeAnyOther) {  // and not for the end of the text
  using namespace std::string_view_literals;
  for (const std::string_view text :
       {"{}\0"sv, "{}\0garbage"sv, "\0{}"sv, "[1\0]"sv, "\"a\0b\""sv, "{\"a\0\":1}"sv}) {
    EXPECT_FALSE(accepted(text));
  }
  EXPECT_EQ(accepted(R"("a\u0000b")")->as_string(), "a\0b"sv);
}

TEST(JsonEvents, DecodesEscapesToUtf8) {
  EXPECT_EQ(accepted(R"("\u0041\u00e9\u20AC\uD83D\uDE00\/")")->as_string(),
            "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80/");
  for (const std::string_view lone :
       {R"("\uD800")", R"("\uDC00")", R"("\uD800x")", R"("\uD800\n")", R"("\uD800\u0041")",
        R"("\uDE00\uD83D")", R"("\uD83D\uD83D")"}) {
    EXPECT_FALSE(accepted(lone)) << lone;
  }
}

TEST(JsonEvents, RefusesBadUtf8) {
  for (const std::string_view bytes :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC3", "\xC3(", "\xE0\x80\x80", "\xE0\x9F\xBF",
        "\xE2\x82", "\xE2(\xA1", "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x80\x80\x80",
        "\xF0\x8F\xBF\xBF", "\xF0\x9F\x98", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFE",
        "\xFF"}) {
    EXPECT_FALSE(accepted('"' + std::string(bytes) + '"'));
    EXPECT_FALSE(accepted('"' + std::string(bytes)));
  }
  for (const std::string_view bytes :
       {"\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBF",
        "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(accepted('"' + std::string(bytes) + '"')->as_string(), bytes);
  }
}

TEST(JsonEvents, GivesNumbersTooLargeForIntegersAsReals) {
  EXPECT_EQ(accepted("18446744073709551616")->as_double(), 18446744073709551616.0);
  EXPECT_EQ(accepted("18446744073709551616")->as_unsigned(7), 7U);
  EXPECT_EQ(accepted("-9223372036854775809")->as_double(), -9223372036854775808.0);
  EXPECT_EQ(accepted("1e2")->as_unsigned(7), 7U);  // a real, whatever its value
}

TEST(JsonEvents, NamesTheByteAndTheOrigin) {
  const Error error = test::refusal_of([] { Json::parse(R"({"a": tru})", "folder/config.json"); });
  EXPECT_NE(std::string(error.what()).find("byte 10"), std::string::npos) << error.what();
  EXPECT_NE(std::string(error.what()).find("folder/config.json"), std::string::npos)
      << error.what();
}

}  // namespace
}  // namespace moxie
