// SPDX-License-Identifier: Apache-2.0
// Two bands by the kernels' own products.
#include "kernels/cpu/tiles/included.hpp"
#include "kernels/tiles/products.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

MOXIE_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bf16")
// clang-format off
#include "kernels/cpu/avx512/simd.hpp"
#include "kernels/cpu/tiles/band.hpp"
#include "kernels/cpu/tiles/products_bf16.hpp"
#include "kernels/cpu/tiles/products_int8.hpp"
#include "kernels/cpu/tiles/quantise.hpp"
#include "kernels/tiles/run_product.hpp"
// clang-format on

namespace moxie::test {

namespace {

using cpu::avx512::Simd;

template <BlockFormat kFormat>
void run_format(const BandProduct& product) {
  using namespace cpu::tiles;
  if (product.act_format == ActFormat::bf16)
    return run_product<ProductsBf16<Simd, kFormat>, ToBf16<Simd>>(product);
  if (product.act_format == ActFormat::int8)
    return run_product<ProductsInt8<Simd, kFormat, OnePlane>, ToInt8<Simd>>(product);
  run_product<ProductsInt8<Simd, kFormat, TwoPlanes>, ToInt8x2<Simd>>(product);
}

}  // namespace

void multiply_avx512(const BandProduct& product) {
  if (product.format == BlockFormat::mxfp4) return run_format<BlockFormat::mxfp4>(product);
  run_format<BlockFormat::nvfp4>(product);
}

}  // namespace moxie::test
MOXIE_TARGET_END
#else
namespace moxie::test {
void multiply_avx512(const BandProduct& /*product*/) {}
}  // namespace moxie::test
#endif
