// SPDX-License-Identifier: Apache-2.0
// What does not fit on the disk is refused before its first byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace moxie {

// Error(environment) MOXIE-E002 when the file system that will hold `out`, which need not exist,
// has less than `bytes` free. One without a size, such as /proc, says why itself.
void require_checkpoint_space(const std::filesystem::path& out, std::uint64_t bytes,
                              std::string hint = {});

}  // namespace moxie
