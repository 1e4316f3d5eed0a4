// SPDX-License-Identifier: Apache-2.0
// What the tile kernels need of AVX-512 with VBMI, VNNI and BF16. Included inside a target region.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace moxie::cpu::avx512 {

// A line of a tile is one register; lane r is row r of the band.
struct Simd {
  static constexpr std::uint64_t kLanes = 16;
  static constexpr int kRegisters = 32;
  using Floats = __m512;
  using Ints = __m512i;
  using Line = __m512i;    // a tile's line as it lies in memory
  using Pairs = __m512i;   // two neighbouring columns of a row in each lane, bf16
  using Octets = __m512i;  // four columns of a row in each lane, 2 * value + 12
  using Sums = __m512i;    // of products of octets

  // For plain arithmetic: doubles of one register, and as many floats and integers.
  using DoubleLanes = double __attribute__((vector_size(64)));
  using FloatLanes = float __attribute__((vector_size(32)));
  using WordLanes = std::int64_t __attribute__((vector_size(64)));

  static Floats zeros() { return _mm512_setzero_ps(); }
  static Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
  static Floats all(float x) { return _mm512_set1_ps(x); }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }

  static Line line(const std::uint8_t* at) { return _mm512_loadu_si512(at); }

  // Scales of 16 rows. 2^-127 has no normal exponent.
  static Floats e8m0(const std::uint8_t* at) {
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(octets16(at)), 23);
    return _mm512_castsi512_ps(_mm512_max_epu32(bits, _mm512_set1_epi32(0x00400000)));
  }
  // 2^-8 of the value: as halves, E4M3 bits have another bias. Subnormal ones are exact, too.
  static Floats ue4m3(const std::uint8_t* at) {
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(octets16(at)), 7));
  }

  // Columns of a line, two by two: 0 and 1 for kPair 0, 6 and 7 for kPair 3. Only the low five bits
  // of an index count, and the table repeats after four.
  template <int kPair>
  static Pairs pairs(Line line) {
    const __m512i table = _mm512_broadcast_i64x4(_mm256_setr_epi16(
        0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, static_cast<short>(0x8000),
        static_cast<short>(0xBF00), static_cast<short>(0xBF80), static_cast<short>(0xBFC0),
        static_cast<short>(0xC000), static_cast<short>(0xC040), static_cast<short>(0xC080),
        static_cast<short>(0xC0C0)));
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(line, 4 * kPair), table);
  }
  // sum + the products of a pair with the bf16 pair at x. Flushes subnormal numbers.
  static Floats dot(Floats sum, Pairs weights, const std::uint16_t* x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)dword(x));
  }

  // Of a line columns 0, 4, 1, 5, and 2, 6, 3, 7.
  static Octets low_octets(Line line) { return _mm512_permutexvar_epi8(line, octet_table()); }
  static Octets high_octets(Line line) {
    return _mm512_permutexvar_epi8(_mm512_srli_epi16(line, 4), octet_table());
  }
  static std::int32_t start_of(std::int32_t sum_even, std::int32_t sum_odd) {
    return -12 * (sum_even + sum_odd);
  }
  static Sums start(std::int32_t from) { return _mm512_set1_epi32(from); }
  static Sums dot(Sums sums, Octets weights, const std::int8_t* x) {
    return _mm512_dpbusd_epi32(sums, weights, dword(x));
  }
  static Sums add(Sums a, Sums b) { return _mm512_add_epi32(a, b); }
  static Ints ints(Sums sums) { return sums; }
  // 254 * high + low
  static Ints join(Ints high, Ints low) {
    const Ints times256 = _mm512_slli_epi32(high, 8);
    return _mm512_add_epi32(_mm512_sub_epi32(times256, _mm512_add_epi32(high, high)), low);
  }
  static Floats floats(Ints x) { return _mm512_cvtepi32_ps(x); }

 private:
  static __m128i octets16(const std::uint8_t* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  }
  static __m512i dword(const void* at) {
    std::int32_t bits = 0;
    __builtin_memcpy(&bits, at, sizeof bits);
    return _mm512_set1_epi32(bits);
  }
  static __m512i octet_table() {
    return _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  }
};

}  // namespace moxie::cpu::avx512
