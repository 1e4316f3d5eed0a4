// SPDX-License-Identifier: Apache-2.0
// Sizes beyond these are no model's: refusing them keeps all products of sizes inside 64 bits.
#pragma once

#include <cstdint>

namespace moxie {

inline constexpr std::uint64_t kMaxWidth = std::uint64_t{1} << 18;    // hidden, intermediate
inline constexpr std::uint64_t kMaxExperts = std::uint64_t{1} << 16;  // of one layer
inline constexpr std::uint64_t kMaxLayers = std::uint64_t{1} << 10;

}  // namespace moxie
