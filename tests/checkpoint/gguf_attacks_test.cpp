// SPDX-License-Identifier: Apache-2.0
// GGUF files that lie: each is refused by its code, with the file named, before anything is made of
// what it claims.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/gguf_header.hpp"
#include "support/gguf_bytes.hpp"
#include "support/gguf_laws.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::array_pair;
using test::gguf_bytes;
using test::gguf_entry;
using test::gguf_header;
using test::gguf_text;
using test::number_pair;
using test::pair;
using test::text_pair;
using test::u32;
using test::u64;

constexpr std::uint64_t kHuge = std::uint64_t{1} << 63;

struct Attack {
  const char* name;
  std::string file;
  const char* code;
  const char* says;  // a part of the message
};

std::string start(std::uint64_t tensors, std::uint64_t pairs) {
  return "GGUF" + u32(3) + u64(tensors) + u64(pairs);
}
const std::string kOne(32, 'x');  // one F32 [8]

std::vector<Attack> attacks() {
  const std::string good = gguf_bytes({}, {gguf_entry("a", {8}, 0, 0)}, kOne);
  return {
      {"empty", "", "MOXIE-C017", "not a GGUF file"},
      {"short magic", "GGU", "MOXIE-C017", "not a GGUF file"},
      {"another magic", "GGML" + good.substr(4), "MOXIE-C017", "not a GGUF file"},
      {"magic only", "GGUF", "MOXIE-C002", "version"},
      {"version 1", "GGUF" + u32(1) + good.substr(8), "MOXIE-C017", "unknown version"},
      {"version 4", "GGUF" + u32(4) + good.substr(8), "MOXIE-C017", "unknown version"},
      {"version 0", "GGUF" + u32(0) + good.substr(8), "MOXIE-C017", "unknown version"},
      {"big endian", "GGUF" + u32(0x03000000) + good.substr(8), "MOXIE-C017", "big endian"},
      {"no counts", "GGUF" + u32(3) + u32(1), "MOXIE-C002", "number of tensors"},
      {"all tensors of the world", start(~std::uint64_t{0}, 0), "MOXIE-C002", "number of tensors"},
      {"too many tensors by one", start(2, 0) + gguf_entry("a", {8}, 0, 0), "MOXIE-C002",
       "number of tensors"},
      {"all keys of the world", start(0, ~std::uint64_t{0}), "MOXIE-C002", "number of keys"},
      {"a million keys and one", start(0, (1U << 20U) + 1) + std::string(18U << 20U, '\0'),
       "MOXIE-C018", "a count"},
      {"key beyond the end", start(0, 1) + u64(1000) + std::string(40, 'k'), "MOXIE-C002", "a key"},
      {"key of 2^63 bytes", start(0, 1) + u64(kHuge) + std::string(40, 'k'), "MOXIE-C002", "a key"},
      {"key without a letter", start(0, 1) + pair("", 4, u32(1)), "MOXIE-C018", "a key"},
      {"key with NUL", gguf_header({number_pair(std::string("a\0b", 3), 1)}, {}), "MOXIE-C018",
       "a key"},
      {"key of 65536 bytes", gguf_header({number_pair(std::string(65536, 'k'), 1)}, {}),
       "MOXIE-C018", "a key"},
      {"a key twice", gguf_header({number_pair("a", 1), text_pair("a", "x")}, {}), "MOXIE-C018",
       "a key twice"},
      {"kind 13", gguf_header({pair("a", 13, u64(0))}, {}), "MOXIE-C018", "kind of value"},
      {"truth value 2", gguf_header({pair("a", 7, "\2")}, {}), "MOXIE-C018", "truth value"},
      {"text beyond the end", gguf_header({pair("a", 8, u64(9) + "12345678")}, {}), "MOXIE-C002",
       "a value"},
      {"text of 2^64-1 bytes", gguf_header({pair("a", 8, u64(~std::uint64_t{0}))}, {}),
       "MOXIE-C002", "a value"},
      {"number cut off", gguf_header({pair("abcd", 10, u32(1))}, {}), "MOXIE-C002", "a value"},
      {"array of arrays", gguf_header({array_pair("a", 9, 1, u32(4) + u64(0))}, {}), "MOXIE-C018",
       "an array of arrays"},
      {"array of kind 99", gguf_header({array_pair("a", 99, 1, u64(0))}, {}), "MOXIE-C018",
       "kind of elements"},
      {"array of 2^61 u64", gguf_header({array_pair("a", 10, kHuge >> 2U, "")}, {}), "MOXIE-C002",
       "elements of an array"},
      {"array of 2^63 bytes", gguf_header({array_pair("a", 0, kHuge, "")}, {}), "MOXIE-C002",
       "elements of an array"},
      {"array of more texts than bytes", gguf_header({array_pair("a", 8, 3, gguf_text(""))}, {}),
       "MOXIE-C002", "elements of an array"},
      {"array's last text beyond the end",
       gguf_header({array_pair("a", 8, 2, gguf_text("x") + u64(5) + "1234")}, {}), "MOXIE-C002",
       "an element"},
      {"alignment 0", gguf_header({number_pair("general.alignment", 0)}, {}), "MOXIE-C018",
       "alignment"},
      {"alignment 24", gguf_header({number_pair("general.alignment", 24)}, {}), "MOXIE-C018",
       "alignment"},
      {"alignment 4", gguf_header({number_pair("general.alignment", 4)}, {}), "MOXIE-C018",
       "alignment"},
      {"alignment as text", gguf_header({text_pair("general.alignment", "32")}, {}), "MOXIE-C018",
       "alignment"},
      {"split file", gguf_header({pair("split.count", 2, std::string("\3\0", 2))}, {}),
       "MOXIE-C017", "split"},
      {"tensor without a name", gguf_bytes({}, {gguf_entry("", {8}, 0, 0)}, kOne), "MOXIE-C018",
       "name"},
      {"tensor name beyond the end", start(1, 0) + u64(kHuge) + std::string(60, 'n'), "MOXIE-C002",
       "name"},
      {"a tensor twice",
       gguf_bytes({}, {gguf_entry("a", {8}, 0, 0), gguf_entry("a", {8}, 0, 32)}, kOne + kOne),
       "MOXIE-C018", "a tensor twice"},
      {"5 dimensions", gguf_bytes({}, {gguf_entry("a", {1, 1, 1, 1, 8}, 0, 0)}, kOne), "MOXIE-C018",
       "dimensions"},
      {"2^32-1 dimensions", start(1, 0) + gguf_text("a") + u32(~0U) + std::string(40, '\0'),
       "MOXIE-C018", "dimensions"},
      {"entry cut off", good.substr(0, 24 + 9 + 4 + 8 + 4 + 4), "MOXIE-C002", "an offset"},
      {"type 4, removed", gguf_bytes({}, {gguf_entry("a", {32}, 4, 0)}, kOne), "MOXIE-C018",
       "type"},
      {"type 4242", gguf_bytes({}, {gguf_entry("a", {8}, 4242, 0)}, kOne), "MOXIE-C018", "type"},
      {"half an MXFP4 block", gguf_bytes({}, {gguf_entry("a", {16}, 39, 0)}, kOne), "MOXIE-C005",
       "whole blocks"},
      {"half an NVFP4 super-block", gguf_bytes({}, {gguf_entry("a", {96}, 40, 0)}, kOne + kOne),
       "MOXIE-C005", "whole blocks"},
      {"a block over two rows", gguf_bytes({}, {gguf_entry("a", {16, 2}, 39, 0)}, kOne),
       "MOXIE-C005", "whole blocks"},
      {"2^64 elements", gguf_bytes({}, {gguf_entry("a", {1ULL << 32U, 1ULL << 32U}, 24, 0)}, kOne),
       "MOXIE-C005", "impossible"},
      {"2^63 elements of 4 bytes", gguf_bytes({}, {gguf_entry("a", {kHuge}, 0, 0)}, kOne),
       "MOXIE-C005", "impossible"},
      {"offset 16", gguf_bytes({}, {gguf_entry("a", {4}, 0, 16)}, kOne), "MOXIE-C018", "offset"},
      {"offset of another alignment",
       gguf_bytes({number_pair("general.alignment", 64)},
                  {gguf_entry("a", {8}, 0, 0), gguf_entry("b", {8}, 0, 32)}, kOne + kOne, 64),
       "MOXIE-C018", "offset"},
      {"offset 2^64-32", gguf_bytes({}, {gguf_entry("a", {8}, 0, ~std::uint64_t{31})}, kOne),
       "MOXIE-C008", "truncated"},
      {"one byte short", good.substr(0, good.size() - 1), "MOXIE-C008", "truncated"},
      {"no data", gguf_header({}, {gguf_entry("a", {8}, 0, 0)}), "MOXIE-C008", "truncated"},
      {"overlap",
       gguf_bytes({}, {gguf_entry("a", {16}, 0, 0), gguf_entry("b", {8}, 0, 32)}, kOne + kOne),
       "MOXIE-C006", "overlaps tensor a"},
      {"the same place",
       gguf_bytes({}, {gguf_entry("a", {8}, 0, 0), gguf_entry("b", {8}, 0, 0)}, kOne), "MOXIE-C006",
       "overlaps"},
      {"hole",
       gguf_bytes({}, {gguf_entry("a", {8}, 0, 0), gguf_entry("b", {8}, 0, 64)},
                  kOne + kOne + kOne),
       "MOXIE-C007", "hole"},
      {"hole at the start", gguf_bytes({}, {gguf_entry("a", {8}, 0, 32)}, kOne + kOne),
       "MOXIE-C007", "hole"},
      {"bytes behind", good + kOne, "MOXIE-C008", "not covered"},
  };
}

