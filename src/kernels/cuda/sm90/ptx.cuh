// SPDX-License-Identifier: Apache-2.0
// The instructions that C++ has no name for. Shared memory is addressed in its own 32-bit window.
#pragma once

#include <cstdint>

namespace moxie::cuda::sm90 {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ uint4 load_shared4(std::uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_shared2(std::uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ std::uint32_t load_shared1(std::uint32_t at) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
// Four matrices of 8 rows x 16 bytes, whose rows are where the lanes 8 i .. 8 i + 7 say: of each
// the lane gets 4 bytes of row lane / 4.
__device__ __forceinline__ uint4 load_matrices(std::uint32_t at) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
__device__ __forceinline__ float load_shared_float(std::uint32_t at) {
  return __uint_as_float(load_shared1(at));
}
__device__ __forceinline__ void store_shared1(std::uint32_t at, std::uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
__device__ __forceinline__ void store_shared4(std::uint32_t at, const float (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v[0]), "f"(v[1]), "f"(v[2]),
               "f"(v[3])
               : "memory");
}

__device__ __forceinline__ void store_shared4(std::uint32_t at, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// One lane of a warp that is together: the compiler knows that it is one alone, so its addresses
// need no loop around instructions that take them from uniform registers.
__device__ __forceinline__ bool elect() {
  std::uint32_t elected;
  asm volatile(
      "{.reg .pred is;\n"
      "elect.sync _|is, 0xFFFFFFFF;\n"
      "selp.u32 %0, 1, 0, is;\n}"
      : "=r"(elected)
      :
      : "memory");
  return elected != 0;
}

// Barriers of this block. One opens for a parity when its arrivals and bytes have come.
__device__ __forceinline__ void init_barrier(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Waiting warps sleep in the hardware; they are woken when it opens.
inline constexpr std::uint32_t kSleepMostNs = 10'000'000;
__device__ __forceinline__ void wait_barrier(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{.reg .pred open;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 open, [%0], %1, %2;\n"
      "@!open bra again;\n}" ::"r"(barrier),
      "r"(parity), "r"(kSleepMostNs)
      : "memory");
}
// Whether it is open now.
__device__ __forceinline__ bool is_open(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t open;
  asm volatile(
      "{.reg .pred open;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 open, [%1], %2;\n"
      "selp.u32 %0, 1, 0, open;\n}"
      : "=r"(open)
      : "r"(barrier), "r"(parity)
      : "memory");
  return open != 0;
}
// Global to shared memory by the copy engine; the bytes count at the barrier.
__device__ __forceinline__ void copy_bulk(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
// 16 bytes from global to shared memory, past the first-level cache, or `bytes` of them and zeros.
// What a thread has begun between two commits is a group, and is there when it has waited until no
// more than kLeft groups behind it are left.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// The same of 4 bytes, through the first-level cache.
__device__ __forceinline__ void copy_4(std::uint32_t to, const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}
// The line of this address is on its way to the second-level cache.
__device__ __forceinline__ void prefetch_line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}
__device__ __forceinline__ std::uint64_t evict_first() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// A word that nothing writes while kernels run.
__device__ __forceinline__ std::int32_t load_constant(const std::int32_t* from) {
  std::int32_t v;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
// What was there before. In CUDA's atomicAdd() lanes join theirs, and wait for the result at once.
__device__ __forceinline__ std::uint32_t add_relaxed(std::uint32_t* to, std::uint32_t value) {
  std::uint32_t before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(to), "r"(value)
               : "memory");
  return before;
}

// D += A B: A 16 x 16 fp16, B 16 x 8 fp16, D 16 x 8 f32.
__device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Both halves of a times the lower, or the upper, half of b, which the instruction picks itself.
__device__ __forceinline__ std::uint32_t multiply_by_lower(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("{.reg .b16 low,high; .reg .b32 pair;\n"
      "mov.b32 {low,high}, %2; mov.b32 pair, {low,low};\n"
      "mul.f16x2 %0, %1, pair;}"
      : "=r"(d)
      : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ std::uint32_t multiply_by_upper(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("{.reg .b16 low,high; .reg .b32 pair;\n"
      "mov.b32 {low,high}, %2; mov.b32 pair, {high,high};\n"
      "mul.f16x2 %0, %1, pair;}"
      : "=r"(d)
      : "r"(a), "r"(b));
  return d;
}

// Some of the block's threads, always the same for one of the numbers 1..15.
template <std::uint32_t kNumber, std::uint32_t kCount>
__device__ __forceinline__ void synchronise() {
  asm volatile("bar.sync %0, %1;" ::"n"(kNumber), "n"(kCount) : "memory");
}

// Until a counter that other blocks add_release() to has come so far. Only the last look orders
// what follows: an acquiring one empties the first-level cache every time.
__device__ __forceinline__ void wait_for_count(const std::uint32_t* count, std::uint32_t least) {
  std::uint32_t value;
  do {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(count) : "memory");
  } while (value < least);
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
__device__ __forceinline__ void add_release(std::uint32_t* at, std::uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

// Returns what was there; acquires what others have released there.
__device__ __forceinline__ std::uint32_t add_acquire_release(std::uint32_t* at,
                                                             std::uint32_t value) {
  std::uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(at), "r"(value)
               : "memory");
  return before;
}

// Moves registers between groups of four warps; all of a group's warps must come here.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Programmatic dependent launch.
__device__ __forceinline__ void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace moxie::cuda::sm90
