// SPDX-License-Identifier: Apache-2.0
// Where a workspace of any alignment is first aligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/checked.hpp"

namespace moxie {

// The first multiple of `alignment` bytes at or after `memory`, at most `alignment` - 1 bytes on.
inline std::byte* align_up(std::byte* memory, std::uint64_t alignment) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return memory + (round_up(address, alignment) - address);
}

}  // namespace moxie
