// SPDX-License-Identifier: Apache-2.0
// Values that say themselves when they are there: in front of a small call their memory is filled
// with a number that no result is, and who needs them looks until it has gone. So no counter stands
// between who stores a value and who waits for it.
#pragma once

#include <cstdint>

namespace moxie::cuda::sm90 {

// A NaN of its own; results that are NaN get other bits. Of values of 16 bits it is the upper half.
inline constexpr std::uint32_t kUnwritten = 0xFFFFFFFFU;

__device__ __forceinline__ std::uint32_t written(float value) {
  return min(__float_as_uint(value), kUnwritten - 1);
}
__device__ __forceinline__ std::uint16_t written(std::uint16_t value) {
  return static_cast<std::uint16_t>(min(value, 0xFFFE));
}
__device__ __forceinline__ bool has_unwritten(const uint4& words) {
  return words.x == kUnwritten || words.y == kUnwritten || words.z == kUnwritten ||
         words.w == kUnwritten;
}
__device__ __forceinline__ bool has_unwritten(const float4& values) {
  return has_unwritten(make_uint4(__float_as_uint(values.x), __float_as_uint(values.y),
                                  __float_as_uint(values.z), __float_as_uint(values.w)));
}
__device__ __forceinline__ bool has_unwritten_halves(const uint4& words) {
  return (__vcmpeq2(words.x, kUnwritten) | __vcmpeq2(words.y, kUnwritten) |
          __vcmpeq2(words.z, kUnwritten) | __vcmpeq2(words.w, kUnwritten)) != 0;
}

// Other blocks may look while this stores.
__device__ __forceinline__ void store_written(float* to, float value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(written(value)));
}
__device__ __forceinline__ void store_written(std::uint16_t* to, std::uint16_t value) {
  asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(to), "h"(written(value)));
}
__device__ __forceinline__ uint4 look(const void* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

__device__ __forceinline__ float4 look_floats(const float* from) {
  const uint4 words = look(from);
  return make_float4(__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
                     __uint_as_float(words.w));
}

}  // namespace moxie::cuda::sm90
