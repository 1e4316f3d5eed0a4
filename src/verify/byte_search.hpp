// SPDX-License-Identifier: Apache-2.0
// Where two byte strings part, and how a byte is shown.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace moxie {

// a.size() when they are equal.
inline std::size_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (std::ranges::equal(a, b)) return a.size();
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// "0x3f".
inline std::string hex(std::byte value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto number = std::to_integer<unsigned>(value);
  return std::string("0x") + kDigits[number >> 4U] + kDigits[number & 15U];
}

}  // namespace moxie
