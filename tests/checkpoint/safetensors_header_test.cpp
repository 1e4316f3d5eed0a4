// SPDX-License-Identifier: Apache-2.0
// Headers that are right, and the spans, sizes and lengths that are not.
#include "checkpoint/safetensors_header.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "formats/bf16.hpp"
#include "formats/ue8m0.hpp"
#include "support/refusal.hpp"
#include "support/safetensors_bytes.hpp"

namespace moxie {
namespace {

using namespace std::string_view_literals;
using test::code_of;
using test::entry;
using test::header_of;
using test::safetensors_bytes;

SafetensorsHeader read(std::string_view file) {
  return read_safetensors_header(std::as_bytes(std::span(file)), "dir/x.safetensors");
}
Error refusal(std::string_view file) {
  Error error = test::refusal_of([&] { read(file); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  return error;
}
void expect_says(const Error& error, std::initializer_list<std::string_view> parts) {
  const std::string_view text = error.what();
  for (const std::string_view part : parts) {
    EXPECT_NE(text.find(part), std::string_view::npos) << '"' << part << "\" in: " << text;
  }
}

TEST(SafetensorsHeader, GivesEveryTensorInHeaderOrderWithItsPlaceInTheFile) {
  const std::string header =
      header_of({R"("__metadata__":{"format":"pt"})", entry("a", "BF16", "2,3", 0, 12),
                 entry("b", "U8", "4", 12, 16)});
  const SafetensorsHeader got = read(safetensors_bytes(header, std::string(16, 'x')));
  EXPECT_EQ(got.header_bytes, 8 + header.size());
  ASSERT_EQ(got.tensors.size(), 2U);
  EXPECT_EQ(got.tensors[0].name, "a");
  EXPECT_EQ(got.tensors[0].dtype, DType::bf16);
  EXPECT_EQ(got.tensors[0].shape, (Shape{2, 3}));
  EXPECT_EQ(got.tensors[0].offset, 8 + header.size());
  EXPECT_EQ(got.tensors[0].bytes, 12U);
  EXPECT_EQ(got.tensors[1].offset, 8 + header.size() + 12);
}

TEST(SafetensorsHeader, AcceptsKeysOfAnEntryInAnyOrderAndSpacesAtTheEnd) {
  const std::string header =
      R"({ "a" : {"data_offsets": [0, 2], "shape": [2], "dtype": "I8"} }   )";
  EXPECT_EQ(read(safetensors_bytes(header, "xy")).tensors.front().dtype, DType::i8);
}

TEST(SafetensorsHeader, AcceptsAFileWithoutTensors) {
  EXPECT_TRUE(read(safetensors_bytes("{}", "")).tensors.empty());
  EXPECT_TRUE(read(safetensors_bytes(R"({"__metadata__":{}})", "")).tensors.empty());
}

TEST(SafetensorsHeader, KnowsEveryElementTypeByName) {
  for (int value = 0; value <= static_cast<int>(DType::c64); ++value) {
    const auto dtype = static_cast<DType>(value);
    const std::uint64_t bytes = bits_of(dtype);  // of 8 elements
    const std::string header = header_of({entry("t", name_of(dtype), "8", 0, bytes)});
    EXPECT_EQ(read(safetensors_bytes(header, std::string(bytes, '\0'))).tensors.front().dtype,
              dtype);
  }
}

// R-02 (a)
TEST(SafetensorsHeader, R02aATruncatedFileNamesBothByteCounts) {
  const std::string header = header_of({entry("t", "U8", "64", 0, 64)});
  const Error error = refusal(safetensors_bytes(header, std::string(63, 'x')));
  EXPECT_EQ(code_of(error), "MOXIE-C008");
  expect_says(error, {"dir/x.safetensors", std::to_string(8 + header.size() + 64) + " bytes",
                      std::to_string(8 + header.size() + 63) + " bytes"});
}

// R-02 (b)
TEST(SafetensorsHeader, R02bAFileShorterThanItsLengthFieldIsRefused) {
  for (std::size_t bytes = 0; bytes < 8; ++bytes) {
    const Error error = refusal(std::string(bytes, '\0'));
    EXPECT_EQ(code_of(error), "MOXIE-C002");
    expect_says(error, {"dir/x.safetensors", "8 bytes", std::to_string(bytes) + " bytes"});
  }
}

// R-02 (c); that nothing large is allocated is in open_memory_test.cpp.
TEST(SafetensorsHeader, R02cAHeaderLongerThanTheFileIsRefused) {
  const Error error = refusal(test::length_field(std::uint64_t{1} << 40) + "{       ");
  EXPECT_EQ(code_of(error), "MOXIE-C002");
  expect_says(error, {"dir/x.safetensors", "16 bytes", "1099511627776 bytes"});
  for (const std::uint64_t length : {std::uint64_t{9}, kMaxHeaderBytes, kMaxHeaderBytes + 1,
                                     ~std::uint64_t{0} - 7, ~std::uint64_t{0}}) {
    EXPECT_EQ(code_of(refusal(test::length_field(length) + "{}      ")), "MOXIE-C002") << length;
  }
}

// R-02 (d)
TEST(SafetensorsHeader, R02dBytesBehindTheLastTensorAreCounted) {
  const std::string header = header_of({entry("t", "U8", "64", 0, 64)});
  const Error error = refusal(safetensors_bytes(header, std::string(67, 'x')));
  EXPECT_EQ(code_of(error), "MOXIE-C008");
  expect_says(error,
              {"dir/x.safetensors", "3 bytes", std::to_string(8 + header.size() + 64) + " bytes",
               std::to_string(8 + header.size() + 67) + " bytes"});
}

// R-03 (a)
TEST(SafetensorsHeader, R03aASpanSmallerThanTheShapeNamesTheTensorAndBothSizes) {
  const Error error =
      refusal(safetensors_bytes(header_of({entry("big", "F32", "1000,1000", 0, 4)}), "abcd"));
  EXPECT_EQ(code_of(error), "MOXIE-C005");
  EXPECT_EQ(error.findings().front().where.tensor, "big");
  expect_says(error, {"big", "4000000 bytes", "got 4 bytes"});
}

// R-03 (b)
TEST(SafetensorsHeader, R03bASpanThatEndsBeforeItBeginsIsRefused) {
  const Error error =
      refusal(safetensors_bytes(header_of({entry("t", "U8", "4", 8, 4)}), "abcdefgh"));
  EXPECT_EQ(code_of(error), "MOXIE-C005");
  expect_says(error, {"t", "[8, 4]"});
}

// R-03 (c)
TEST(SafetensorsHeader, R03cOffsetsAreTwoNumbers) {
  for (const std::string_view offsets : {"[]", "[0]", "[0,4,4]"}) {
    const std::string header =
        R"({"t":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(offsets) + "}}";
    const Error error = refusal(safetensors_bytes(header, "abcd"));
    EXPECT_EQ(code_of(error), "MOXIE-C004") << offsets;
    EXPECT_EQ(error.findings().front().where.tensor, "t");
  }
}

// R-03 (d)
TEST(SafetensorsHeader, R03dAShapeWhoseProductOverflowsIsRefused) {
  for (const std::string_view shape :
       {"8589934592,8589934592", "4294967296,4294967296", "18446744073709551615,2",
        "2305843009213693952", "8589934592,8589934592,0",
        "4294967296,4294967296,4294967296,4294967296"}) {
    const std::string_view dtype = shape == "2305843009213693952" ? "U64" : "U8";
    const Error error =
        refusal(safetensors_bytes(header_of({entry("huge", dtype, shape, 0, 0)}), ""));
    EXPECT_EQ(code_of(error), "MOXIE-C005") << shape;
    expect_says(error, {"huge", "overflow"});
  }
}

// R-04 (a)
TEST(SafetensorsHeader, R04aTensorsThatOverlapAreRefused) {
  const Error whole = refusal(
      safetensors_bytes(header_of({entry("k", "U8", "16", 0, 16), entry("v", "U8", "16", 0, 16)}),
                        std::string(16, 'x')));
  EXPECT_EQ(code_of(whole), "MOXIE-C006");
  expect_says(whole, {"k", "v"});
  const Error by_one = refusal(
      safetensors_bytes(header_of({entry("k", "U8", "16", 0, 16), entry("v", "U8", "16", 15, 31)}),
                        std::string(31, 'x')));
  EXPECT_EQ(code_of(by_one), "MOXIE-C006");
  const Error inside = refusal(
      safetensors_bytes(header_of({entry("k", "U8", "16", 0, 16), entry("v", "U8", "4", 4, 8)}),
                        std::string(16, 'x')));
  EXPECT_EQ(code_of(inside), "MOXIE-C006");
}

// R-04 (b)
TEST(SafetensorsHeader, R04bAHoleIsRefusedAndNamedByItsBytes) {
  const Error error = refusal(
      safetensors_bytes(header_of({entry("k", "U8", "16", 0, 16), entry("v", "U8", "16", 32, 48)}),
                        std::string(48, 'x')));
  EXPECT_EQ(code_of(error), "MOXIE-C007");
  expect_says(error, {"[16, 32)", "v"});
  const Error at_start =
      refusal(safetensors_bytes(header_of({entry("k", "U8", "2", 1, 3)}), "abc"));
  EXPECT_EQ(code_of(at_start), "MOXIE-C007");
  expect_says(at_start, {"[0, 1)"});
}

// R-04 (c)
TEST(SafetensorsHeader, R04cAHeaderMayListTheLaterTensorFirst) {
  const std::string header =
      header_of({entry("v", "U8", "16", 16, 32), entry("k", "U8", "16", 0, 16)});
  const SafetensorsHeader got = read(safetensors_bytes(header, std::string(32, 'x')));
  EXPECT_EQ(got.tensors[0].name, "v");
  EXPECT_EQ(got.tensors[0].offset, got.header_bytes + 16);
  EXPECT_EQ(got.tensors[1].offset, got.header_bytes);
}

// A number read through a copy, as unaligned data must be.
template <class T>
T load(std::string_view file, std::uint64_t at) {
  T value;
  std::memcpy(&value, file.substr(at, sizeof(T)).data(), sizeof(T));
  return value;
}

// R-05
TEST(SafetensorsHeader, R05TheDataSectionBeginsWhereTheHeaderEndsAtAnyByte) {
  std::string header = header_of({entry("t", "BF16", "2", 0, 4)});
  ASSERT_LE(header.size(), 59U);
  header.resize(59, ' ');
  const std::string file = safetensors_bytes(header, "\x80\x3F\x00\x40"sv);
  const TensorInfo tensor = read(file).tensors.front();
  EXPECT_EQ(tensor.offset, 67U);
  EXPECT_EQ(decode_bf16(load<std::uint16_t>(file, tensor.offset)), 1.0F);
  EXPECT_EQ(decode_bf16(load<std::uint16_t>(file, tensor.offset + 2)), 2.0F);
}

// R-05
TEST(SafetensorsHeader, R05ATensorMayBeginAtAnOddByte) {
  std::string header = header_of({entry("pad", "U8", "1", 0, 1), entry("f", "F32", "1", 1, 5)});
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::string file = safetensors_bytes(header, "\xAA\x00\x00\x40\x40"sv);
  const TensorInfo tensor = read(file).tensors.back();
  EXPECT_EQ(tensor.offset % 2, 1U);
  EXPECT_EQ(load<float>(file, tensor.offset), 3.0F);
}

// R-06 (a, b)
TEST(SafetensorsHeader, R06AFourBitTensorHasTheBytesOfItsPackedForm) {
  const std::string data = "\x10\x32\x54\x76\x98\xBA\xDC\xFE";
  const std::string logical = safetensors_bytes(header_of({entry("t", "F4", "2,8", 0, 8)}), data);
  const std::string packed = safetensors_bytes(header_of({entry("t", "U8", "2,4", 0, 8)}), data);
  const TensorInfo a = read(logical).tensors.front();
  const TensorInfo b = read(packed).tensors.front();
  EXPECT_EQ(a.shape, (Shape{2, 8}));
  EXPECT_EQ(b.shape, (Shape{2, 4}));
  EXPECT_EQ(logical.substr(a.offset, a.bytes), packed.substr(b.offset, b.bytes));
  EXPECT_EQ(a.shape[0] * a.shape[1] * bits_of(a.dtype), b.shape[0] * b.shape[1] * bits_of(b.dtype));
}

// R-06 (c)
TEST(SafetensorsHeader, R06cElementsThatDoNotFillWholeBytesAreRefused) {
  for (const auto& [dtype, shape, text] :
       {std::tuple("F4", "1,3", "12 bits"), std::tuple("F6_E2M3", "2", "12 bits"),
        std::tuple("F4", "1", "4 bits"), std::tuple("F6_E3M2", "3", "18 bits")}) {
    const Error error =
        refusal(safetensors_bytes(header_of({entry("t", dtype, shape, 0, 2)}), "xy"));
    EXPECT_EQ(code_of(error), "MOXIE-C005") << dtype;
    expect_says(error, {"t", text});
  }
  EXPECT_EQ(read(safetensors_bytes(header_of({entry("t", "F6_E2M3", "4", 0, 3)}), "xyz"))
                .tensors.front()
                .bytes,
            3U);
}

// R-06 (d)
TEST(SafetensorsHeader, R06dE8m0IsOneByteForEachPowerOfTwo) {
  const std::string file =
      safetensors_bytes(header_of({entry("s", "F8_E8M0", "3", 0, 3)}), "\x7E\x7F\x80");
  const TensorInfo tensor = read(file).tensors.front();
  EXPECT_EQ(tensor.dtype, DType::f8_e8m0);
  EXPECT_EQ(tensor.bytes, 3U);
  EXPECT_EQ(decode_e8m0(load<std::uint8_t>(file, tensor.offset)), 0.5F);
  EXPECT_EQ(decode_e8m0(load<std::uint8_t>(file, tensor.offset + 1)), 1.0F);
  EXPECT_EQ(decode_e8m0(load<std::uint8_t>(file, tensor.offset + 2)), 2.0F);
}

TEST(SafetensorsHeader, AcceptsScalarsAndTensorsWithoutElements) {
  const std::string header =
      header_of({entry("scalar", "F32", "", 0, 4), entry("none", "F32", "0", 4, 4),
                 entry("rows", "BF16", "0,128", 4, 4), entry("late", "F64", "5,0,3", 4, 4),
                 entry("odd", "F4", "0,3", 4, 4), entry("byte", "U8", "1,1,1", 4, 5)});
  const SafetensorsHeader got = read(safetensors_bytes(header, "abcde"));
  ASSERT_EQ(got.tensors.size(), 6U);
  EXPECT_TRUE(got.tensors[0].shape.empty());
  EXPECT_EQ(got.tensors[0].bytes, 4U);
  EXPECT_EQ(got.tensors[1].bytes, 0U);
  EXPECT_EQ(got.tensors[1].offset, got.header_bytes + 4);
  EXPECT_EQ(got.tensors[5].bytes, 1U);
}

TEST(SafetensorsHeader, HoldsTensorsWithoutElementsToTheSameCoverage) {
  EXPECT_EQ(code_of(refusal(safetensors_bytes(header_of({entry("z", "U8", "0", 9, 9)}), ""))),
            "MOXIE-C007");
  EXPECT_EQ(code_of(refusal(safetensors_bytes(
                header_of({entry("k", "U8", "4", 0, 4), entry("z", "U8", "0", 2, 2)}), "abcd"))),
            "MOXIE-C006");
  EXPECT_EQ(code_of(refusal(safetensors_bytes(header_of({entry("z", "U8", "0", 0, 0)}), "a"))),
            "MOXIE-C008");
}

}  // namespace
}  // namespace moxie
