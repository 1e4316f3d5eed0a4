// SPDX-License-Identifier: Apache-2.0
// How large a buffer must be for a pass over it to reach memory.
#pragma once

#include <cstdint>
#include <string_view>

namespace moxie {

// "32768K" as the kernel writes it, in bytes; 0 when it is no size.
std::uint64_t parse_cache_size(std::string_view text);

// Bytes of the largest cache; 0 when the kernel does not tell.
std::uint64_t last_level_cache_bytes();

// `times` the largest cache; 256 MiB, or a quarter more than that cache, where that is too much or
// its size is not known.
std::uint64_t memory_beyond_caches(std::uint64_t times);

}  // namespace moxie
