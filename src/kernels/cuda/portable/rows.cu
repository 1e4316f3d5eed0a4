// SPDX-License-Identifier: Apache-2.0
// Counts to choices on the device: every block adds up all counts, and finds the experts of its own
// rows among the sums.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/portable/kernels.hpp"
#include "moxie/execution.hpp"

namespace moxie::cuda::portable {

namespace {

constexpr unsigned kThreads = 1024;

// The counts as they are used, one after another in memory or apart.
__device__ std::uint64_t rows_of(const ExpertRowsArgs& args, std::uint64_t expert) {
  const std::int32_t count = args.rows_of_expert[expert];
  return count < 0 ? 0 : static_cast<std::uint64_t>(count);
}

// Of the threads of a block, in their order, the running sums.
__device__ std::uint64_t running_sum(std::uint64_t value) {
  __shared__ std::uint64_t sums[kThreads];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (unsigned step = 1; step < kThreads; step *= 2) {
    const std::uint64_t more = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
    __syncthreads();
    sums[threadIdx.x] += more;
    __syncthreads();
  }
  const std::uint64_t sum = sums[threadIdx.x];
  __syncthreads();
  return sum;
}

// The expert of a row where experts stand apart; -1: nobody's.
__device__ std::int32_t expert_apart(const ExpertRowsArgs& args, std::uint64_t row) {
  const std::uint64_t expert = row / args.rows_apart;
  const bool taken =
      expert < args.local_experts && row - expert * args.rows_apart < rows_of(args, expert);
  return taken ? static_cast<std::int32_t>(expert) : -1;
}

// Grid: rows / kThreads, at least one block. An expert's rows are found by those that own them: a
// block looks at kThreads experts at a time and keeps what falls on its own rows.
__global__ void __launch_bounds__(kThreads) choose(const __grid_constant__ ExpertRowsArgs args) {
  __shared__ std::uint64_t before;
  const std::uint64_t first = std::uint64_t{blockIdx.x} * kThreads;
  const std::uint64_t row = first + threadIdx.x;
  const std::uint64_t end = min(first + kThreads, args.rows);
  __shared__ std::int32_t found[kThreads];
  found[threadIdx.x] = -1;
  if (threadIdx.x == 0) before = 0;
  __syncthreads();
  for (std::uint64_t base = 0; base < args.local_experts; base += kThreads) {
    const std::uint64_t expert = base + threadIdx.x;
    const bool known = expert < args.local_experts;
    const std::uint64_t count = known ? rows_of(args, expert) : 0;
    if (blockIdx.x == 0 && known) args.local_of_expert[expert] = static_cast<std::int32_t>(expert);
    const std::uint64_t sum = before + running_sum(count);
    // From here on `begin` is where the expert's rows begin, and `room` how many there can be.
    const std::uint64_t begin = args.rows_apart > 0 ? expert * args.rows_apart : sum - count;
    const std::uint64_t left = args.rows - min(begin, args.rows);
    const std::uint64_t room = args.rows_apart > 0 ? min(left, args.rows_apart) : left;
    if (blockIdx.x == 0 && known && (count > room || args.rows_of_expert[expert] < 0))
      atomicOr(args.flags, kFlagBadRowCount);
    if (args.rows_apart == 0 && known) {
      const std::uint64_t to = min(begin + min(count, room), end);
      for (std::uint64_t at = max(begin, first); at < to; ++at)
        found[at - first] = static_cast<std::int32_t>(expert);
    }
    __syncthreads();
    if (threadIdx.x == kThreads - 1) before = sum;
    __syncthreads();
  }
  if (row >= args.rows) return;
  args.ids[row] = args.rows_apart > 0 ? expert_apart(args, row) : found[threadIdx.x];
  args.weights[row] = args.row_scales == nullptr ? 1.0F : args.row_scales[row];
}

void run(const ExpertRowsArgs& args) {
  const std::uint64_t blocks = std::max<std::uint64_t>((args.rows + kThreads - 1) / kThreads, 1);
  choose<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(args.stream)>>>(
      args);
  const cudaError_t code = cudaGetLastError();
  if (code != cudaSuccess && args.launch_error != nullptr && *args.launch_error == 0)
    *args.launch_error = code;
}

constexpr RowsKernel kRows{.run = run};

}  // namespace

const RowsKernel* rows_kernel() { return &kRows; }

}  // namespace moxie::cuda::portable
