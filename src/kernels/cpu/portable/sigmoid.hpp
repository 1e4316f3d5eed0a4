// SPDX-License-Identifier: Apache-2.0
// The logistic function in fp32.
#pragma once

#include <cmath>

namespace moxie::cpu::portable {

// Neither side overflows.
inline float sigmoid(float z) {
  const float e = std::exp(-std::fabs(z));
  return (z >= 0 ? 1.0F : e) / (1.0F + e);
}

}  // namespace moxie::cpu::portable
