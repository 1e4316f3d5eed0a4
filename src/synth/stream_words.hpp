// SPDX-License-Identifier: Apache-2.0
// What the patterns are made from: words of a tensor's bytes, its random streams, its positions.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/random.hpp"
#include "synth/code_tables.hpp"
#include "synth/names.hpp"
#include "synth/recipe.hpp"

namespace moxie::synth {

static_assert(std::endian::native == std::endian::little, "checkpoints are little endian");

inline constexpr std::uint64_t kEachByte = 0x0101010101010101;

// Calls word_at(i) for the bytes 8i..8i+7 of the tensor, lowest byte first.
template <class WordAt>
void fill_words(std::uint64_t begin, std::span<std::byte> out, WordAt word_at) {
  std::uint64_t index = begin / 8;
  std::size_t at = 0;
  if (const std::uint64_t skip = begin % 8; skip != 0) {
    const std::uint64_t word = word_at(index++) >> (8 * skip);
    at = std::min<std::size_t>(8 - skip, out.size());
    std::memcpy(out.data(), &word, at);
  }
  for (; out.size() - at >= 8; at += 8) {
    const std::uint64_t word = word_at(index++);
    std::memcpy(out.data() + at, &word, 8);
  }
  if (at < out.size()) {
    const std::uint64_t word = word_at(index);
    std::memcpy(out.data() + at, &word, out.size() - at);
  }
}

// What the bytes of a stream are for; part of the stream's path, so the values stay as they are.
enum class Part : std::uint8_t {
  codes = 0,
  scales = 1,
  router_weight = 2,
  router_bias = 3,
  token_table = 4,
  weight_global = 5,
  input_global = 6,
  dense_weight = 7,
  tile_scales = 8,
  expert_bias = 9,
  biases = 10,
  elements = 11
};

inline Stream stream_of(const Recipe& recipe, const Tensor& tensor, Part part) {
  if (tensor.stream != 0) return {recipe.seed, {tensor.stream, static_cast<std::uint64_t>(part)}};
  return {recipe.seed,
          {tensor.layer, tensor.expert, static_cast<std::uint64_t>(tensor.projection),
           static_cast<std::uint64_t>(part)}};
}

inline std::uint64_t look_up(const ByteTable& table, std::uint64_t random) {
  std::uint64_t word = 0;
  for (unsigned shift = 0; shift < 64; shift += 8) {
    word |= std::uint64_t{table[(random >> shift) & 0xFF]} << shift;
  }
  return word;
}

// Sum of four random bytes less its mean: near Gaussian, deviation 148, at most 510.
inline int centred_sum(std::uint32_t random) {
  const std::uint32_t pairs = (random & 0x00FF00FF) + ((random >> 8) & 0x00FF00FF);
  return static_cast<int>((pairs & 0xFFFF) + (pairs >> 16)) - 510;
}

// (31 * position + tensor number) mod 113: legal E4M3 and E8M0 codes, and small whole numbers. 113
// is prime and below every NaN code: neighbours differ, and so do neighbouring tensors.
inline std::uint64_t position_value(const Tensor& tensor, std::uint64_t position) {
  return (31 * (position % 113) + tensor.number) % 113;
}

// The same of the bytes 8i..8i+7.
inline std::uint64_t position_word(const Tensor& tensor, std::uint64_t i) {
  std::uint64_t word = 0;
  for (unsigned byte = 0; byte < 8; ++byte)
    word |= position_value(tensor, 8 * i + byte) << (8 * byte);
  return word;
}

}  // namespace moxie::synth
