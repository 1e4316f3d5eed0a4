// SPDX-License-Identifier: Apache-2.0
// A row of activations that are known to within a radius, quantised: the value, and how far that of
// a correct engine may be.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ref/nvfp4_scale.hpp"
#include "moxie/types.hpp"

namespace moxie::ref {

// One row of the intermediate axis. Groups of columns start anew at every entry of `part_starts`.
struct RowToQuantise {
  std::span<const double> values;
  std::span<const double> radii;
  std::span<const std::uint64_t> part_starts;  // ascending, the first one 0
};

// `quantised` is what the codes of the values, rounded to fp32, stand for. `least` and `most` are
// the ends of what an engine may store, whose values and whose block scale follow from any row
// within the radii; NaN for NaN.
struct QuantisedRow {
  std::span<double> quantised;  // [values]
  std::span<double> least;      // [values]
  std::span<double> most;       // [values]
};
void quantise_row(ActFormat format, const RowToQuantise& row, const QuantisedRow& result);

// The same for nvfp4, with one global scale for each part.
void quantise_row(const RowToQuantise& row, std::span<const GlobalScale> scales,
                  const QuantisedRow& result);

// A row of x, which is known exactly, under one scale: code * block scale * global scale.
void quantise_nvfp4(std::span<const float> x, float scale, double* quantised);  // [x]

// The same for the formats of int8: scale * codes, which fp32 may not hold.
void quantise_int8(ActFormat format, std::span<const float> x, double* quantised);  // [x]

}  // namespace moxie::ref
