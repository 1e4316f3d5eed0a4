// SPDX-License-Identifier: Apache-2.0
// Header entries that are malformed or occur twice.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>

#include "checkpoint/safetensors_header.hpp"
#include "support/refusal.hpp"
#include "support/safetensors_bytes.hpp"

namespace moxie {
namespace {

using test::entry;
using test::header_of;

// The refusal of a header over `data`.
Error refusal(std::string_view header, std::string_view data = "abcd") {
  const std::string file = test::safetensors_bytes(header, data);
  Error error = test::refusal_of(
      [&] { read_safetensors_header(std::as_bytes(std::span(file)), "x.safetensors"); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(error.findings().front().where.file, "x.safetensors");
  return error;
}
std::string code(std::string_view header, std::string_view data = "abcd") {
  return test::code_of(refusal(header, data));
}
// A header of one entry "t" with this text between its braces.
std::string with(std::string_view members) { return R"({"t":{)" + std::string(members) + "}}"; }

TEST(SafetensorsEntry, RefusesATensorThatIsListedTwice) {
  const std::string t = entry("t", "U8", "4", 0, 4);
  EXPECT_EQ(code(header_of({t, t})), "MOXIE-C003");
  const Error other =
      refusal(header_of({t, entry("u", "U8", "1", 4, 5), entry("t", "U8", "1", 5, 6)}), "abcdef");
  EXPECT_EQ(test::code_of(other), "MOXIE-C003");
  EXPECT_NE(std::string_view(other.what()).find("\"t\""), std::string_view::npos) << other.what();
  EXPECT_EQ(code(header_of({t, entry(R"(\u0074)", "U8", "0", 4, 4)})), "MOXIE-C003");
}

TEST(SafetensorsEntry, RefusesAKeyThatOccursTwiceInAnEntry) {
  EXPECT_EQ(code(with(R"("dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4])")),
            "MOXIE-C004");
  EXPECT_EQ(code(with(R"("dtype":"U8","shape":[2],"shape":[2],"data_offsets":[0,4])")),
            "MOXIE-C004");
  EXPECT_EQ(code(with(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"data_offsets":[0,4])")),
            "MOXIE-C004");
}

TEST(SafetensorsEntry, RefusesASecondMetadata) {
  EXPECT_EQ(code(R"({"__metadata__":{},"__metadata__":{}})", ""), "MOXIE-C003");
  EXPECT_EQ(code(R"({"__metadata__":{"a":"1","b":"2","a":"3"}})", ""), "MOXIE-C003");
}

TEST(SafetensorsEntry, RefusesMetadataThatIsNotText) {
  for (const std::string_view metadata :
       {"null", "[]", "\"x\"", "1", "{\"a\":1}", "{\"a\":null}", "{\"a\":true}", "{\"a\":{}}",
        "{\"a\":[\"x\"]}", "{\"a\":-1}", "{\"a\":0.5}"}) {
    const std::string header = R"({"__metadata__":)" + std::string(metadata) + "}";
    EXPECT_EQ(code(header, ""), "MOXIE-C004") << metadata;
  }
}

TEST(SafetensorsEntry, RefusesAMissingKey) {
  for (const std::string_view members :
       {"", R"("dtype":"U8")", R"("dtype":"U8","shape":[4])", R"("shape":[4],"data_offsets":[0,4])",
        R"("dtype":"U8","data_offsets":[0,4])"}) {
    EXPECT_EQ(code(with(members)), "MOXIE-C004") << members;
  }
  // What the entry before has does not count.
  EXPECT_EQ(code(header_of({entry("a", "U8", "4", 0, 4), R"("b":{"data_offsets":[4,4]})"})),
            "MOXIE-C004");
}

TEST(SafetensorsEntry, RefusesAnUnknownKey) {
  EXPECT_EQ(code(with(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"strides":[1])")),
            "MOXIE-C004");
  EXPECT_EQ(code(with(R"("Dtype":"U8","shape":[4],"data_offsets":[0,4])")), "MOXIE-C004");
}

TEST(SafetensorsEntry, RefusesAnElementTypeThatIsNotDefined) {
  for (const std::string_view dtype : {"", "u8", "U8 ", "F7", "FLOAT32", "F8_E4M3FN", "U128"}) {
    const Error error = refusal(header_of({entry("t", dtype, "4", 0, 4)}));
    EXPECT_EQ(test::code_of(error), "MOXIE-C004") << dtype;
    EXPECT_EQ(error.findings().front().where.tensor, "t");
    EXPECT_EQ(error.findings().front().got, '"' + std::string(dtype) + '"');
  }
}

TEST(SafetensorsEntry, RefusesValuesOfAnotherKind) {
  for (const std::string_view value : {"null", "1", "true", "[]", "{}", "0.5", "-1"}) {
    const std::string text(value);
    EXPECT_EQ(code(with(R"("dtype":)" + text + R"(,"shape":[4],"data_offsets":[0,4])")),
              "MOXIE-C004")
        << value;
  }
  for (const std::string_view value :
       {"null", "4", "\"4\"", "{}", "[[4]]", "[\"4\"]", "[null]", "[true]", "[4.0]", "[4e0]",
        "[-4]", "[-0]", "[18446744073709551616]", "[{}]"}) {
    const std::string text(value);
    EXPECT_EQ(code(with(R"("dtype":"U8","shape":)" + text + R"(,"data_offsets":[0,4])")),
              "MOXIE-C004")
        << value;
    EXPECT_EQ(code(with(R"("dtype":"U8","shape":[4],"data_offsets":)" + text)), "MOXIE-C004")
        << value;
  }
  for (const std::string_view value : {"null", "1", "\"x\"", "[]", "true", "-1", "0.5"}) {
    EXPECT_EQ(code(R"({"t":)" + std::string(value) + "}"), "MOXIE-C004") << value;
  }
}

TEST(SafetensorsEntry, RefusesAHeaderThatIsNoObject) {
  for (const std::string_view header : {"", " {}", "[]", "null", "\"{}\"", "1", "\xEF\xBB\xBF{}"}) {
    EXPECT_EQ(code(header, ""), "MOXIE-C003") << header;
  }
}

TEST(SafetensorsEntry, RefusesTextAfterTheHeader) {
  using namespace std::string_view_literals;
  for (const std::string_view header :
       {"{}{}"sv, "{} x"sv, "{}\0"sv, "{}\0\0\0\0\0\0"sv, "{}  }"sv}) {
    EXPECT_EQ(code(header, ""), "MOXIE-C003");
  }
}

TEST(SafetensorsEntry, RefusesANameWithNul) {
  EXPECT_EQ(code(header_of({entry(R"(t\u0000)", "U8", "4", 0, 4)})), "MOXIE-C004");
  EXPECT_EQ(code(header_of({entry(std::string_view("t\0", 2), "U8", "4", 0, 4)})), "MOXIE-C003");
}

TEST(SafetensorsEntry, AcceptsAnyOtherName) {
  for (const std::string_view name :
       {"", " ", "a/b", "../x", "模型.权重", R"(tab\t)", "dtype", "__metadata"}) {
    const std::string file =
        test::safetensors_bytes(header_of({entry(name, "U8", "4", 0, 4)}), "abcd");
    EXPECT_EQ(read_safetensors_header(std::as_bytes(std::span(file)), "x").tensors.size(), 1U)
        << name;
  }
}

}  // namespace
}  // namespace moxie
