// SPDX-License-Identifier: Apache-2.0
// cpu.avx512.experts.int8
#include "kernels/cpu/avx512/kernels.hpp"
#include "kernels/cpu/tiles/included.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

MOXIE_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")
// Their order is that of their use.
// clang-format off
#include "kernels/cpu/avx512/simd.hpp"
#include "kernels/cpu/tiles/band.hpp"
#include "kernels/cpu/tiles/products_int8.hpp"
#include "kernels/cpu/tiles/quantise.hpp"
#include "kernels/cpu/tiles/activate_lanes.hpp"
#include "kernels/cpu/tiles/experts.hpp"
// clang-format on

namespace moxie::cpu::avx512 {

namespace {

template <BlockFormat kFormat, template <class> class Planes, class Quantise>
void run_planes(const ExpertsArgs& args) {
  tiles::ExpertsCall<Simd, tiles::ProductsInt8<Simd, kFormat, Planes>, Quantise>(args).run();
}

template <BlockFormat kFormat>
void run_format(const ExpertsArgs& args) {
  if (args.shape.act_format == ActFormat::int8)
    return run_planes<kFormat, tiles::OnePlane, tiles::ToInt8<Simd>>(args);
  run_planes<kFormat, tiles::TwoPlanes, tiles::ToInt8x2<Simd>>(args);
}

void run(const ExpertsArgs& args) {
  if (args.shape.format == BlockFormat::mxfp4) return run_format<BlockFormat::mxfp4>(args);
  run_format<BlockFormat::nvfp4>(args);
}

std::uint64_t workspace_bytes(const ExpertsShape& shape, std::uint64_t tokens) {
  const bool one = shape.act_format == ActFormat::int8;
  return tiles::workspace_layout(shape, tokens,
                                 one ? sizeof(tiles::Int8Record) : sizeof(tiles::Int8x2Record))
      .bytes;
}

constexpr ExpertsKernel kKernel = {
    .run = run, .workspace_bytes = workspace_bytes, .supports = portable::supports_activation};

}  // namespace

const ExpertsKernel* experts_int8() { return &kKernel; }

}  // namespace moxie::cpu::avx512
MOXIE_TARGET_END
#else
namespace moxie::cpu::avx512 {
const ExpertsKernel* experts_int8() { return nullptr; }
}  // namespace moxie::cpu::avx512
#endif
