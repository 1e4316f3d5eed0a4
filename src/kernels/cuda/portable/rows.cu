// SPDX-License-Identifier: Apache-2.0
// Counts to choices on the device: every block adds up all counts, and finds the experts of its own
// rows among the sums. FP8 rows to their values beside that, those alone that are somebody's.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "formats/bf16.hpp"
#include "formats/e4m3.hpp"
#include "kernels/cuda/portable/kernels.hpp"
#include "moxie/execution.hpp"

namespace moxie::cuda::portable {

namespace {

constexpr unsigned kThreads = 1024;
constexpr unsigned kBlocksOfMultiprocessor = 2;
constexpr unsigned kChunk = 4;  // columns of a thread at a time; hidden is a multiple

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

// By one of rows / kThreads blocks, at least one. An expert's rows are found by those that own
// them: a block looks at kThreads experts at a time and keeps what falls on its own rows.
__device__ void choose(const ExpertRowsArgs& args, unsigned block) {
  __shared__ std::uint64_t before;
  const std::uint64_t first = std::uint64_t{block} * kThreads;
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
    const std::uint64_t sum = before + running_sum(count);
    // From here on `begin` is where the expert's rows begin, and `room` how many there can be.
    const std::uint64_t begin = args.rows_apart > 0 ? expert * args.rows_apart : sum - count;
    const std::uint64_t left = args.rows - min(begin, args.rows);
    const std::uint64_t room = args.rows_apart > 0 ? min(left, args.rows_apart) : left;
    if (block == 0 && known && (count > room || args.rows_of_expert[expert] < 0))
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

// How many rows are somebody's where experts lie one behind the other. By all threads of a block.
__device__ std::uint64_t rows_of_all(const ExpertRowsArgs& args) {
  __shared__ unsigned long long sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  unsigned long long mine = 0;
  for (std::uint64_t expert = threadIdx.x; expert < args.local_experts; expert += kThreads)
    mine += rows_of(args, expert);
  if (mine > 0) atomicAdd(&sum, mine);
  __syncthreads();
  return sum;
}

__device__ void store4(float* to, const float4& values) { *reinterpret_cast<float4*>(to) = values; }
__device__ void store4(std::uint16_t* to, const float4& values) {
  *reinterpret_cast<ushort4*>(to) = make_ushort4(encode_bf16(values.x), encode_bf16(values.y),
                                                 encode_bf16(values.z), encode_bf16(values.w));
}

// By one block, a row's codes times their scales. Nobody writes what is read here: loads may run
// ahead of stores.
template <class Element>
__device__ void expand_row(const ExpertRowsArgs& args, std::uint64_t row) {
  const auto* codes =
      static_cast<const std::uint8_t*>(args.codes.data) + row * args.codes.row_stride;
  const float* scales = args.code_scales.data + first_code_scale(args, row);
  Element* x = static_cast<Element*>(args.x.data) + row * args.codes.cols;
  const bool words = reinterpret_cast<std::uintptr_t>(codes) % sizeof(std::uint32_t) == 0;
#pragma unroll 2
  for (std::uint64_t column = threadIdx.x * kChunk; column < args.codes.cols;
       column += kThreads * kChunk) {
    const float scale = __ldg(scales + column / kScaledColumns * args.code_scales.block_stride);
    std::uint32_t four = 0;
    if (words) {
      four = __ldg(reinterpret_cast<const std::uint32_t*>(codes + column));
    } else {
      for (unsigned i = 0; i < kChunk; ++i)
        four |= static_cast<std::uint32_t>(__ldg(codes + column + i)) << (8 * i);
    }
    const auto value = [&](unsigned i) {
      return decode_e4m3(static_cast<std::uint8_t>(four >> (8 * i))) * scale;
    };
    store4(x + column, make_float4(value(0), value(1), value(2), value(3)));
  }
}

// By one of `blocks` blocks, every so-manieth row that is somebody's: its warps look at 32 of them
// at a time. Counts say whose a row is, so that nobody waits for choose().
__device__ void expand(const ExpertRowsArgs& args, unsigned block, std::uint64_t blocks) {
  const std::uint64_t end =
      args.rows_apart > 0 ? args.rows : min(rows_of_all(args), std::uint64_t{args.rows});
  for (std::uint64_t first = block; first < end; first += 32 * blocks) {
    const std::uint64_t mine = first + threadIdx.x % 32 * blocks;
    const bool taken = mine < end && (args.rows_apart == 0 || expert_apart(args, mine) >= 0);
    unsigned rows = __ballot_sync(0xFFFFFFFFU, taken);
    for (; rows != 0; rows &= rows - 1) {
      const std::uint64_t row =
          first + static_cast<unsigned>(__ffs(static_cast<int>(rows)) - 1) * blocks;
      if (args.x.dtype == DType::bf16) {
        expand_row<std::uint16_t>(args, row);
      } else {
        expand_row<float>(args, row);
      }
    }
  }
}

// Grid: `choosing` blocks, and, where x is FP8, any number behind them.
__global__ void __launch_bounds__(kThreads, kBlocksOfMultiprocessor)
    dispatch(const __grid_constant__ ExpertRowsArgs args, unsigned choosing) {
  if (blockIdx.x < choosing) {
    choose(args, blockIdx.x);
  } else {
    expand(args, blockIdx.x - choosing, gridDim.x - choosing);
  }
}

unsigned expanding_blocks(const ExpertRowsArgs& args) {
  if (args.codes.data == nullptr) return 0;
  int device = 0;
  int count = 1;
  if (cudaGetDevice(&device) == cudaSuccess)
    (void)cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  // Blocks of a grid that is small enough have a multiprocessor each.
  const auto all = static_cast<unsigned>(count);
  const unsigned most =
      args.max_sms > 0 ? std::min(args.max_sms, all) : all * kBlocksOfMultiprocessor;
  return static_cast<unsigned>(std::min<std::uint64_t>(args.rows, most));
}

void run(const ExpertRowsArgs& args) {
  auto* stream = static_cast<cudaStream_t>(args.stream);
  const auto choosing =
      static_cast<unsigned>(std::max<std::uint64_t>((args.rows + kThreads - 1) / kThreads, 1));
  dispatch<<<choosing + expanding_blocks(args), kThreads, 0, stream>>>(args, choosing);
  const cudaError_t code = cudaGetLastError();
  if (code != cudaSuccess && args.launch_error != nullptr && *args.launch_error == 0)
    *args.launch_error = code;
}

int prepare() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, dispatch);
}

constexpr RowsKernel kRows{.run = run, .prepare = prepare};

}  // namespace

const RowsKernel* rows_kernel() { return &kRows; }

}  // namespace moxie::cuda::portable
