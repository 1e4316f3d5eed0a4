// SPDX-License-Identifier: Apache-2.0
// Safetensors files and indexes that lie, each with the code of the finding that must refuse it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "support/safetensors_bytes.hpp"

namespace moxie::test {

struct Attack {
  std::string name;   // of the file, without extension
  std::string bytes;  // its content
  std::string code;   // of the first finding
};

// One entry "t" of this text, in front of `data`.
inline std::string with_entry(std::string_view members, std::string_view data = "abcd") {
  return safetensors_bytes(R"({"t":{)" + std::string(members) + "}}", data);
}

inline std::string nested(std::string_view open, std::string_view close, int levels) {
  std::string text;
  for (int i = 0; i < levels; ++i) text += open;
  for (int i = 0; i < levels; ++i) text += close;
  return text;
}

// Files that end too early or state an impossible length.
inline std::vector<Attack> length_attacks() {
  const std::string t = header_of({entry("t", "U8", "4", 0, 4)});
  const std::string good = safetensors_bytes(t, "abcd");
  return {
      {"zero-bytes", "", "MOXIE-C002"},
      {"one-byte", "\x01", "MOXIE-C002"},
      {"seven-bytes", good.substr(0, 7), "MOXIE-C002"},
      {"length-field-alone", good.substr(0, 8), "MOXIE-C002"},
      {"only-zeros", std::string(64, '\0'), "MOXIE-C003"},
      {"header-of-no-bytes", length_field(0), "MOXIE-C003"},
      {"header-cut-after-brace", good.substr(0, 9), "MOXIE-C002"},
      {"header-cut-in-the-middle", good.substr(0, 8 + t.size() / 2), "MOXIE-C002"},
      {"header-cut-by-one", good.substr(0, 8 + t.size() - 1), "MOXIE-C002"},
      {"data-absent", good.substr(0, 8 + t.size()), "MOXIE-C008"},
      {"data-cut-by-one", good.substr(0, good.size() - 1), "MOXIE-C008"},
      {"data-one-too-many", good + "x", "MOXIE-C008"},
      {"data-doubled", good + "abcd", "MOXIE-C008"},
      {"length-short-by-one", length_field(t.size() - 1) + t + "abcd", "MOXIE-C003"},
      {"length-long-by-one", length_field(t.size() + 1) + t + "abcd", "MOXIE-C003"},
      {"length-long-by-data", length_field(t.size() + 4) + t + "abcd", "MOXIE-C003"},
      {"length-behind-file", length_field(t.size() + 5) + t + "abcd", "MOXIE-C002"},
      {"length-of-a-terabyte", length_field(std::uint64_t{1} << 40) + t + "abcd", "MOXIE-C002"},
      {"length-above-the-limit", length_field(100'000'001) + t + "abcd", "MOXIE-C002"},
      {"length-all-ones", std::string(8, '\xFF') + t + "abcd", "MOXIE-C002"},
      {"length-that-wraps", length_field(~std::uint64_t{0} - 7) + t + "abcd", "MOXIE-C002"},
      {"length-big-endian", std::string(7, '\0') + static_cast<char>(t.size()) + t + "abcd",
       "MOXIE-C002"},
  };
}

// Headers that are no JSON, or JSON that means two things.
inline std::vector<Attack> syntax_attacks() {
  using namespace std::string_view_literals;
  const std::string t = entry("t", "U8", "4", 0, 4);
  const auto raw = [](std::string_view header) { return safetensors_bytes(header, "abcd"); };
  return {
      {"array", raw("[]"), "MOXIE-C003"},
      {"null", raw("null"), "MOXIE-C003"},
      {"space-before", raw(" " + header_of({t})), "MOXIE-C003"},
      {"byte-order-mark", raw("\xEF\xBB\xBF" + header_of({t})), "MOXIE-C003"},
      {"trailing-garbage", raw(header_of({t}) + " x"), "MOXIE-C003"},
      {"trailing-object", raw(header_of({t}) + "{}"), "MOXIE-C003"},
      {"trailing-nul", raw(header_of({t}) + std::string("\0"sv)), "MOXIE-C003"},
      {"hidden-behind-nul", raw(header_of({t}) + std::string("\0{\"u\":1}"sv)), "MOXIE-C003"},
      {"trailing-comma", raw("{" + t + ",}"), "MOXIE-C003"},
      {"comment", raw("{/**/" + t + "}"), "MOXIE-C003"},
      {"single-quotes", raw("{'t':{}}"), "MOXIE-C003"},
      {"unclosed", raw("{" + t), "MOXIE-C003"},
      {"deep-arrays", raw(R"({"t":{"shape":)" + nested("[", "]", 100'000) + "}}"), "MOXIE-C004"},
      {"deep-objects", raw(R"({"__metadata__":)" + nested(R"({"a":)", "}", 100'000) + "}"),
       "MOXIE-C004"},
      {"bad-utf8", raw(header_of({entry("t\xFF", "U8", "4", 0, 4)})), "MOXIE-C003"},
      {"cut-utf8", raw(header_of({entry("t\xE2\x82", "U8", "4", 0, 4)})), "MOXIE-C003"},
      {"overlong-utf8", raw(header_of({entry("\xC1\xB4", "U8", "4", 0, 4)})), "MOXIE-C003"},
      {"lone-surrogate", raw(header_of({entry(R"(\ud800)", "U8", "4", 0, 4)})), "MOXIE-C003"},
      {"surrogate-as-bytes", raw(header_of({entry("\xED\xA0\x80", "U8", "4", 0, 4)})),
       "MOXIE-C003"},
      {"nul-in-a-name", raw(header_of({entry("t\0u"sv, "U8", "4", 0, 4)})), "MOXIE-C003"},
      {"escaped-nul-in-a-name", raw(header_of({entry(R"(t\u0000u)", "U8", "4", 0, 4)})),
       "MOXIE-C004"},
      {"line-break-in-a-name", raw(header_of({entry("t\nu", "U8", "4", 0, 4)})), "MOXIE-C003"},
      {"unknown-escape", raw(header_of({entry(R"(\x74)", "U8", "4", 0, 4)})), "MOXIE-C003"},
      {"tensor-twice", raw(header_of({t, t})), "MOXIE-C003"},
      {"tensor-twice-by-escape", raw(header_of({t, entry(R"(\u0074)", "U8", "0", 4, 4)})),
       "MOXIE-C003"},
      {"metadata-twice", raw(header_of({R"("__metadata__":{})", t, R"("__metadata__":{})"})),
       "MOXIE-C003"},
      {"metadata-key-twice", raw(header_of({R"("__metadata__":{"a":"","a":""})", t})),
       "MOXIE-C003"},
      {"metadata-number", raw(header_of({R"("__metadata__":{"a":1})", t})), "MOXIE-C004"},
      {"metadata-list", raw(header_of({R"("__metadata__":["a"])", t})), "MOXIE-C004"},
      {"metadata-null", raw(header_of({R"("__metadata__":null)", t})), "MOXIE-C004"},
  };
}

// Entries of the wrong kind.
inline std::vector<Attack> entry_attacks() {
  return {
      {"entry-null", safetensors_bytes(R"({"t":null})", "abcd"), "MOXIE-C004"},
      {"entry-list", safetensors_bytes(R"({"t":["U8",[4],[0,4]]})", "abcd"), "MOXIE-C004"},
      {"entry-text", safetensors_bytes(R"({"t":"U8"})", "abcd"), "MOXIE-C004"},
      {"entry-empty", with_entry(""), "MOXIE-C004"},
      {"no-dtype", with_entry(R"("shape":[4],"data_offsets":[0,4])"), "MOXIE-C004"},
      {"no-shape", with_entry(R"("dtype":"U8","data_offsets":[0,4])"), "MOXIE-C004"},
      {"no-offsets", with_entry(R"("dtype":"U8","shape":[4])"), "MOXIE-C004"},
      {"extra-key", with_entry(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"x":0)"),
       "MOXIE-C004"},
      {"dtype-twice", with_entry(R"("dtype":"F32","dtype":"U8","shape":[4],"data_offsets":[0,4])"),
       "MOXIE-C004"},
      {"shape-twice", with_entry(R"("dtype":"U8","shape":[9],"shape":[4],"data_offsets":[0,4])"),
       "MOXIE-C004"},
      {"offsets-twice",
       with_entry(R"("dtype":"U8","shape":[4],"data_offsets":[0,9],"data_offsets":[0,4])"),
       "MOXIE-C004"},
      {"dtype-unknown", with_entry(R"("dtype":"U7","shape":[4],"data_offsets":[0,4])"),
       "MOXIE-C004"},
      {"dtype-lower-case", with_entry(R"("dtype":"u8","shape":[4],"data_offsets":[0,4])"),
       "MOXIE-C004"},
      {"dtype-number", with_entry(R"("dtype":8,"shape":[4],"data_offsets":[0,4])"), "MOXIE-C004"},
      {"shape-number", with_entry(R"("dtype":"U8","shape":4,"data_offsets":[0,4])"), "MOXIE-C004"},
      {"shape-nested", with_entry(R"("dtype":"U8","shape":[[4]],"data_offsets":[0,4])"),
       "MOXIE-C004"},
      {"shape-negative", with_entry(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"),
       "MOXIE-C004"},
      {"shape-two-negatives", with_entry(R"("dtype":"U8","shape":[-2,-2],"data_offsets":[0,4])"),
       "MOXIE-C004"},
      {"shape-real", with_entry(R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])"),
       "MOXIE-C004"},
      {"shape-exponent", with_entry(R"("dtype":"U8","shape":[4e0],"data_offsets":[0,4])"),
       "MOXIE-C004"},
      {"shape-text", with_entry(R"("dtype":"U8","shape":["4"],"data_offsets":[0,4])"),
       "MOXIE-C004"},
      {"shape-two-to-64",
       with_entry(R"("dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,4])"),
       "MOXIE-C004"},
      {"shape-thousand-digits",
       with_entry(R"("dtype":"U8","shape":[)" + std::string(300, '9') +
                  R"(],"data_offsets":[0,4])"),
       "MOXIE-C004"},
      {"shape-number-out-of-range",
       with_entry(R"("dtype":"U8","shape":[1e999],"data_offsets":[0,4])"), "MOXIE-C003"},
      {"offsets-one", with_entry(R"("dtype":"U8","shape":[4],"data_offsets":[4])"), "MOXIE-C004"},
      {"offsets-three", with_entry(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])"),
       "MOXIE-C004"},
      {"offsets-text", with_entry(R"("dtype":"U8","shape":[4],"data_offsets":"0,4")"),
       "MOXIE-C004"},
      {"offsets-negative", with_entry(R"("dtype":"U8","shape":[4],"data_offsets":[-4,0])"),
       "MOXIE-C004"},
      {"offsets-minus-zero", with_entry(R"("dtype":"U8","shape":[4],"data_offsets":[-0,4])"),
       "MOXIE-C004"},
  };
}

// Sizes and places that contradict each other.
inline std::vector<Attack> span_attacks() {
  const auto one = [](std::string_view dtype, std::string_view shape, std::uint64_t begin,
                      std::uint64_t end) {
    return safetensors_bytes(header_of({entry("t", dtype, shape, begin, end)}), "abcd");
  };
  const auto two = [](const std::string& a, const std::string& b) {
    return safetensors_bytes(header_of({a, b}), std::string(16, 'x'));
  };
  constexpr std::uint64_t kMax = ~std::uint64_t{0};
  const std::string k = entry("k", "U8", "8", 0, 8);
  return {
      {"end-before-begin", one("U8", "4", 4, 0), "MOXIE-C005"},
      {"span-below-shape", one("F32", "1000,1000", 0, 4), "MOXIE-C005"},
      {"span-above-shape", one("U8", "3", 0, 4), "MOXIE-C005"},
      {"wrong-width", one("BF16", "4", 0, 4), "MOXIE-C005"},
      {"half-bytes", one("F4", "3", 0, 2), "MOXIE-C005"},
      {"six-bit-rest", one("F6_E2M3", "5", 0, 4), "MOXIE-C005"},
      {"scalar-of-no-bytes", one("U8", "", 0, 0), "MOXIE-C005"},
      {"no-elements-four-bytes", one("U8", "0", 0, 4), "MOXIE-C005"},
      {"product-wraps-to-zero", one("U8", "4294967296,4294967296", 0, 0), "MOXIE-C005"},
      {"product-wraps-to-four", one("U8", "4611686018427387905,4", 0, 4), "MOXIE-C005"},
      {"product-overflows", one("U8", "8589934592,8589934592", 0, 4), "MOXIE-C005"},
      {"bits-wrap-to-zero", one("U8", "2305843009213693952", 0, 0), "MOXIE-C005"},
      {"overflow-behind-zero", one("U8", "8589934592,8589934592,0", 0, 0), "MOXIE-C005"},
      {"begin-behind-file", one("U8", "4", 4, 8), "MOXIE-C007"},
      {"end-behind-file", one("U8", "5", 0, 5), "MOXIE-C008"},
      {"end-near-two-to-64", one("U8", "18446744073709551611", 4, kMax), "MOXIE-C005"},
      {"span-near-two-to-61", one("U8", "2305843009213693951", 0, 2305843009213693951U),
       "MOXIE-C008"},
      {"empty-at-two-to-64", one("U8", "0", kMax, kMax), "MOXIE-C007"},
      {"hole-at-the-start", one("U8", "3", 1, 4), "MOXIE-C007"},
      {"hole-at-the-end", one("U8", "3", 0, 3), "MOXIE-C008"},
      {"hole-in-the-middle", two(k, entry("v", "U8", "7", 9, 16)), "MOXIE-C007"},
      {"overlap-whole", two(k, entry("v", "U8", "8", 0, 8)), "MOXIE-C006"},
      {"overlap-by-one", two(k, entry("v", "U8", "9", 7, 16)), "MOXIE-C006"},
      {"overlap-inside", two(entry("k", "U8", "16", 0, 16), entry("v", "U8", "4", 4, 8)),
       "MOXIE-C006"},
      {"overlap-in-reverse-order", two(entry("v", "U8", "9", 7, 16), k), "MOXIE-C006"},
      {"empty-inside-another", two(entry("k", "U8", "16", 0, 16), entry("v", "U8", "0", 8, 8)),
       "MOXIE-C006"},
      {"sizes-right-in-sum-only", two(entry("k", "U8", "8", 0, 8), entry("v", "U8", "8", 4, 12)),
       "MOXIE-C006"},
  };
}

// Indexes that lie about a folder which holds "s.safetensors" with the tensor "t".
inline std::vector<Attack> index_attacks() {
  const auto map = [](std::string_view members) {
    return R"({"weight_map":{)" + std::string(members) + "}}";
  };
  return {
      {"index-empty", "", "MOXIE-C003"},
      {"index-cut", R"({"weight_map":{"t":"s.safet)", "MOXIE-C003"},
      {"index-trailing-garbage", map(R"("t":"s.safetensors")") + "}", "MOXIE-C003"},
      {"index-hidden-behind-nul", map(R"("t":"s.safetensors")") + std::string(1, '\0') + "{}",
       "MOXIE-C003"},
      {"index-bad-utf8", map("\"\xFF\":\"s.safetensors\""), "MOXIE-C003"},
      {"index-deep", R"({"metadata":)" + nested("[", "]", 100'000) + "}", "MOXIE-C003"},
      {"index-without-map", R"({"metadata":{}})", "MOXIE-C009"},
      {"index-list", "[]", "MOXIE-C009"},
      {"index-map-is-list", R"({"weight_map":[]})", "MOXIE-C009"},
      {"index-two-maps", R"({"weight_map":{},"weight_map":{}})", "MOXIE-C009"},
      {"index-shard-is-number", map(R"("t":1)"), "MOXIE-C009"},
      {"index-shard-is-object", map(R"("t":{})"), "MOXIE-C009"},
      {"index-shard-without-name", map(R"("t":"")"), "MOXIE-C009"},
      {"index-shard-above", map(R"("t":"../s.safetensors")"), "MOXIE-C009"},
      {"index-shard-at-root", map(R"("t":"/etc/passwd")"), "MOXIE-C009"},
      {"index-shard-in-folder", map(R"("t":"a/s.safetensors")"), "MOXIE-C009"},
      {"index-shard-is-parent", map(R"("t":"..")"), "MOXIE-C009"},
      {"index-shard-with-nul", map(R"("t":"s.safetensors\u0000.txt")"), "MOXIE-C009"},
      {"index-tensor-twice", map(R"("t":"s.safetensors","t":"s.safetensors")"), "MOXIE-C009"},
      {"index-tensor-with-nul", map(R"("t\u0000":"s.safetensors")"), "MOXIE-C009"},
      {"index-tensor-not-there", map(R"("t":"s.safetensors","u":"s.safetensors")"), "MOXIE-C011"},
      {"index-shard-is-the-index", map(R"("t":"model.safetensors.index.json")"), "MOXIE-C002"},
  };
}

}  // namespace moxie::test
