// SPDX-License-Identifier: Apache-2.0
// The directory at the start of a GGUF file, read strictly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "moxie/checkpoint.hpp"
#include "moxie/json.hpp"

namespace moxie {

struct GgufHeader {
  std::uint64_t header_bytes = 0;  // with the padding behind it; the data section starts here
  // Values by their keys. Vocabularies are not among them: an array stays only when it has numbers
  // and no more than a model has layers. Numbers that are not finite are their names.
  Json metadata = Json::object();
  std::vector<TensorInfo> tensors;  // in header order; `file` is left 0
};

// Reads the header of a whole file. Every tensor returned lies inside the file, at the file's
// alignment; none overlap, and no more lies between them than alignment asks for. Error(input)
// names `origin`, the tensor or key, and what was expected.
GgufHeader read_gguf_header(std::span<const std::byte> file, std::string_view origin);

}  // namespace moxie
