// SPDX-License-Identifier: Apache-2.0
// Size arithmetic that can not overflow unnoticed, and checks for what only a bug can break.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "base/host_device.hpp"

namespace moxie {

// a * b, or nullopt when it needs more than 64 bits.
constexpr std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  if (a != 0 && b > std::numeric_limits<std::uint64_t>::max() / a) return std::nullopt;
  return a * b;
}

// a + b, or nullopt when it needs more than 64 bits.
constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  if (b > std::numeric_limits<std::uint64_t>::max() - a) return std::nullopt;
  return a + b;
}

// The largest stride with which so many places can lie in memory, in elements of at most 32 bytes:
// with a larger one the last would come round to the first ones again.
constexpr std::uint64_t largest_stride(std::uint64_t places) {
  constexpr std::uint64_t kMostElements = std::uint64_t{1} << 58;
  return places < 2 ? ~std::uint64_t{0} : kMostElements / (places - 1);
}

MOXIE_HD constexpr std::uint64_t divide_up(std::uint64_t value, std::uint64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

// Smallest multiple of `multiple` (not 0) that is at least `value`.
MOXIE_HD constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return divide_up(value, multiple) * multiple;
}

// Throws Error(internal) naming the place; reaching it is a bug in moxie.
[[noreturn]] void raise_internal(std::string_view condition, std::string_view sentence,
                                 const char* file, int line);

}  // namespace moxie

#define MOXIE_CHECK(condition, sentence) \
  (static_cast<bool>(condition)          \
       ? static_cast<void>(0)            \
       : ::moxie::raise_internal(#condition, sentence, __FILE__, __LINE__))
