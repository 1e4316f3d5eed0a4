// SPDX-License-Identifier: Apache-2.0
// Loops that do nothing but what they measure, in instructions that are written out: no compiler
// spills an accumulator of theirs. Chosen at run time by what the processor offers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moxie::measure {

// Arithmetic on registers alone.
struct RegisterLoop {
  void (*run)(std::uint64_t steps) = nullptr;  // null: this processor lacks the instruction
  double ops = 0;                              // multiplications and additions of one step
};
RegisterLoop vnni_loop();     // vpdpbusd on 512 bits: 8-bit products into 32-bit sums
RegisterLoop bf16_loop();     // vdpbf16ps on 512 bits
RegisterLoop maddubs_loop();  // vpmaddubsw and vpaddw on 256 bits: 8-bit products into 16-bit sums

// Reads every cache line from `from`, one linear stream with the widest loads there are. `bytes` is
// a multiple of kReadBlock.
inline constexpr std::uint64_t kReadBlock = 512;
using ReadLoop = void (*)(const std::byte* from, std::uint64_t bytes);
ReadLoop read_loop();

}  // namespace moxie::measure
