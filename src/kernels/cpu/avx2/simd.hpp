// SPDX-License-Identifier: Apache-2.0
// What the tile kernels need of AVX2 with FMA and F16C. Included inside a target region.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace moxie::cpu::avx2 {

// A register is one half of a tile's line: lane r is row r of eight.
struct Simd {
  static constexpr std::uint64_t kLanes = 8;
  static constexpr int kRegisters = 16;
  using Floats = __m256;
  using Ints = __m256i;
  using Line = __m256i;
  using Octets = __m256i;  // four columns of a row in each lane, 2 * value + 12
  using Sums = __m256i;    // of products of octets, 16 bits: even columns, then odd ones

  // For plain arithmetic: doubles of one register, and as many floats and integers.
  using DoubleLanes = double __attribute__((vector_size(32)));
  using FloatLanes = float __attribute__((vector_size(16)));
  using WordLanes = std::int64_t __attribute__((vector_size(32)));

  static Floats zeros() { return _mm256_setzero_ps(); }
  static Floats load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
  static Floats all(float x) { return _mm256_set1_ps(x); }
  static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

  static Line line(const std::uint8_t* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }

  // Scales of eight rows. 2^-127 has no normal exponent.
  static Floats e8m0(const std::uint8_t* at) {
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(octets8(at)), 23);
    return _mm256_castsi256_ps(_mm256_max_epu32(bits, _mm256_set1_epi32(0x00400000)));
  }
  // 2^-8 of the value: as halves, E4M3 bits have another bias. Subnormal ones are exact, too.
  static Floats ue4m3(const std::uint8_t* at) {
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(octets8(at)), 7));
  }

  // Column kColumn of each row in a line: even columns lie in the low word of a dword. Of an index
  // the low three bits count, which are a code's magnitude; the fourth is its sign.
  template <int kColumn>
  static Floats column(Line line) {
    constexpr int kShift = 4 * (kColumn / 2) + (kColumn % 2 == 0 ? 0 : 16);
    const __m256 table = _mm256_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F);
    const __m256 magnitude = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(line, kShift));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(line, 28 - kShift),
                                          _mm256_set1_epi32(static_cast<int>(0x80000000)));
    return _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign));
  }

  // Of a line columns 0, 4, 1, 5, and 2, 6, 3, 7.
  static Octets low_octets(Line line) {
    return _mm256_shuffle_epi8(octet_table(), _mm256_and_si256(line, _mm256_set1_epi8(0x0F)));
  }
  static Octets high_octets(Line line) { return low_octets(_mm256_srli_epi16(line, 4)); }
  // 16 bits for the even columns and 16 for the odd ones. Sums may wrap on their way: what they end
  // at is at most 12 * 127 * 16 = 24384.
  static std::int32_t start_of(std::int32_t sum_even, std::int32_t sum_odd) {
    const auto low = static_cast<std::uint32_t>(-12 * sum_even) & 0xFFFFU;
    return static_cast<std::int32_t>(low | static_cast<std::uint32_t>(-12 * sum_odd) << 16);
  }
  static Sums start(std::int32_t from) { return _mm256_set1_epi32(from); }
  static Sums dot(Sums sums, Octets weights, const std::int8_t* x) {
    std::int32_t dword = 0;
    __builtin_memcpy(&dword, x, sizeof dword);
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(weights, _mm256_set1_epi32(dword)));
  }
  static Sums add(Sums a, Sums b) { return _mm256_add_epi16(a, b); }
  static Ints ints(Sums sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
  // 254 * high + low
  static Ints join(Ints high, Ints low) {
    const __m256i times256 = _mm256_slli_epi32(high, 8);
    return _mm256_add_epi32(_mm256_sub_epi32(times256, _mm256_add_epi32(high, high)), low);
  }
  static Floats floats(Ints x) { return _mm256_cvtepi32_ps(x); }

 private:
  static __m128i octets8(const std::uint8_t* at) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
  }
  static __m256i octet_table() {
    return _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  }
};

}  // namespace moxie::cpu::avx2
