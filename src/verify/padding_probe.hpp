// SPDX-License-Identifier: Apache-2.0
// Whether padding of a weight is inert: multiplied with numbers that are not zero, and looked at
// where a product could hide it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "kernels/ref/fp8_matrix.hpp"

namespace moxie {

// Values in [1, 2) of either sign: none is zero, and sums of few of them do not cancel.
class ProbeValues {
 public:
  ProbeValues(std::uint64_t seed, std::uint64_t path) : stream_(seed, {path}) {}
  std::vector<double> operator()(std::uint64_t count);

 private:
  Stream stream_;
  std::uint64_t next_ = 0;
};

// One place that is not inert.
struct PaddingFault {
  std::string what;  // "row 3 gives a product that is not zero"
  std::string expected;
  double got = 0;
  bool in_scales = false;
};

struct PaddingProbe {
  std::uint64_t zero_products = 0;
  std::vector<PaddingFault> faults;  // the first 20
};

// Rows from `first_row` on and columns from `first_col` on are padding. Three demands: products of
// the padded entries of each row are zero; no padded entry is -0, which no product shows; and a
// code of 1 in a tile of padding would weigh 2^-127, so that a scale shows beside zero codes, too.
PaddingProbe probe_padding(const ref::Fp8Matrix& matrix, std::uint64_t first_row,
                           std::uint64_t first_col, ProbeValues& values);

// bf16 rows from `first_row` on; `x` is as wide as they are.
PaddingProbe probe_padding(std::span<const std::uint16_t> rows, std::uint64_t first_row,
                           std::span<const double> x);

}  // namespace moxie
