// SPDX-License-Identifier: Apache-2.0
// Sums of statistics.
#include <algorithm>
#include <cmath>
#include <limits>

#include "moxie/quantize.hpp"

namespace moxie {

void QuantStats::merge(const QuantStats& other) {
  elems += other.elems;
  blocks += other.blocks;
  zero_blocks += other.zero_blocks;
  saturated_blocks += other.saturated_blocks;
  underflowed_blocks += other.underflowed_blocks;
  clipped_elems += other.clipped_elems;
  flushed_elems += other.flushed_elems;
  raised_globals += other.raised_globals;
  signal += other.signal;
  noise += other.noise;
  max_error = std::max(max_error, other.max_error);
}

double QuantStats::snr_db() const {
  if (signal == 0) return std::numeric_limits<double>::quiet_NaN();
  if (noise == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(signal / noise);
}

}  // namespace moxie
