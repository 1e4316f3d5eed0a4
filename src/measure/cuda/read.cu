// SPDX-License-Identifier: Apache-2.0
// Plain 16-byte loads over all multiprocessors: what a kernel that did nothing but read would need.
#include <cuda_runtime.h>

#include "base/checked.hpp"
#include "measure/read_kernels.hpp"

namespace moxie::measure {

namespace {

constexpr unsigned kFillThreads = 256;
constexpr unsigned kFillBlocks = 4096;

// The words of a grid lie side by side; each thread folds its own, `kLoads` loads in flight. What
// is folded is stored where it has a value that the fill never gives, so that no load is dropped.
template <unsigned kLoads>
__global__ void read_words(const uint4* __restrict__ words, std::uint64_t count,
                           std::uint32_t* sink) {
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  const std::uint64_t thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::uint32_t folded = 0;
  const auto fold = [&](const uint4& word) { folded |= word.x ^ word.y ^ word.z ^ word.w; };
  std::uint64_t at = thread;
  for (; at + (kLoads - 1) * threads < count; at += kLoads * threads) {
    uint4 loaded[kLoads];
#pragma unroll
    for (unsigned i = 0; i < kLoads; ++i) loaded[i] = __ldcs(words + at + i * threads);
#pragma unroll
    for (unsigned i = 0; i < kLoads; ++i) fold(loaded[i]);
  }
  for (; at < count; at += threads) fold(__ldcs(words + at));
  if (folded == 0x80000001U) *sink = folded;
}

// SplitMix64 of the position without the highest bit of each half: what is folded never has it.
__global__ void fill_words(std::uint64_t* words, std::uint64_t count) {
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t at = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count;
       at += threads) {
    std::uint64_t z = (at + 1) * 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    words[at] = (z ^ (z >> 31)) & 0x7FFFFFFF7FFFFFFFULL;
  }
}

__global__ void nothing() {}

}  // namespace

int launch_nothing(void* stream) noexcept {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = dim3(1);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, nothing);
}

int read(const ReadCall& call) noexcept {
  const auto* words = reinterpret_cast<const uint4*>(call.from);
  const std::uint64_t count = call.bytes / sizeof(uint4);
  const dim3 grid(call.multiprocessors * call.kernel.blocks);
  auto* stream = static_cast<cudaStream_t>(call.stream);
  const auto kernel = call.kernel.loads == 1   ? read_words<1>
                      : call.kernel.loads == 2 ? read_words<2>
                      : call.kernel.loads == 4 ? read_words<4>
                                               : read_words<8>;
  kernel<<<grid, call.kernel.threads, 0, stream>>>(words, count, call.sink);
  return cudaGetLastError();
}

int fill_unevenly(std::byte* at, std::uint64_t bytes, void* stream) noexcept {
  fill_words<<<kFillBlocks, kFillThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      reinterpret_cast<std::uint64_t*>(at), bytes / sizeof(std::uint64_t));
  return cudaGetLastError();
}

}  // namespace moxie::measure
