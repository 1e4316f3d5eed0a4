// SPDX-License-Identifier: Apache-2.0
// cpu.avx512.experts.bf16
#include "kernels/cpu/avx512/kernels.hpp"
#include "kernels/cpu/tiles/included.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

MOXIE_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bf16")
// Their order is that of their use.
// clang-format off
#include "kernels/cpu/avx512/simd.hpp"
#include "kernels/cpu/tiles/band.hpp"
#include "kernels/cpu/tiles/products_bf16.hpp"
#include "kernels/cpu/tiles/quantise.hpp"
#include "kernels/cpu/tiles/activate_lanes.hpp"
#include "kernels/cpu/tiles/experts.hpp"
// clang-format on

namespace moxie::cpu::avx512 {

namespace {

template <BlockFormat kFormat>
void run_format(const ExpertsArgs& args) {
  using Products = tiles::ProductsBf16<Simd, kFormat>;
  tiles::ExpertsCall<Simd, Products, tiles::ToBf16<Simd>>(args).run();
}

void run(const ExpertsArgs& args) {
  if (args.shape.format == BlockFormat::mxfp4) return run_format<BlockFormat::mxfp4>(args);
  run_format<BlockFormat::nvfp4>(args);
}

std::uint64_t workspace_bytes(const ExpertsShape& shape, std::uint64_t tokens) {
  return tiles::workspace_layout(shape, tokens, sizeof(tiles::Bf16Record)).bytes;
}

constexpr ExpertsKernel kKernel = {.run = run,
                                   .workspace_bytes = workspace_bytes,
                                   .supports = portable::supports_activation,
                                   .stores_y = true};

}  // namespace

const ExpertsKernel* experts_bf16() { return &kKernel; }

}  // namespace moxie::cpu::avx512
MOXIE_TARGET_END
#else
namespace moxie::cpu::avx512 {
const ExpertsKernel* experts_bf16() { return nullptr; }
}  // namespace moxie::cpu::avx512
#endif
