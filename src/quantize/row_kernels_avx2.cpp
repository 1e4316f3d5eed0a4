// SPDX-License-Identifier: Apache-2.0
// The quantiser's inner loops in AVX2: 16 floats are two registers.
#include "base/target_region.hpp"
#include "quantize/row_kernels.hpp"
#include "quantize/row_scalars.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

MOXIE_TARGET_BEGIN("avx2")
#include "quantize/row_kernel.hpp"

namespace moxie {

namespace {

struct Avx2Lanes {
  struct Floats {
    __m256 a, b;  // columns 0-7 and 8-15
  };
  struct Doubles {
    __m256d a, b;
    Doubles operator+(Doubles y) const { return {_mm256_add_pd(a, y.a), _mm256_add_pd(b, y.b)}; }
    Doubles operator-(Doubles y) const { return {_mm256_sub_pd(a, y.a), _mm256_sub_pd(b, y.b)}; }
    Doubles operator*(Doubles y) const { return {_mm256_mul_pd(a, y.a), _mm256_mul_pd(b, y.b)}; }
  };
  using Quad = __m256d;

  static __m256 widened(__m128i bf16) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16));
  }
  static Floats load_f32(const std::byte* from) {
    return {_mm256_loadu_ps(reinterpret_cast<const float*>(from)),
            _mm256_loadu_ps(reinterpret_cast<const float*>(from + 32))};
  }
  static Floats load_bf16(const std::byte* from) {
    return {widened(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
            widened(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16)))};
  }

  static Floats magnitude(Floats x) {
    const __m256 sign = _mm256_set1_ps(-0.0F);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
  }
  static Floats larger(Floats x, Floats y) {
    return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
  }
  static float largest_of(Floats x) {
    const __m256 eight = _mm256_max_ps(x.a, x.b);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  static __m256 larger_bits(__m256 x, __m256 y) {
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(x), _mm256_castps_si256(y)));
  }
  static Floats larger_bits(Floats x, Floats y) {
    return {larger_bits(x.a, y.a), larger_bits(x.b, y.b)};
  }
  static std::uint32_t largest_bits_of(Floats x) {
    alignas(32) std::uint32_t bits[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(bits),
                       _mm256_castps_si256(larger_bits(x.a, x.b)));
    std::uint32_t largest = 0;
    for (const std::uint32_t value : bits) largest = value > largest ? value : largest;
    return largest;
  }
  static Floats divided(Floats x, float divisor) {
    const __m256 by = _mm256_set1_ps(divisor);
    return {_mm256_div_ps(x.a, by), _mm256_div_ps(x.b, by)};
  }
  static unsigned count_above(Floats x, float bound) {
    const __m256 limit = _mm256_set1_ps(bound);
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(x.a, limit, _CMP_GT_OQ));
    const int high = _mm256_movemask_ps(_mm256_cmp_ps(x.b, limit, _CMP_GT_OQ));
    return static_cast<unsigned>(__builtin_popcount(static_cast<unsigned>(low | (high << 8))));
  }

  // Below 1 the grid has steps of 1/2, one ulp next to 2^22: the addition rounds to nearest even
  // and the distance in ulps is the code. From 1 on one mantissa bit stays; 22 go.
  static __m256i nearest_codes(__m256 magnitudes) {
    const __m256 anchor = _mm256_set1_ps(0x1p22F);
    const __m256 x = _mm256_min_ps(magnitudes, _mm256_set1_ps(kE2m1Max));
    const __m256i small = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(x, anchor)),
                                           _mm256_castps_si256(anchor));
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i kept_is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 22), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x1FFFFF)), kept_is_odd);
    // The code of 1 is 2, its exponent and kept bit are 127 << 1.
    const __m256i large = _mm256_sub_epi32(_mm256_srli_epi32(rounded, 22), _mm256_set1_epi32(252));
    const __m256 is_small = _mm256_cmp_ps(x, _mm256_set1_ps(1.0F), _CMP_LT_OQ);
    return _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(large), _mm256_castsi256_ps(small), is_small));
  }
  struct Codes {
    __m256i a, b;
  };
  struct Nearest {
    Floats values;
    Codes codes;
  };
  static Nearest nearest(Floats magnitudes) {
    const __m256 grid = _mm256_setr_ps(0, 0.5F, 1, 1.5F, 2, 3, 4, 6);
    const Codes codes = {nearest_codes(magnitudes.a), nearest_codes(magnitudes.b)};
    return {{_mm256_permutevar8x32_ps(grid, codes.a), _mm256_permutevar8x32_ps(grid, codes.b)},
            codes};
  }

  // Four bytes, each in the low half of 32 bits.
  static __m128i pairs_of(__m256i codes, __m256 values) {
    const __m256i signs =
        _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(values), 28), _mm256_set1_epi32(8));
    const __m256i nibbles = _mm256_or_si256(codes, signs);
    const __m256i pairs = _mm256_and_si256(_mm256_or_si256(nibbles, _mm256_srli_epi64(nibbles, 28)),
                                           _mm256_set1_epi64x(0xFF));
    return _mm_packus_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  }
  // Codes with the signs of `values`, even columns in the low nibbles.
  static void write_codes(Codes codes, Floats values, std::uint8_t* packed) {
    const __m128i words =
        _mm_packus_epi32(pairs_of(codes.a, values.a), pairs_of(codes.b, values.b));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(packed), _mm_packus_epi16(words, words));
  }

  static Doubles zeros() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
  static Doubles all(double x) { return {_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
  static Doubles magnitude(Doubles x) {
    const __m256d sign = _mm256_set1_pd(-0.0);
    return {_mm256_andnot_pd(sign, x.a), _mm256_andnot_pd(sign, x.b)};
  }
  static Doubles larger(Doubles x, Doubles y) {
    return {_mm256_max_pd(x.a, y.a), _mm256_max_pd(x.b, y.b)};
  }
  static Doubles widened(__m256 x) {
    return {_mm256_cvtps_pd(_mm256_castps256_ps128(x)),
            _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
  }
  static Doubles low(Floats x) { return widened(x.a); }
  static Doubles high(Floats x) { return widened(x.b); }
  static void store(Doubles x, double (&to)[8]) {
    _mm256_storeu_pd(to, x.a);
    _mm256_storeu_pd(to + 4, x.b);
  }

  static Quad quad_zeros() { return _mm256_setzero_pd(); }
  static Quad add_fours(Quad sums, Doubles x) {
    return _mm256_add_pd(_mm256_add_pd(sums, x.a), x.b);
  }
  static double sum_of(Quad x) {
    const __m128d pairs = _mm_hadd_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_add_sd(pairs, _mm_unpackhi_pd(pairs, pairs)));
  }
};

}  // namespace

using Avx2Kernel = RowKernel<Avx2Lanes>;
const RowKernels kAvx2RowKernels = {"avx2", Avx2Kernel::largest_bits, Avx2Kernel::nvfp4,
                                    Avx2Kernel::mxfp4};

}  // namespace moxie

MOXIE_TARGET_END
#endif
