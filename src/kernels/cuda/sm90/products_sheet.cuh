// SPDX-License-Identifier: Apache-2.0
// Steps of a sheet on fp16 wgmma: four warps with neighbouring strips share an instruction, to which
// each brings 16 rows of weights in registers, while the activations stay in shared memory. Terms
// are added up in the order of products.cuh and with the same bits.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/products.cuh"
#include "kernels/cuda/sm90/sheets.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace moxie::cuda::sm90 {

// Matrix B of an instruction: two core matrices for every 8 rows, K-major without swizzle. The lower
// word of its descriptor, in which addresses count in 16 bytes; the upper one is the distance from
// tile to tile.
__device__ __forceinline__ std::uint32_t cores_at(std::uint32_t at) {
  return (at >> 4) + (kCorePitch >> 4 << 16);
}
inline constexpr std::uint32_t kNextCores = 2 * kCorePitch >> 4;  // of the next 16 columns
__device__ __forceinline__ std::uint64_t whole_cores(std::uint32_t cores) {
  return std::uint64_t{kCoresBytes >> 4} << 32 | cores;
}

// D = A B, or D += A B: A 64 x 16 fp16, 16 rows of each of four warps; B 16 x 16 or 24 fp16.
template <bool kAdds>
__device__ __forceinline__ void wgmma_fp16(float (&d)[2][4], const std::uint32_t (&a)[4],
                                           std::uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.u32 add, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, add, 1, 1, 0;\n}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdds ? 1 : 0));
}
template <bool kAdds>
__device__ __forceinline__ void wgmma_fp16(float (&d)[3][4], const std::uint32_t (&a)[4],
                                           std::uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.u32 add, %17, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, %16, add, 1, 1, 0;\n}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdds ? 1 : 0));
}

__device__ __forceinline__ void pin(std::uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) pin(a[i]);
}
template <int kTiles>
__device__ __forceinline__ void pin(float (&sums)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kTiles; ++i) pin(sums[i / 4][i % 4]);
}

// MXFP4: sums of groups of one tile on their way.
template <int kTiles, int kGroups>
struct GroupSums {
  std::uint32_t a[kGroups][2][4];
  float sums[kGroups][kTiles][4];

  // `words`: two of every group; `cores`: where its columns are.
  __device__ __forceinline__ void start(const std::uint32_t (&words)[2 * kGroups],
                                        std::uint32_t cores, const Powers& powers) {
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i) {
      place(words[i], powers, a[i / 2][i % 2]);
      pin(a[i / 2][i % 2]);
    }
    wgmma_fence();
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      wgmma_fp16<false>(sums[group], a[group][0], whole_cores(cores + 2 * group * kNextCores));
      wgmma_fp16<true>(sums[group], a[group][1], whole_cores(cores + (2 * group + 1) * kNextCores));
    }
    wgmma_commit();
  }
  // Behind the wait for what start() began. `bytes`: the tile's scales; the groups begin at kFirst.
  template <int kFirst>
  __device__ __forceinline__ void add_to(float (&to)[kTiles][4], std::uint32_t bytes,
                                         const Powers& powers) {
    constexpr std::uint32_t kExponent = 0x7F800000U;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      pin(sums[group]);
      const bool second = kFirst + group == 1;
      const float upper =
          __uint_as_float(bytes * (second ? powers.of_7 : powers.of_23) & kExponent);
      const float lower = __uint_as_float((second ? bytes >> 1 : bytes * powers.of_15) & kExponent);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        to[n][0] = fmaf(sums[group][n][0], upper, to[n][0]);
        to[n][1] = fmaf(sums[group][n][1], upper, to[n][1]);
        to[n][2] = fmaf(sums[group][n][2], lower, to[n][2]);
        to[n][3] = fmaf(sums[group][n][3], lower, to[n][3]);
      }
    }
  }
};

// A step of a sheet; what it has of the stage is no longer needed behind finish().
template <BlockFormat kFormat, int kTiles>
class SheetStep;

template <int kTiles>
class SheetStep<BlockFormat::mxfp4, kTiles> {
 public:
  // `cores`: the activations of the step.
  __device__ __forceinline__ void start(Sums<kTiles>& sums,
                                        const Weights<BlockFormat::mxfp4>& step,
                                        std::uint32_t cores, const Powers& powers) {
    const uint4& q = step.quads[0];
    const uint4& p = step.quads[1];
    scales_ = step.scales.y;
    if constexpr (kGroups == 2) {
      flights_[0].start({q.x, q.y, q.z, q.w}, cores, powers);
      flights_[1].start({p.x, p.y, p.z, p.w}, cores, powers);
      wgmma_wait<1>();
      flights_[0].template add_to<0>(sums[0], step.scales.x, powers);
    } else {
      const std::uint32_t next = cores + 2 * kNextCores;
      flights_[0].start({q.x, q.y}, cores, powers);
      flights_[1].start({q.z, q.w}, next, powers);
      wgmma_wait<1>();
      flights_[0].template add_to<0>(sums[0], step.scales.x, powers);
      flights_[0].start({p.x, p.y}, cores, powers);
      wgmma_wait<1>();
      flights_[1].template add_to<1>(sums[0], step.scales.x, powers);
      flights_[1].start({p.z, p.w}, next, powers);
      wgmma_wait<1>();
      flights_[0].template add_to<0>(sums[1], step.scales.y, powers);
    }
  }
  __device__ __forceinline__ void finish(Sums<kTiles>& sums, const Powers& powers) {
    wgmma_wait<0>();
    flights_[1].template add_to<2 - kGroups>(sums[1], scales_, powers);
  }

 private:
  static constexpr int kGroups = 1;  // as many as registers allow
  GroupSums<kTiles, kGroups> flights_[2];
  std::uint32_t scales_;
};

template <int kTiles>
class SheetStep<BlockFormat::nvfp4, kTiles> {
 public:
  __device__ __forceinline__ void start(Sums<kTiles>& sums,
                                        const Weights<BlockFormat::nvfp4>& step,
                                        std::uint32_t cores, const Powers& powers) {
    std::uint32_t pairs[4];
    scale_pairs(step.scales.x, pairs);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const uint4 q = step.quads[tile];
      const std::uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        std::uint32_t(&a)[4] = a_[tile][word];
        place(words[word], powers, a);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = multiply_halves(a[i], pairs[2 * tile + i % 2]);
        pin(a);
      }
      wgmma_fence();
#pragma unroll
      for (int word = 0; word < 4; ++word)
        wgmma_fp16<true>(sums[tile], a_[tile][word], whole_cores(cores + word * kNextCores));
      wgmma_commit();
    }
  }
  __device__ __forceinline__ void finish(Sums<kTiles>& sums, const Powers& /*powers*/) {
    wgmma_wait<0>();
    pin(sums[0]), pin(sums[1]);
  }

 private:
  std::uint32_t a_[2][4][4];
};

}  // namespace moxie::cuda::sm90
