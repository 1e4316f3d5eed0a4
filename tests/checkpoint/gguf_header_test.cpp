// SPDX-License-Identifier: Apache-2.0
// GGUF headers that are right.
#include "checkpoint/gguf_header.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <string>

#include "checkpoint/gguf_types.hpp"
#include "support/gguf_bytes.hpp"
#include "support/gguf_laws.hpp"

namespace moxie {
namespace {

using test::array_pair;
using test::gguf_bytes;
using test::gguf_entry;
using test::gguf_header;
using test::number_pair;
using test::pair;
using test::text_pair;

GgufHeader read(std::string_view file) {
  const auto bytes = std::as_bytes(std::span(file));
  GgufHeader header = read_gguf_header(bytes, "dir/x.gguf");
  EXPECT_EQ(test::broken_law(header, bytes), "");
  return header;
}

TEST(GgufHeader, GivesEveryTensorWithItsShapeTurnedAndItsPlaceInTheFile) {
  const std::string head =
      gguf_header({}, {gguf_entry("a", {3, 2}, 0, 0), gguf_entry("blk.0.x", {64, 5, 2}, 39, 32),
                       gguf_entry("s", {}, 30, 384)});
  const std::string file = test::padded(head) + std::string(384 + 2, 'x');
  const GgufHeader got = read(file);
  const std::uint64_t start = test::padded(head).size();
  EXPECT_EQ(got.header_bytes, start);
  ASSERT_EQ(got.tensors.size(), 3U);
  EXPECT_EQ(got.tensors[0].name, "a");
  EXPECT_EQ(got.tensors[0].dtype, DType::f32);
  EXPECT_EQ(got.tensors[0].shape, (Shape{2, 3}));
  EXPECT_EQ(got.tensors[0].offset, start);
  EXPECT_EQ(got.tensors[0].bytes, 24U);
  EXPECT_EQ(got.tensors[1].dtype, DType::mxfp4_blocks);
  EXPECT_EQ(got.tensors[1].shape, (Shape{2, 5, 64}));
  EXPECT_EQ(got.tensors[1].offset, start + 32);
  EXPECT_EQ(got.tensors[1].bytes, 2U * 5 * 2 * 17);
  EXPECT_EQ(got.tensors[2].shape, Shape{});
  EXPECT_EQ(got.tensors[2].bytes, 2U);
}

TEST(GgufHeader, KeepsEveryKindOfValueUnderItsKey) {
  const GgufHeader got = read(gguf_header(
      {pair("u8", 0, "\xFF"), pair("i8", 1, "\xFF"), pair("u16", 2, "\xFF\xFF"),
       pair("i16", 3, "\xFE\xFF"), number_pair("u32", 4000000000U),
       pair("i32", 5, test::le(std::int32_t{-7})), pair("f32", 6, test::le(0.1F)),
       pair("yes", 7, "\x01"), text_pair("text", "a\"b"),
       pair("u64", 10, test::u64(~std::uint64_t{0})),
       pair("i64", 11, test::le(std::numeric_limits<std::int64_t>::min())),
       pair("f64", 12, test::le(0.1)), array_pair("list", 6, 2, test::le(1.5F) + test::le(2.5F)),
       pair("nan", 6, test::le(std::numeric_limits<float>::quiet_NaN())),
       pair("inf", 12, test::le(-std::numeric_limits<double>::infinity()))},
      {}));
  EXPECT_EQ(got.metadata.dump_compact(),
            R"({"u8":255,"i8":-1,"u16":65535,"i16":-2,"u32":4000000000,"i32":-7,)"
            R"("f32":0.10000000149011612,"yes":true,"text":"a\"b","u64":18446744073709551615,)"
            R"("i64":-9223372036854775808,"f64":0.1,"list":[1.5,2.5],"nan":"NaN",)"
            R"("inf":"-Infinity"})");
}

TEST(GgufHeader, LeavesOutVocabulariesWithoutMakingAnythingOfThem) {
  constexpr std::uint64_t kTokens = 200'000;
  std::string tokens;
  for (std::uint64_t i = 0; i < kTokens; ++i) tokens += test::gguf_text("token");
  const std::string file =
      gguf_header({array_pair("tokenizer.ggml.tokens", 8, kTokens, tokens),
                   array_pair("tokenizer.ggml.scores", 6, kTokens, std::string(4 * kTokens, '\1')),
                   number_pair("after", 7)},
                  {});
  const auto start = std::chrono::steady_clock::now();
  const GgufHeader got = read(file);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(got.metadata.dump_compact(), R"({"after":7})");
  EXPECT_LT(took.count(), 0.5);  // some milliseconds without instrumentation
}

TEST(GgufHeader, KeepsAListOfOneNumberPerLayerAndNoLonger) {
  for (const std::uint64_t count : {1024U, 1025U}) {
    const GgufHeader got =
        read(gguf_header({array_pair("a", 4, count, std::string(4 * count, '\2'))}, {}));
    EXPECT_EQ(got.metadata.find("a") != nullptr, count == 1024) << count;
  }
}

TEST(GgufHeader, TakesVersionTwoAndOtherAlignments) {
  EXPECT_EQ(read(gguf_header({number_pair("a", 1)}, {}, 2)).metadata.members().size(), 1U);
  const std::string file = gguf_bytes({number_pair("general.alignment", 128)},
                                      {gguf_entry("a", {1}, 24, 0), gguf_entry("b", {1}, 24, 128)},
                                      std::string(129, 'x'), 128);
  const GgufHeader got = read(file);
  EXPECT_EQ(got.tensors[1].offset, got.header_bytes + 128);
}

TEST(GgufHeader, TakesTensorsInAnyOrderAndPaddingAtTheEndOrNone) {
  for (const std::size_t data : {36U, 64U, 67U}) {
    const GgufHeader got = read(gguf_bytes(
        {}, {gguf_entry("b", {1}, 0, 32), gguf_entry("a", {8}, 0, 0)}, std::string(data, 'x')));
    EXPECT_EQ(got.tensors[0].name, "b") << data;
  }
}

TEST(GgufHeader, KnowsTheSizeOfEveryTypeThatItTakes) {
  for (const GgufType& type : kGgufTypes) {
    const std::string file = gguf_bytes({}, {gguf_entry("a", {2 * type.elems, 3}, type.number, 0)},
                                        std::string(std::size_t{6} * type.bytes, 'x'));
    const GgufHeader got = read(file);
    EXPECT_EQ(got.tensors[0].bytes, 6 * type.bytes) << type.number;
    EXPECT_EQ(got.tensors[0].dtype, type.dtype) << type.number;
  }
  EXPECT_EQ(gguf_type(39)->dtype, DType::mxfp4_blocks);
  EXPECT_EQ(gguf_type(40)->dtype, DType::nvfp4_blocks);
  EXPECT_EQ(gguf_type(8)->dtype, DType::other_blocks);
}

}  // namespace
}  // namespace moxie
