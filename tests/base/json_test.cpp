// SPDX-License-Identifier: Apache-2.0
// The JSON value: what it keeps, what it refuses, and the text it writes.
#include "moxie/json.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "support/refusal.hpp"

namespace moxie {
namespace {

Json parse(std::string_view text) { return Json::parse(text, "memory"); }
std::string refusal(std::string_view text) {
  const Error error = test::refusal_of([&] { parse(text); });
  EXPECT_EQ(error.code(), ErrorCode::input) << text;
  EXPECT_EQ(test::code_of(error), "MOXIE-C003") << text;
  EXPECT_EQ(error.findings().front().where.file, "memory") << text;
  return error.what();
}

TEST(Json, KeepsTheOrderOfKeys) {
  const Json value = parse(R"({"z": 1, "a": 2, "m": {"y": 3, "b": 4}})");
  ASSERT_EQ(value.members().size(), 3U);
  EXPECT_EQ(value.members()[0].key, "z");
  EXPECT_EQ(value.members()[1].key, "a");
  EXPECT_EQ(value.dump_compact(), R"({"z":1,"a":2,"m":{"y":3,"b":4}})");
}

TEST(Json, RefusesDuplicateKeysAtEveryDepth) {
  EXPECT_NE(refusal(R"({"a": 1, "b": 2, "a": 1})").find("duplicate key \"a\""), std::string::npos);
  refusal(R"([{"x": {"k": 1, "k": 1}}])");
  refusal(R"({"a": 1, "\u0061": 2})");  // the same key, written with an escape
  EXPECT_EQ(parse(R"([{"a": 1}, {"a": 2}])").elements().size(), 2U);
  EXPECT_EQ(parse(R"({"a": {"a": 1}})").members().size(), 1U);
}

TEST(Json, KeepsWholeNumbersExactly) {
  EXPECT_EQ(parse("18446744073709551615").as_unsigned(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(parse("-9223372036854775808").number_text(), "-9223372036854775808");
  EXPECT_EQ(parse("9007199254740993").number_text(), "9007199254740993");  // no double holds it
  EXPECT_EQ(parse("-0").as_unsigned(1), 0U);
}

TEST(Json, WritesRealsThatReadBackTheSame) {
  for (const double value :
       {0.1, 1.0 / 3, 1e-300, 6.02214076e23, -0.0, 5e-324, 1.7976931348623157e308, 100.0}) {
    const std::string text = Json(value).dump_compact();
    EXPECT_EQ(parse(text), Json(value)) << text;
    EXPECT_NE(text.find_first_of(".e"), std::string::npos)
        << text << " would read back as an integer";
  }
  EXPECT_EQ(Json(2.0).dump_compact(), "2.0");
  EXPECT_EQ(Json(std::numeric_limits<double>::infinity()).dump_compact(), "null");
}

TEST(Json, AnswersOtherwiseForAnotherKindOrRange) {
  EXPECT_EQ(parse("-1").as_unsigned(7), 7U);
  EXPECT_EQ(parse("1.0").as_unsigned(7), 7U);
  EXPECT_EQ(parse("\"1\"").as_unsigned(7), 7U);
  EXPECT_EQ(parse("true").as_double(2.5), 2.5);
  EXPECT_EQ(parse("-3").as_double(), -3.0);
  EXPECT_EQ(parse("3").as_string("no"), "no");
  EXPECT_TRUE(parse("null").as_bool(true));
  EXPECT_TRUE(parse("5").elements().empty());
  EXPECT_TRUE(parse("5").members().empty());
  EXPECT_EQ(parse("[1]").find("a"), nullptr);
}

TEST(Json, WritesTextThatParsesToTheSameValue) {
  const Json value = parse(R"({
    "text": "quote \" backslash \\ slash \/ newline \n tab \t bell \u0007 nul \u0000 é 😀 \ud83d\ude00",
    "numbers": [0, -1, 18446744073709551615, 0.5, 1e30],
    "words": [true, false, null],
    "nested": [[], {}, [[1, 2], [3]], {"deep": {"deeper": []}}],
    "": "empty key"
  })");
  EXPECT_EQ(parse(value.dump()), value);
  EXPECT_EQ(parse(value.dump_compact()), value);
  EXPECT_EQ(parse(value.dump()).dump(), value.dump());
}

TEST(Json, WritesStableReadableText) {
  Json value;
  value.set("name", "tiny").set("ranks", 3);
  Json sizes = Json::array();
  for (const int size : {704, 704, 640}) sizes.push_back(size);
  value.set("sizes", sizes).set("empty", Json::object()).set("none", Json::array());
  Json rows = Json::array();
  rows.push_back(Json::object().set("rank", 0));
  value.set("rows", rows);
  EXPECT_EQ(value.dump(),
            "{\n"
            "  \"name\": \"tiny\",\n"
            "  \"ranks\": 3,\n"
            "  \"sizes\": [704, 704, 640],\n"
            "  \"empty\": {},\n"
            "  \"none\": [],\n"
            "  \"rows\": [\n"
            "    {\n"
            "      \"rank\": 0\n"
            "    }\n"
            "  ]\n"
            "}");
  EXPECT_EQ(
      value.dump_compact(),
      R"({"name":"tiny","ranks":3,"sizes":[704,704,640],"empty":{},"none":[],"rows":[{"rank":0}]})");
}

TEST(Json, EscapesOnlyWhatMustBeEscaped) {
  EXPECT_EQ(Json("a\"\\/\n\r\t\b\f\x01\x1F\x7F é").dump_compact(),
            R"("a\"\\/\n\r\t\b\f\u0001\u001f)"
            "\x7F é\"");
  EXPECT_EQ(Json(std::string_view("\0", 1)).dump_compact(), R"("\u0000")");
}

TEST(Json, WritesTheReplacementCharacterForBytesThatAreNotUtf8) {
  EXPECT_EQ(Json("a\xFF\xC3z").dump_compact(), "\"a\xEF\xBF\xBD\xEF\xBF\xBDz\"");
}

TEST(Json, SetKeepsThePositionOfAnExistingKey) {
  Json value = parse(R"({"a": 1, "b": 2, "c": 3})");
  value.set("b", "new").set("d", 4);
  EXPECT_EQ(value.dump_compact(), R"({"a":1,"b":"new","c":3,"d":4})");
  value.erase("a");
  value.erase("absent");
  EXPECT_EQ(value.dump_compact(), R"({"b":"new","c":3,"d":4})");
}

TEST(Json, HoldsSixtyFourLevelsAndRefusesMore) {
  const auto nested = [](int levels) {
    return std::string(static_cast<std::size_t>(levels), '[') +
           std::string(static_cast<std::size_t>(levels), ']');
  };
  EXPECT_TRUE(parse(nested(64)).is_array());
  EXPECT_NE(refusal(nested(65)).find("64 levels"), std::string::npos);
  refusal(std::string(1'000'000, '['));
  std::string objects;
  for (int i = 0; i < 65; ++i) objects += R"({"a":)";
  refusal(objects);
}

}  // namespace
}  // namespace moxie
