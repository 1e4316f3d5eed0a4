// SPDX-License-Identifier: Apache-2.0
// The quantiser's inner loops in AVX-512: 16 floats are one register.
#include "base/target_region.hpp"
#include "quantize/row_kernels.hpp"
#include "quantize/row_scalars.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

MOXIE_TARGET_BEGIN("avx2,avx512f,avx512bw,avx512vl")
#include "quantize/row_kernel.hpp"

namespace moxie {

namespace {

struct Avx512Lanes {
  using Floats = __m512;
  using Doubles = __m512d;
  using Quad = __m256d;

  static Floats load_f32(const std::byte* from) { return _mm512_loadu_ps(from); }
  static Floats load_bf16(const std::byte* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }

  static Floats magnitude(Floats x) { return _mm512_abs_ps(x); }
  static Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static float largest_of(Floats x) { return _mm512_reduce_max_ps(x); }
  static Floats larger_bits(Floats a, Floats b) {
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static std::uint32_t largest_bits_of(Floats x) {
    return _mm512_reduce_max_epu32(_mm512_castps_si512(x));
  }
  static Floats divided(Floats x, float divisor) {
    return _mm512_div_ps(x, _mm512_set1_ps(divisor));
  }
  static unsigned count_above(Floats x, float bound) {
    return static_cast<unsigned>(
        __builtin_popcount(_mm512_cmp_ps_mask(x, _mm512_set1_ps(bound), _CMP_GT_OQ)));
  }

  struct Nearest {
    Floats values;
    __m512i codes;
  };
  // Below 1 the grid has steps of 1/2, one ulp next to 2^22: the addition rounds to nearest even
  // and the distance in ulps is the code. From 1 on one mantissa bit stays; 22 go.
  static Nearest nearest(Floats magnitudes) {
    const __m512 most = _mm512_set1_ps(kE2m1Max);
    const __m512 anchor = _mm512_set1_ps(0x1p22F);
    const __m512 x = _mm512_min_ps(magnitudes, most);
    const __m512i small = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(x, anchor)),
                                           _mm512_castps_si512(anchor));
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i kept_is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 22), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x1FFFFF)), kept_is_odd);
    // The code of 1 is 2, its exponent and kept bit are 127 << 1.
    const __m512i large = _mm512_sub_epi32(_mm512_srli_epi32(rounded, 22), _mm512_set1_epi32(252));
    const __mmask16 is_small = _mm512_cmp_ps_mask(x, _mm512_set1_ps(1.0F), _CMP_LT_OQ);
    const __m512i codes = _mm512_mask_blend_epi32(is_small, large, small);
    const __m512 grid = _mm512_setr_ps(0, 0.5F, 1, 1.5F, 2, 3, 4, 6, 0, 0.5F, 1, 1.5F, 2, 3, 4, 6);
    return {_mm512_permutexvar_ps(codes, grid), codes};
  }

  // Codes with the signs of `values`, even columns in the low nibbles.
  static void write_codes(__m512i codes, Floats values, std::uint8_t* packed) {
    const __m512i signs =
        _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(values), 28), _mm512_set1_epi32(8));
    const __m512i nibbles = _mm512_or_si512(codes, signs);
    const __m512i pairs = _mm512_or_si512(nibbles, _mm512_srli_epi64(nibbles, 28));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(packed), _mm512_cvtepi64_epi8(pairs));
  }

  static Doubles zeros() { return _mm512_setzero_pd(); }
  static Doubles all(double x) { return _mm512_set1_pd(x); }
  static Doubles magnitude(Doubles x) { return _mm512_abs_pd(x); }
  static Doubles larger(Doubles a, Doubles b) { return _mm512_max_pd(a, b); }
  static Doubles low(Floats x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
  static Doubles high(Floats x) {
    return _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
  }
  static void store(Doubles x, double (&to)[8]) { _mm512_storeu_pd(to, x); }

  static Quad quad_zeros() { return _mm256_setzero_pd(); }
  static Quad add_fours(Quad sums, Doubles x) {
    sums = _mm256_add_pd(sums, _mm512_castpd512_pd256(x));
    return _mm256_add_pd(sums, _mm512_extractf64x4_pd(x, 1));
  }
  static double sum_of(Quad x) {
    const __m128d pairs = _mm_hadd_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_add_sd(pairs, _mm_unpackhi_pd(pairs, pairs)));
  }
};

}  // namespace

using Avx512Kernel = RowKernel<Avx512Lanes>;
const RowKernels kAvx512RowKernels = {"avx512", Avx512Kernel::largest_bits, Avx512Kernel::nvfp4,
                                      Avx512Kernel::mxfp4};

}  // namespace moxie

MOXIE_TARGET_END
#endif
