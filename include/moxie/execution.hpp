// SPDX-License-Identifier: Apache-2.0
// What a call of a layer reports about itself: its status, its stages with their times, its flags.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "moxie/api.hpp"

namespace moxie {

// The stages of a layer call, in order.
enum class Stage : std::uint8_t {
  slots,     // ids to slots: counts, offsets, rows
  quantise,  // x to the activation format
  gate_up,   // gate and up products, activation function, requantisation
  down,      // down product
  combine,   // weighted sum over a token's slots
  reduce     // sum over the ranks held, in rank order; the final rounding
};
inline constexpr std::size_t kStageCount = 6;
MOXIE_API std::string_view name_of(Stage stage);

// Wall time of one call. Ranks of one process add up.
struct Trace {
  std::array<std::uint64_t, kStageCount> stage_ns{};
  std::uint64_t total_ns = 0;

  [[nodiscard]] std::uint64_t& operator[](Stage stage) {
    return stage_ns[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] std::uint64_t operator[](Stage stage) const {
    return stage_ns[static_cast<std::size_t>(stage)];
  }
};

// Bits that a call sets in the caller's flag word and never clears.
inline constexpr std::uint32_t kFlagBadExpertId =
    1;  // an id outside [0, experts) other than -1; its slot was skipped
inline constexpr std::uint32_t kFlagBadLogits =
    2;  // a token had fewer than top_k logits that are numbers; it got ids -1
inline constexpr std::uint32_t kFlagBadTokenId =
    4;  // a token id outside the hash table; the token got ids -1
inline constexpr std::uint32_t kFlagBadRowCount =
    8;  // rows of an expert below 0 or beyond their room; those beyond it were skipped

// What quantising to nvfp4 did to one stage's blocks of 16 values. Ranks of one process add up.
struct ActStage {
  std::uint64_t blocks = 0;
  std::uint64_t saturated = 0;    // amax above 2688 global scales: clipped there
  std::uint64_t underflowed = 0;  // not zero, and too small for a block scale: became zero
  std::uint64_t not_numbers = 0;  // holding NaN, which passes through
  std::uint64_t guarded = 0;  // global scales of no use (0, NaN, out of range); 1/2688 took over
  float least_scale = 0;      // global scales in use; 0 where nothing was quantised
  float most_scale = 0;
};

// Of x, and of the values between the products.
struct ActStats {
  ActStage x;
  ActStage act;
};

// The answer of a call. Anything but `ok` means that nothing was written.
enum class CallStatus : std::uint8_t {
  ok,
  workspace_too_small,  // ask workspace_size(tokens)
  bad_argument,         // a null pointer, a shape or a type that the layer does not take
  device_failed         // the device did not take the work; nothing is known about the result
};
MOXIE_API std::string_view name_of(CallStatus status);

}  // namespace moxie
