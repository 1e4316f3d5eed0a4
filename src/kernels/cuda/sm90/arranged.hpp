// SPDX-License-Identifier: Apache-2.0
// One expert in device memory as cuda.sm90.experts reads it: the strips of gate and up, those of
// down, three global scales, and the biases.
#pragma once

#include <cstdint>

#include "base/checked.hpp"
#include "base/host_device.hpp"
#include "kernels/contract.hpp"
#include "kernels/cuda/sm90/tiles.hpp"

namespace moxie::cuda::sm90 {

// One of the two matrix products of an expert.
struct Product {
  std::uint32_t columns = 0;  // of the weights: the terms of a sum
  std::uint32_t steps = 0;    // of a strip
  std::uint32_t strips = 0;
  std::uint64_t strip_bytes = 0;
  std::uint64_t offset = 0;  // in the expert
};

struct Arranged {
  Product gate_up;
  Product down;
  bool gated = true;
  bool has_bias = false;
  std::uint64_t muls = 0;    // f32 [3] of gate, up, down; 1 where the format has none
  std::uint64_t biases = 0;  // f32 [inter] gate, [inter] up, [hidden] down
  std::uint64_t stride = 0;  // bytes from expert to expert
};

inline Arranged arranged(const ExpertsShape& shape, const BlobOffsets& offsets) {
  constexpr std::uint64_t kAlign = 128;
  Arranged to;
  to.gated = offsets.gate != BlobOffsets::kAbsent;
  to.has_bias = offsets.up_bias != BlobOffsets::kAbsent;
  const auto product = [&](std::uint64_t rows, std::uint64_t columns, std::uint64_t offset) {
    const std::uint64_t steps = columns / kStepColumns;
    return Product{.columns = static_cast<std::uint32_t>(columns),
                   .steps = static_cast<std::uint32_t>(steps),
                   .strips = static_cast<std::uint32_t>(rows / kStripRows),
                   .strip_bytes = steps * step_bytes(shape.format),
                   .offset = offset};
  };
  to.gate_up = product((to.gated ? 2 : 1) * shape.inter, shape.hidden, 0);
  const std::uint64_t down = to.gate_up.strips * to.gate_up.strip_bytes;
  to.down = product(shape.hidden, shape.inter, down);
  to.muls = down + to.down.strips * to.down.strip_bytes;
  to.biases = to.muls + 4 * sizeof(float);
  const std::uint64_t biases = to.has_bias ? 2 * shape.inter + shape.hidden : 0;
  to.stride = round_up(to.biases + biases * sizeof(float), kAlign);
  return to;
}

}  // namespace moxie::cuda::sm90
