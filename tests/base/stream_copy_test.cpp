// SPDX-License-Identifier: Apache-2.0
// Rows are copied whole and nothing beside them is touched, wherever they begin and end.
#include "base/stream_copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace moxie {
namespace {

constexpr std::size_t kAround = 256;  // bytes before and behind
constexpr std::byte kUntouched{0xA5};

std::vector<std::byte> numbered(std::size_t bytes) {
  std::vector<std::byte> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) all[i] = std::byte(i * 7 + i / 251);
  return all;
}

TEST(StreamRows, CopyEveryByteAndNoOtherAtEveryPlaceAndLength) {
  const std::vector<std::byte> from = numbered(2048);
  for (std::size_t to_at = 0; to_at < 66; to_at += 3) {
    for (std::size_t from_at = 0; from_at < 18; from_at += 5) {
      for (const std::size_t bytes : {0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 200, 511, 1000}) {
        std::vector<std::byte> to(2 * kAround + 2048, kUntouched);
        std::byte* begin = to.data() + kAround + to_at;
        stream_rows(begin, from.data() + from_at, bytes, 0, 1);
        ASSERT_EQ(std::memcmp(begin, from.data() + from_at, bytes), 0)
            << bytes << " bytes from " << from_at << " to " << to_at;
        const auto untouched = [](std::byte value) { return value == kUntouched; };
        ASSERT_TRUE(std::all_of(to.data(), begin, untouched));
        ASSERT_TRUE(std::all_of(begin + bytes, to.data() + to.size(), untouched));
      }
    }
  }
}

TEST(StreamRows, LieOneBehindTheOtherHoweverFarApartTheyWere) {
  const std::vector<std::byte> from = numbered(4096);
  for (const std::size_t bytes : {1, 48, 64, 100, 320}) {
    for (const std::size_t stride : {bytes, bytes + 1, bytes + 77}) {
      constexpr std::size_t kRows = 7;
      std::vector<std::byte> to(kRows * bytes);
      stream_rows(to.data(), from.data(), bytes, stride, kRows);
      for (std::size_t row = 0; row < kRows; ++row)
        ASSERT_EQ(std::memcmp(to.data() + row * bytes, from.data() + row * stride, bytes), 0);
    }
  }
}

}  // namespace
}  // namespace moxie