GgufHeader read(const std::string& file) {
  return read_gguf_header(std::as_bytes(std::span(file)), "dir/x.gguf");
}

TEST(GgufAttacks, AreEachRefusedByTheirCode) {
  for (const Attack& attack : attacks()) {
    SCOPED_TRACE(attack.name);
    const Error error = test::refusal_of([&] { read(attack.file); });
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_EQ(test::code_of(error), attack.code) << error.what();
    EXPECT_NE(std::string(error.what()).find(attack.says), std::string::npos) << error.what();
    EXPECT_EQ(error.findings()[0].where.file, "dir/x.gguf");
    EXPECT_FALSE(error.findings()[0].expected.empty());
    EXPECT_FALSE(error.findings()[0].got.empty());
  }
}

TEST(GgufAttacks, AFileCutOffAnywhereIsRefused) {
  const std::string file = gguf_bytes({text_pair("general.architecture", "qwen3moe"),
                                       array_pair("t", 8, 2, gguf_text("a") + gguf_text("b"))},
                                      {gguf_entry("a", {64}, 39, 0), gguf_entry("b", {64}, 40, 64)},
                                      std::string(64 + 36, 'x'));
  EXPECT_EQ(read(file).tensors.size(), 2U);
  for (std::size_t bytes = 0; bytes < file.size(); ++bytes) {
    const Error error = test::refusal_of([&] { read(file.substr(0, bytes)); });
    EXPECT_EQ(error.code(), ErrorCode::input) << bytes;
  }
}

// Bytes changed at random are refused or obey every law.
TEST(GgufAttacks, MutationsAreRefusedOrObeyTheLaws) {
  const char* given = std::getenv("MOXIE_SEED");
  const std::uint64_t seed = given != nullptr ? std::stoull(given) : std::random_device()();
  SCOPED_TRACE("MOXIE_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::string file = gguf_bytes(
      {number_pair("general.alignment", 32), text_pair("a", "text"),
       array_pair("t", 8, 2, gguf_text("a") + gguf_text("b"))},
      {gguf_entry("a", {64, 2}, 39, 0), gguf_entry("b", {8}, 0, 96)}, std::string(96 + 32, 'x'));
  std::size_t refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string changed = file;
    for (std::uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
      constexpr std::uint8_t kOdd[] = {0, 1, 0x7F, 0x80, 0xFF};
      changed[random() % (file.size() - 128)] =
          static_cast<char>(random() % 2 == 0 ? kOdd[random() % 5] : random() & 0xFF);
    }
    try {
      const GgufHeader header = read(changed);
      ASSERT_EQ(test::broken_law(header, std::as_bytes(std::span(changed))), "");
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::input) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000U);
}

}  // namespace
}  // namespace moxie
