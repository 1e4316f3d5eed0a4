// SPDX-License-Identifier: Apache-2.0
// cpu.avx512.experts.int8
#include "kernels/cpu/avx512/kernels.hpp"
#include "kernels/cpu/tiles/included.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

MOXIE_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")
// The vocabulary comes first.
// clang-format off
#include "kernels/cpu/avx512/simd.hpp"
#include "kernels/cpu/tiles/kernel_int8.hpp"
// clang-format on

namespace moxie::cpu::avx512 {

namespace {

using Kernel = tiles::KernelInt8<Simd>;

constexpr ExpertsKernel kKernel = {.run = Kernel::run,
                                   .workspace_bytes = Kernel::workspace_bytes,
                                   .supports = portable::supports_activation,
                                   .stores_y = true};

}  // namespace

const ExpertsKernel* experts_int8() { return &kKernel; }

}  // namespace moxie::cpu::avx512
MOXIE_TARGET_END
#else
namespace moxie::cpu::avx512 {
const ExpertsKernel* experts_int8() { return nullptr; }
}  // namespace moxie::cpu::avx512
#endif
