// SPDX-License-Identifier: Apache-2.0
// Numbers that GGUF files give to element types and to kinds of metadata.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "moxie/types.hpp"

namespace moxie {

inline constexpr std::uint32_t kGgufMagic = 0x46554747;  // "GGUF", lowest byte first
inline constexpr std::uint32_t kGgufAlignment = 32;      // where the file does not say

enum class GgufValue : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};

// A tensor's rows are whole blocks of `elems` in `bytes`.
struct GgufType {
  std::uint32_t number = 0;
  std::uint32_t elems = 1;
  std::uint32_t bytes = 0;
  DType dtype = DType::other_blocks;
};

inline constexpr std::array kGgufTypes{
    GgufType{0, 1, 4, DType::f32},
    GgufType{1, 1, 2, DType::f16},
    GgufType{2, 32, 18},    // Q4_0
    GgufType{3, 32, 20},    // Q4_1
    GgufType{6, 32, 22},    // Q5_0
    GgufType{7, 32, 24},    // Q5_1
    GgufType{8, 32, 34},    // Q8_0
    GgufType{9, 32, 40},    // Q8_1
    GgufType{10, 256, 84},  // Q2_K
    GgufType{11, 256, 110},
    GgufType{12, 256, 144},
    GgufType{13, 256, 176},
    GgufType{14, 256, 210},  // Q6_K
    GgufType{15, 256, 292},  // Q8_K
    GgufType{16, 256, 66},   // IQ2_XXS
    GgufType{17, 256, 74},
    GgufType{18, 256, 98},
    GgufType{19, 256, 50},  // IQ1_S
    GgufType{20, 32, 18},   // IQ4_NL
    GgufType{21, 256, 110},
    GgufType{22, 256, 82},
    GgufType{23, 256, 136},  // IQ4_XS
    GgufType{24, 1, 1, DType::i8},
    GgufType{25, 1, 2, DType::i16},
    GgufType{26, 1, 4, DType::i32},
    GgufType{27, 1, 8, DType::i64},
    GgufType{28, 1, 8, DType::f64},
    GgufType{29, 256, 56},  // IQ1_M
    GgufType{30, 1, 2, DType::bf16},
    GgufType{34, 256, 54},  // TQ1_0
    GgufType{35, 256, 66},  // TQ2_0
    GgufType{39, 32, 17, DType::mxfp4_blocks},
    GgufType{40, 64, 36, DType::nvfp4_blocks},
    GgufType{41, 128, 18},  // Q1_0
};

// nullopt for a number whose block size is not known here.
inline std::optional<GgufType> gguf_type(std::uint32_t number) {
  const auto type = std::ranges::find(kGgufTypes, number, &GgufType::number);
  return type == kGgufTypes.end() ? std::nullopt : std::optional(*type);
}

// The type that a tensor of this element type is written in; nullopt when GGUF has none.
inline std::optional<GgufType> gguf_type(DType dtype) {
  const auto type = std::ranges::find(kGgufTypes, dtype, &GgufType::dtype);
  const bool known = type != kGgufTypes.end() && dtype != DType::other_blocks;
  return known ? std::optional(*type) : std::nullopt;
}

}  // namespace moxie
