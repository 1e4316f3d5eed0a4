// SPDX-License-Identifier: Apache-2.0
// Rotary positions of DeepSeek-V4: the angles per position, with and without YaRN, and the rotation
// of adjacent pairs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace moxie::ref {

// What stretches the slow pairs to longer contexts. There is no magnitude factor.
struct Yarn {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  double original_max = 0;  // positions
};

// Layers without compressed keys (and MTP blocks) have rope_theta and no YaRN; the others have
// compress_rope_theta and YaRN.
struct RotaryParameters {
  double theta = 10000;
  std::uint64_t dims = 64;   // R, even: the last R of a head
  std::optional<Yarn> yarn;  // absent: plain
};

// Radians per position of each pair.
std::vector<double> rotary_frequencies(const RotaryParameters& parameters);  // [R/2]

enum class Rotation : std::uint8_t {
  forward,  // queries and keys
  inverse,  // attention values, at the position of the query
};

// Turns the pairs (2i, 2i + 1) of the last 2 * frequencies.size() values of one head.
void rotate(std::span<double> head, std::span<const double> frequencies, std::uint64_t position,
            Rotation rotation);

// |cos| |x0| + |sin| |x1| and |sin| |x0| + |cos| |x1| in place of each pair, |x| before them: what
// rounding errors of the rotation scale with.
void rotate_magnitude(std::span<double> head, std::span<const double> frequencies,
                      std::uint64_t position);

}  // namespace moxie::ref
