// SPDX-License-Identifier: Apache-2.0
// Of x86-64's first vector instructions; elsewhere a plain copy.
#include "base/stream_copy.hpp"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace moxie {

#ifdef __SSE2__

namespace {

constexpr std::size_t kLine = 64;

void stream(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t before = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  if (bytes < before + kLine) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, before);
  std::size_t at = before;
  for (; at + kLine <= bytes; at += kLine) {
    __m128i line[4];
    for (int i = 0; i < 4; ++i)
      line[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at) + i);
    for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + i, line[i]);
  }
  std::memcpy(to + at, from + at, bytes - at);
}

}  // namespace

void stream_rows(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t stride,
                 std::size_t rows) {
  for (std::size_t row = 0; row < rows; ++row, to += bytes, from += stride) stream(to, from, bytes);
  _mm_sfence();  // such stores are ordered by nothing else
}

#else

void stream_rows(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t stride,
                 std::size_t rows) {
  for (std::size_t row = 0; row < rows; ++row, to += bytes, from += stride)
    std::memcpy(to, from, bytes);
}

#endif

}  // namespace moxie
