// SPDX-License-Identifier: Apache-2.0
// What a dialect is: which prefixes it lives under and how it names the parts of a projection.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "moxie/types.hpp"

namespace moxie {

// Names inside "PREFIX.EXPERT.": projection, then part. An empty part does not exist in the
// dialect.
struct DialectNames {
  std::array<std::string_view, 3> projections;  // gate, up, down
  std::string_view codes;
  std::string_view block_scales;
  std::string_view dequant_mul{};      // f32 scalar
  std::string_view act_dequant_mul{};  // f32 scalar
  bool reciprocal = false;             // one over the scalars multiplies, not they
  std::string_view bias{};             // bf16 or f32 [n], of models whose experts have biases
  std::string_view foreign{};          // a part that tells another dialect
};

// How experts lie in tensors that hold all of a layer.
enum class StackKind : std::uint8_t {
  blocks,  // codes [experts, n, k/32, 16] and scales [experts, n, k/32]
  gguf     // blocks of codes and scales [experts, n, k]
};

// Names under "PREFIX."; gate, up, down. Gate and up of one name share a tensor, row by row: gate
// 0, up 0, gate 1, …
struct StackedNames {
  StackKind kind = StackKind::blocks;
  std::array<std::string_view, 3> codes;
  std::array<std::string_view, 3> block_scales;
  std::array<std::string_view, 3> biases;
  std::array<std::string_view, 3> dequant_muls{};      // f32 [experts]; absent: 1
  std::array<std::string_view, 3> act_dequant_muls{};  // f32 [experts]
};

// A dialect owns a group of expert tensors when it lives under the group's prefix and the group has
// codes and block scales under one of its namings.
struct Dialect {
  std::string_view name;
  // `quant_method` that declares this dialect; empty: its config declares another one too.
  std::string_view method{};
  BlockFormat format;
  std::span<const DialectNames> namings;
  std::string_view default_prefix;  // with "{}" for the layer number
  bool (*lives_under)(std::string_view prefix);
  const StackedNames* stacked = nullptr;  // instead of `namings`
};

extern const Dialect kDeepseekV4;
extern const Dialect kDeepseekV4Nvfp4;
extern const Dialect kModelopt;
extern const Dialect kCompressedTensorsNvfp4;
extern const Dialect kCompressedTensorsMxfp4;
extern const Dialect kQuark;
extern const Dialect kGptOss;
extern const Dialect kGptOssOriginal;
extern const Dialect kGgufMxfp4;
extern const Dialect kGgufNvfp4;

}  // namespace moxie
