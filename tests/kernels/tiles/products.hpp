// SPDX-License-Identifier: Apache-2.0
// The products of two bands, of each instruction set, for tests of one matrix alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "formats/band_order.hpp"
#include "moxie/catalog.hpp"
#include "moxie/types.hpp"

namespace moxie::test {

// Rows of weights in two neighbouring bands.
inline constexpr std::uint64_t kBandPairRows = 2 * kBandRows;

// 32 rows of weights in the order of formats/band_order.hpp times rows of activations, which are
// quantised first.
struct BandProduct {
  BlockFormat format = BlockFormat::mxfp4;
  ActFormat act_format = ActFormat::bf16;
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  std::uint64_t columns = 0;  // multiple of 32
  const float* x = nullptr;   // [rows, columns]
  std::uint64_t rows = 0;     // at most 32
  float* sums = nullptr;      // [rows, 32]
};

// Only where the machine has the instructions.
void multiply_avx512(const BandProduct& product);
void multiply_avx2(const BandProduct& product);

// What this machine lacks for the kernel whose products are judged; empty: nothing.
inline std::string missing_for(std::string_view kernel) {
  const auto entry = std::ranges::find(kernel_catalog(), kernel, &KernelEntry::name);
  return missing_features(*entry, host_cpu().features);
}

}  // namespace moxie::test
