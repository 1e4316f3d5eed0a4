// SPDX-License-Identifier: Apache-2.0
// The directory at the start of a safetensors file, read strictly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "moxie/checkpoint.hpp"

namespace moxie {

// A larger header length is refused before anything is allocated (the published limit).
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct SafetensorsHeader {
  std::uint64_t header_bytes = 0;   // length field and header; the data section starts here
  std::vector<TensorInfo> tensors;  // in header order; `file` is left 0
};

// Reads the header of a whole file. Every tensor returned lies inside the file; together they cover
// the data section without overlap or hole. Error(input) names `origin`, the tensor and both byte
// counts.
SafetensorsHeader read_safetensors_header(std::span<const std::byte> file, std::string_view origin);

}  // namespace moxie
