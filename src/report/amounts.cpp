// SPDX-License-Identifier: Apache-2.0
// Sizes and counts as people read them.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "moxie/report.hpp"

namespace moxie {

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 7> kUnits{"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return std::to_string(bytes) + " B";
  // One decimal, rounded half up. A value that rounds to 1000.0 moves on to the next unit.
  std::uint64_t unit_bytes = 1000;
  std::size_t unit = 1;
  const auto tenths = [&] {
    const std::uint64_t tenth = unit_bytes / 10;
    return bytes / tenth + (bytes % tenth >= (tenth + 1) / 2 ? 1 : 0);
  };
  while (unit + 1 < kUnits.size() && tenths() >= 10000) {
    unit_bytes *= 1000;
    ++unit;
  }
  const std::uint64_t rounded = tenths();
  return std::to_string(rounded / 10) + "." + std::to_string(rounded % 10) + " " +
         std::string(kUnits[unit]);
}

std::string format_count(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

std::string format_count(std::uint64_t count, std::string_view noun) {
  return format_count(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

std::string format_rate(double per_second, std::string_view noun) {
  std::string text = format_count(static_cast<std::uint64_t>(per_second));
  if (per_second < 10) {
    std::array<char, 32> digits{};
    std::snprintf(digits.data(), digits.size(), "%.2g", per_second);
    text = digits.data();
  }
  return text + " " + std::string(noun) + "s/s";
}

}  // namespace moxie
