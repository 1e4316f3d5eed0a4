// SPDX-License-Identifier: Apache-2.0
// A tiny model with scales of one magnitude, a routed probe and what a layer of it needs.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "formats/bf16.hpp"
#include "moxie/verify.hpp"
#include "support/packed_model.hpp"

namespace moxie::test {

// Scale bytes of which neighbours differ and whose products stay near 1.
inline TinyEdit moderate_scales() {
  return [](TinyTensor& tensor) {
    const bool e8m0 = tensor.dtype == DType::f8_e8m0;
    if (!e8m0 && tensor.dtype != DType::f8_e4m3) return true;
    for (char& byte : tensor.bytes) {
      const auto number = static_cast<unsigned char>(byte);
      byte = static_cast<char>(e8m0 ? 121 + number % 5 : 0x30 + number % 0x10);
    }
    return true;
  };
}

// Globals near 1 / 4, which differ.
inline TinyEdit moderate_globals() {
  return [](TinyTensor& tensor) {
    if (tensor.dtype != DType::f32 || !tensor.name.ends_with("weight_scale_2")) return true;
    float value = 0;
    std::memcpy(&value, tensor.bytes.data(), sizeof value);
    value = 0.25F + value / 4;
    std::memcpy(tensor.bytes.data(), &value, sizeof value);
    return true;
  };
}

inline TinyOptions moderate(BlockFormat format, std::vector<TinyEdit> more = {},
                            std::uint64_t inter = 192, std::uint64_t hidden = 64) {
  TinyOptions options = tiny_options(format, inter, hidden);
  options.edits = {moderate_scales(), moderate_globals()};
  for (TinyEdit& edit : more) options.edits.push_back(std::move(edit));
  return options;
}

// Gaussian x and random ids; the slots of every third token are masked.
inline Probe any_probe(std::uint64_t tokens, std::uint64_t hidden, std::uint64_t experts,
                       std::uint64_t seed, DType dtype = DType::bf16) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Probe probe{.tokens = tokens, .hidden = hidden, .top_k = 2, .x_dtype = dtype};
  for (std::uint64_t i = 0; i < tokens * hidden; ++i) {
    const float value = normal(random);
    const std::uint16_t half = encode_bf16(value);
    const auto* bytes = dtype == DType::bf16 ? reinterpret_cast<const std::byte*>(&half)
                                             : reinterpret_cast<const std::byte*>(&value);
    probe.x.insert(probe.x.end(), bytes, bytes + (dtype == DType::bf16 ? 2 : 4));
  }
  for (std::uint64_t s = 0; s < tokens * probe.top_k; ++s) {
    const bool masked = s / probe.top_k % 3 == 2;
    probe.topk_ids.push_back(masked ? -1 : static_cast<std::int32_t>(random() % experts));
    probe.topk_weights.push_back(0.25F + static_cast<float>(random() % 512) / 1024);
  }
  return probe;
}

inline LayerSpec clamped_spec() {
  return {.top_k = 2, .activation = Activation::clamped_swiglu, .activation_limit = 10.0};
}

inline std::vector<float> floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

}  // namespace moxie::test
