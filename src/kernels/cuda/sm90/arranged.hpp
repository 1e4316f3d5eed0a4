// SPDX-License-Identifier: Apache-2.0
// One expert in device memory as cuda.sm90.experts reads it: the strips of gate and up, those of
// down, six scalars, and the biases.
#pragma once

#include <cstdint>

#include "base/checked.hpp"
#include "base/host_device.hpp"
#include "kernels/contract.hpp"
#include "kernels/cuda/sm90/tiles.hpp"

namespace moxie::cuda::sm90 {

inline constexpr std::uint32_t kWarps = 16;  // that multiply, in a block

// One of the two matrix products of an expert, as the warps of a block share it. `splits` warps
// take a strip's steps, neighbouring ones each, so that a unit is kWarps / splits strips. Stage j
// of a unit is the j-th step of every warp that has one, warp after warp; what a block reads is
// stage after stage, unit after unit. Warp w has strip w % strips_of_unit and split
// w / strips_of_unit; the first steps % splits splits have one step more.
struct Product {
  std::uint32_t columns = 0;  // of the weights: the terms of a sum
  std::uint32_t steps = 0;    // of a strip
  std::uint32_t splits = 0;
  std::uint32_t strips_of_unit = 0;
  std::uint32_t units = 0;
  std::uint32_t least_steps = 0;  // of a split
  std::uint32_t longer = 0;       // splits that have one more
  std::uint32_t stages = 0;       // of a unit
  std::uint64_t unit_bytes = 0;
  std::uint64_t offset = 0;  // in the expert

  MOXIE_HD constexpr std::uint32_t first_step(std::uint32_t split) const {
    return split * least_steps + (split < longer ? split : longer);
  }
  MOXIE_HD constexpr std::uint32_t steps_of(std::uint32_t split) const {
    return least_steps + (split < longer ? 1 : 0);
  }
  MOXIE_HD constexpr std::uint32_t strips() const { return units * strips_of_unit; }
  // Warps that have a step in this stage: the first so many.
  MOXIE_HD constexpr std::uint32_t warps_in(std::uint32_t stage) const {
    return stage < least_steps ? kWarps : stage == least_steps ? longer * strips_of_unit : 0;
  }
  // Where a step of a strip lies, in bytes from the product's start.
  MOXIE_HD constexpr std::uint64_t offset_of(std::uint64_t strip, std::uint32_t step,
                                             std::uint32_t step_bytes) const {
    const std::uint32_t in_longer = longer * (least_steps + 1);
    const std::uint32_t split =
        step < in_longer ? step / (least_steps + 1) : longer + (step - in_longer) / least_steps;
    const std::uint32_t stage = step - first_step(split);
    const auto warp = static_cast<std::uint32_t>(split * strips_of_unit + strip % strips_of_unit);
    return strip / strips_of_unit * unit_bytes +
           (std::uint64_t{stage} * kWarps + warp) * step_bytes;
  }
};

// A strip of many steps is for half of the warps, one of few for a quarter: each has two steps or
// more where that is possible, and the strips, an even number, fill whole units.
constexpr std::uint32_t splits_of(std::uint64_t steps, std::uint64_t strips) {
  std::uint32_t splits = steps > 16 ? kWarps / 2 : kWarps / 4;
  while (strips % (kWarps / splits) != 0) splits *= 2;
  return splits;
}

struct Arranged {
  Product gate_up;
  Product down;
  bool gated = true;
  bool has_bias = false;
  // f32 [6]: of gate, up, down, 1 where the format has none; then the input scales of the three,
  // which the kernel does not use and keeps for whoever asks for the packed bytes.
  std::uint64_t muls = 0;
  std::uint64_t biases = 0;  // f32 [inter] gate, [inter] up, [hidden] down
  std::uint64_t stride = 0;  // bytes from expert to expert
};

inline Arranged arranged(const ExpertsShape& shape, const BlobOffsets& offsets) {
  constexpr std::uint64_t kAlign = 128;
  Arranged to;
  to.gated = offsets.gate != BlobOffsets::kAbsent;
  to.has_bias = offsets.up_bias != BlobOffsets::kAbsent;
  const auto product = [&](std::uint64_t rows, std::uint64_t columns, std::uint64_t offset) {
    const auto steps = static_cast<std::uint32_t>(columns / kStepColumns);
    const std::uint32_t splits = splits_of(steps, rows / kStripRows);
    const std::uint32_t strips = kWarps / splits;
    return Product{.columns = static_cast<std::uint32_t>(columns),
                   .steps = steps,
                   .splits = splits,
                   .strips_of_unit = strips,
                   .units = static_cast<std::uint32_t>(rows / kStripRows / strips),
                   .least_steps = steps / splits,
                   .longer = steps % splits,
                   .stages = (steps + splits - 1) / splits,
                   .unit_bytes = std::uint64_t{strips} * steps * step_bytes(shape.format),
                   .offset = offset};
  };
  to.gate_up = product((to.gated ? 2 : 1) * shape.inter, shape.hidden, 0);
  to.down = product(shape.hidden, shape.inter, to.gate_up.units * to.gate_up.unit_bytes);
  to.muls = to.down.offset + to.down.units * to.down.unit_bytes;
  to.biases = to.muls + 8 * sizeof(float);
  const std::uint64_t biases = to.has_bias ? 2 * shape.inter + shape.hidden : 0;
  to.stride = round_up(to.biases + biases * sizeof(float), kAlign);
  return to;
}

}  // namespace moxie::cuda::sm90
