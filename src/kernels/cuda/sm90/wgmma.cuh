// SPDX-License-Identifier: Apache-2.0
// What surrounds products on wgmma, whatever their operands are.
#pragma once

#include <cstdint>

namespace moxie::cuda::sm90 {

// What threads have stored or copied to shared memory is there for the tensor cores: by who stored
// it, before a barrier, or by who multiplies, behind one.
__device__ __forceinline__ void fence_for_tensor_cores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler must not move these past what is written around it.
__device__ __forceinline__ void pin(std::uint32_t& value) {
  asm volatile("" : "+r"(value)::"memory");
}
__device__ __forceinline__ void pin(float& value) { asm volatile("" : "+f"(value)::"memory"); }

}  // namespace moxie::cuda::sm90
