// SPDX-License-Identifier: Apache-2.0
// Safetensors dtype names to DType.
#pragma once

#include <optional>
#include <string_view>

#include "moxie/types.hpp"

namespace moxie {

// nullopt for a name that safetensors does not define.
inline std::optional<DType> dtype_from_name(std::string_view name) {
  for (int value = 0; value <= static_cast<int>(DType::c64); ++value) {
    if (name_of(static_cast<DType>(value)) == name) return static_cast<DType>(value);
  }
  return std::nullopt;
}

}  // namespace moxie
