// SPDX-License-Identifier: Apache-2.0
// Checksums: published values, and pieces against the whole.
#include "base/hash.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

namespace moxie {
namespace {

TEST(Hash, GivesThePublishedValues) {  // xxh128sum prints the same
  EXPECT_EQ(hash_hex(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_hex("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(Hash, OfPiecesEqualsTheHashOfTheWhole) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 131 % 251);
  const auto bytes = std::as_bytes(std::span(text));
  for (const std::size_t piece : {1U, 7U, 64U, 256U, 1000U, 5000U}) {
    StreamHash hash;
    EXPECT_EQ(hash.hex(), hash_hex(""));
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      hash.update(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    }
    hash.update({});
    EXPECT_EQ(hash.hex(), hash_hex(text)) << piece;
    EXPECT_EQ(hash.hex(), hash.hex()) << "asking changes nothing";
  }
}

TEST(Hash, SeesEveryByte) {
  const std::string text(300, 'a');
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = 'b';
    EXPECT_NE(hash_hex(other), hash_hex(text)) << i;
  }
}

}  // namespace
}  // namespace moxie
