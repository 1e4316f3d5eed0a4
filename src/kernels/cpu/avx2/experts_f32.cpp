// SPDX-License-Identifier: Apache-2.0
// cpu.avx2.experts.f32
#include "kernels/cpu/avx2/kernels.hpp"
#include "kernels/cpu/tiles/included.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

MOXIE_TARGET_BEGIN("avx2,fma,f16c")
// Their order is that of their use.
// clang-format off
#include "kernels/cpu/avx2/simd.hpp"
#include "kernels/cpu/tiles/band.hpp"
#include "kernels/cpu/tiles/products_f32.hpp"
#include "kernels/cpu/tiles/quantise.hpp"
#include "kernels/cpu/tiles/activate_lanes.hpp"
#include "kernels/cpu/tiles/experts.hpp"
// clang-format on

namespace moxie::cpu::avx2 {

namespace {

template <BlockFormat kFormat>
void run_format(const ExpertsArgs& args) {
  tiles::ExpertsCall<Simd, tiles::ProductsF32<Simd, kFormat>, tiles::ToF32<Simd>>(args).run();
}

void run(const ExpertsArgs& args) {
  if (args.shape.format == BlockFormat::mxfp4) return run_format<BlockFormat::mxfp4>(args);
  run_format<BlockFormat::nvfp4>(args);
}

std::uint64_t workspace_bytes(const ExpertsShape& shape, std::uint64_t tokens) {
  return tiles::workspace_layout(shape, tokens, sizeof(tiles::F32Record)).bytes;
}

constexpr ExpertsKernel kKernel = {.run = run,
                                   .workspace_bytes = workspace_bytes,
                                   .supports = portable::supports_activation,
                                   .stores_y = true};

}  // namespace

const ExpertsKernel* experts_f32() { return &kKernel; }

}  // namespace moxie::cpu::avx2
MOXIE_TARGET_END
#else
namespace moxie::cpu::avx2 {
const ExpertsKernel* experts_f32() { return nullptr; }
}  // namespace moxie::cpu::avx2
#endif
