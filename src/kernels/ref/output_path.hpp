// SPDX-License-Identifier: Apache-2.0
// From attention values to the block's stream, for one token and one rank: inverse rotation, one
// low-rank product per group of heads, one product back to the hidden width.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ref/fp8_matrix.hpp"

namespace moxie::ref {

// What one rank has: its own groups, virtual ones too, or all groups of a model on one rank.
struct OutputPath {
  std::uint64_t groups = 0;
  std::uint64_t heads_per_group = 0;  // consecutive heads
  std::uint64_t head_dim = 0;
  std::uint64_t group_rank = 0;         // r: rows of wo_a and columns of wo_b for each group
  std::span<const double> frequencies;  // [R/2], of this layer
  Fp8Matrix wo_a;                       // [groups * r, heads_per_group * head_dim]
  Fp8Matrix wo_b;                       // [hidden, groups * r]
};

// Nothing is rounded between the products. An engine that rounds adds to its bound: eps * magnitude
// for each rounding of z, eps * terms_magnitude for each one of the rotated values.
struct OutputPathResult {
  std::vector<double> rotated;          // [groups * heads_per_group, head_dim]
  std::vector<double> z;                // [groups, r]
  std::vector<double> z_magnitude;      // [groups, r] sums of |wo_a| |terms of the rotation|
  std::vector<double> contributions;    // [groups, hidden] what each group adds to y
  std::vector<double> y;                // [hidden] their sum in the order of groups
  std::vector<double> magnitude;        // [hidden] sums of |wo_b| |z|
  std::vector<double> terms_magnitude;  // [hidden] sums of |wo_b| z_magnitude
};

// `o` are the values of the rank's heads before the inverse rotation, `position` is the query's. A
// group whose wo_a rows and wo_b columns are zero contributes zeros whatever finite values its
// heads hold; values that are not finite reach y as NaN.
OutputPathResult output_path(const OutputPath& path, std::span<const double> o,
                             std::uint64_t position);

}  // namespace moxie::ref
