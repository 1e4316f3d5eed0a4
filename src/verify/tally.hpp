// SPDX-License-Identifier: Apache-2.0
// What a comparison found.
#pragma once

#include <cstdint>
#include <vector>

#include "moxie/status.hpp"

namespace moxie {

struct Tally {
  std::uint64_t tensors = 0;
  std::uint64_t real_bytes = 0;
  std::uint64_t tail_bytes = 0;
  std::vector<Finding> findings{};
};

}  // namespace moxie
