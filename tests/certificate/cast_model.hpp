// SPDX-License-Identifier: Apache-2.0
// Tiny NVFP4 checkpoints whose block scales are those of MXFP4 experts.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "support/packed_model.hpp"

namespace moxie::test {

// Makes every block scale a power of two, equal in pairs: 2^-9..2^8, the subnormal ones included.
inline TinyEdit cast_scales(unsigned seed) {
  return [seed](TinyTensor& tensor) {
    if (!tensor.name.ends_with("weight_scale")) return true;
    std::mt19937 random(seed + static_cast<unsigned>(std::hash<std::string>{}(tensor.name)));
    constexpr std::uint8_t kSubnormals[] = {1, 2, 4};
    for (std::size_t i = 0; i < tensor.bytes.size(); i += 2) {
      const unsigned draw = random() % 18;
      const auto scale = draw < 3 ? kSubnormals[draw] : static_cast<std::uint8_t>((draw - 2) << 3U);
      tensor.bytes[i] = tensor.bytes[i + 1] = static_cast<char>(scale);
    }
    return true;
  };
}

// One byte of one tensor.
inline TinyEdit byte_of(std::string name, std::size_t at, std::uint8_t value) {
  return [name = std::move(name), at, value](TinyTensor& tensor) {
    if (tensor.name == name) tensor.bytes.at(at) = static_cast<char>(value);
    return true;
  };
}

inline TinyOptions cast_options(unsigned seed, TinyDialect dialect = TinyDialect::modelopt) {
  return {.dialect = dialect,
          .hidden = 64,
          .inter = 96,
          .experts = 3,
          .layers = 1,
          .edits = {cast_scales(seed)}};
}

}  // namespace moxie::test
