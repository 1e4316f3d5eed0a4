// SPDX-License-Identifier: Apache-2.0
// Random numbers by position: integer arithmetic only, so that threads and machines do not change
// them.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace moxie {

// Output function and increment of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom
// Number Generators", 2014).
inline constexpr std::uint64_t kGoldenGamma = 0x9E3779B97F4A7C15;

constexpr std::uint64_t mix64(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// 64 random bits for every index; any index costs the same.
class Stream {
 public:
  // `path` names the stream below the seed, e.g. {layer, expert, part}.
  constexpr Stream(std::uint64_t seed, std::initializer_list<std::uint64_t> path)
      : key_(mix64(seed + kGoldenGamma)) {
    for (const std::uint64_t step : path) key_ = mix64(key_ + (step + 1) * kGoldenGamma);
  }

  [[nodiscard]] constexpr std::uint64_t word(std::uint64_t index) const {
    return mix64(key_ + (index + 1) * kGoldenGamma);
  }

 private:
  std::uint64_t key_;
};

}  // namespace moxie
