// SPDX-License-Identifier: Apache-2.0
// What lets one constexpr definition serve the host compiler and nvcc: a marker and a bit
// reinterpretation.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define MOXIE_HD __host__ __device__
#else
#define MOXIE_HD
#endif

namespace moxie {

// The bits of `from` read as another type of the same size. std::bit_cast is a host function to
// nvcc.
template <class To, class From>
MOXIE_HD constexpr To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "reinterpreting bits changes no size");
  return __builtin_bit_cast(To, from);
}

// One NaN for all decoders: quiet, positive, no payload.
MOXIE_HD constexpr float quiet_nan() { return bits_as<float>(std::uint32_t{0x7FC00000}); }

}  // namespace moxie
