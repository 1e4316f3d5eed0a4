// SPDX-License-Identifier: Apache-2.0
// Inline assembly names its registers, so no function needs a target region; a loop is only handed
// out on a processor that has its instructions.
#include "measure/pinned_loops.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/cpu_features.hpp"

namespace moxie::measure {

namespace {

#if defined(__x86_64__)

bool has(std::initializer_list<std::string_view> names) {
  const auto features = cpu_features();
  return std::ranges::all_of(names, [&](std::string_view name) {
    return std::ranges::find(features, name) != features.end();
  });
}

// 14 independent chains hide the latency of every instruction below (at most 6 cycles, 1 or 2 a
// cycle) and leave two of the 16 registers that every encoding reaches to the operands.
// NOLINTBEGIN(cppcoreguidelines-macro-usage)
#define MOXIE_CHAIN(op, r, to) op " %%" r "14, %%" r "15, %%" r #to "\n"
#define MOXIE_CHAINS_7(op, r) \
  MOXIE_CHAIN(op, r, 0)       \
  MOXIE_CHAIN(op, r, 1)       \
  MOXIE_CHAIN(op, r, 2)       \
  MOXIE_CHAIN(op, r, 3)       \
  MOXIE_CHAIN(op, r, 4) MOXIE_CHAIN(op, r, 5) MOXIE_CHAIN(op, r, 6)
#define MOXIE_CHAINS_14(op, r) \
  MOXIE_CHAINS_7(op, r)        \
  MOXIE_CHAIN(op, r, 7)        \
  MOXIE_CHAIN(op, r, 8)        \
  MOXIE_CHAIN(op, r, 9)        \
  MOXIE_CHAIN(op, r, 10)       \
  MOXIE_CHAIN(op, r, 11) MOXIE_CHAIN(op, r, 12) MOXIE_CHAIN(op, r, 13)
#define MOXIE_SUM(r, from, to) "vpaddw %%" r #from ", %%" r #to ", %%" r #to "\n"
#define MOXIE_LOOP(body) ".p2align 6\n1:\n" body "dec %0\njnz 1b\nvzeroupper\n"
#define MOXIE_VECTORS                                                                      \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory"
// NOLINTEND(cppcoreguidelines-macro-usage)

constexpr double kChains = 14;

void run_vnni(std::uint64_t steps) {
  asm volatile(MOXIE_LOOP(MOXIE_CHAINS_14("vpdpbusd", "zmm")) : "+r"(steps)::MOXIE_VECTORS);
}

void run_bf16(std::uint64_t steps) {
  asm volatile(MOXIE_LOOP(MOXIE_CHAINS_14("vdpbf16ps", "zmm")) : "+r"(steps)::MOXIE_VECTORS);
}

// Products into seven registers, added to seven others.
void run_maddubs(std::uint64_t steps) {
  asm volatile(MOXIE_LOOP(MOXIE_CHAINS_7("vpmaddubsw", "ymm") MOXIE_SUM("ymm", 0, 7) MOXIE_SUM(
      "ymm", 1, 8) MOXIE_SUM("ymm", 2, 9) MOXIE_SUM("ymm", 3, 10) MOXIE_SUM("ymm", 4, 11)
                              MOXIE_SUM("ymm", 5, 12) MOXIE_SUM("ymm", 6, 13))
               : "+r"(steps)::MOXIE_VECTORS);
}

void read_avx512(const std::byte* from, std::uint64_t bytes) {
  const std::byte* end = from + bytes;
  if (from == end) return;
  asm volatile(
      ".p2align 6\n1:\n"
      "vpxord (%0), %%zmm0, %%zmm0\n"
      "vpxord 64(%0), %%zmm1, %%zmm1\n"
      "vpxord 128(%0), %%zmm2, %%zmm2\n"
      "vpxord 192(%0), %%zmm3, %%zmm3\n"
      "vpxord 256(%0), %%zmm4, %%zmm4\n"
      "vpxord 320(%0), %%zmm5, %%zmm5\n"
      "vpxord 384(%0), %%zmm6, %%zmm6\n"
      "vpxord 448(%0), %%zmm7, %%zmm7\n"
      "add $512, %0\ncmp %1, %0\njne 1b\nvzeroupper\n"
      : "+r"(from)
      : "r"(end)
      : MOXIE_VECTORS);
}

void read_avx2(const std::byte* from, std::uint64_t bytes) {
  const std::byte* end = from + bytes;
  if (from == end) return;
  asm volatile(
      ".p2align 6\n1:\n"
      "vpxor (%0), %%ymm0, %%ymm0\n"
      "vpxor 32(%0), %%ymm1, %%ymm1\n"
      "vpxor 64(%0), %%ymm2, %%ymm2\n"
      "vpxor 96(%0), %%ymm3, %%ymm3\n"
      "vpxor 128(%0), %%ymm4, %%ymm4\n"
      "vpxor 160(%0), %%ymm5, %%ymm5\n"
      "vpxor 192(%0), %%ymm6, %%ymm6\n"
      "vpxor 224(%0), %%ymm7, %%ymm7\n"
      "add $256, %0\ncmp %1, %0\njne 1b\nvzeroupper\n"
      : "+r"(from)
      : "r"(end)
      : MOXIE_VECTORS);
}

RegisterLoop usable(bool present, void (*run)(std::uint64_t), double ops) {
  return present ? RegisterLoop{.run = run, .ops = ops} : RegisterLoop{};
}

#endif

void read_portable(const std::byte* from, std::uint64_t bytes) {
  const auto* words = reinterpret_cast<const volatile std::uint64_t*>(from);
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < bytes / sizeof *words; ++i) sum += words[i];
  (void)sum;
}

}  // namespace

#if defined(__x86_64__)

RegisterLoop vnni_loop() {
  return usable(has({"avx512f", "avx512_vnni"}), run_vnni, kChains * 64 * 2);
}
RegisterLoop bf16_loop() {
  return usable(has({"avx512f", "avx512_bf16"}), run_bf16, kChains * 32 * 2);
}
RegisterLoop maddubs_loop() { return usable(has({"avx2"}), run_maddubs, kChains / 2 * 32 * 2); }

ReadLoop read_loop() {
  return has({"avx512f"}) ? read_avx512 : has({"avx2"}) ? read_avx2 : read_portable;
}

#else

RegisterLoop vnni_loop() { return {}; }
RegisterLoop bf16_loop() { return {}; }
RegisterLoop maddubs_loop() { return {}; }
ReadLoop read_loop() { return read_portable; }

#endif

}  // namespace moxie::measure
