// SPDX-License-Identifier: Apache-2.0
// Copies that leave no trace in the caches.
#pragma once

#include <cstddef>

namespace moxie {

// `rows` times `bytes` bytes, `stride` apart in `from` and one behind the other in `to`. For what
// this processor does not read again soon: what is written is not read before, as stores into a
// cache would have it. Other threads see it like any store.
void stream_rows(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t stride,
                 std::size_t rows);

}  // namespace moxie
