// SPDX-License-Identifier: Apache-2.0
// cuda.portable.experts: slots -> quantise -> gate and up, activation -> quantise -> down ->
// combine, one kernel a stage, correct everywhere and fast nowhere.
//
// Grids follow from the shape and the tokens alone; what the routing decides is read on the device.
// Nothing is allocated, copied or waited for, so a call can be captured.
#include <cuda_runtime.h>

#include "base/align.hpp"
#include "kernels/cuda/portable/kernels.hpp"
#include "kernels/cuda/portable/products.cuh"
#include "kernels/cuda/portable/quantise.cuh"
#include "kernels/cuda/portable/slots.cuh"

namespace moxie::cuda::portable {

namespace {

unsigned blocks(std::uint64_t count, std::uint64_t per_block = 1) {
  return static_cast<unsigned>(divide_up(count, per_block));
}

template <bool kIsX>
void launch_quantise(const Call& call, cudaStream_t stream) {
  const unsigned rows = blocks(kIsX ? call.x_rows : call.slots);
  switch (call.args.shape.act_format) {
    case ActFormat::bf16:
      quantise_rows<kIsX, ActFormat::bf16><<<rows, kQuantiseThreads, 0, stream>>>(call);
      return;
    case ActFormat::fp8:
      quantise_rows<kIsX, ActFormat::fp8><<<rows, kQuantiseThreads, 0, stream>>>(call);
      return;
    case ActFormat::mxfp8:
      quantise_rows<kIsX, ActFormat::mxfp8><<<rows, kQuantiseThreads, 0, stream>>>(call);
      return;
    default:  // the catalog's entry takes nvfp4 beside these
      break;
  }
  if (call.args.shape.act_scale == ActScale::dynamic) {
    measure_rows<kIsX><<<rows, kQuantiseThreads, 0, stream>>>(call);
    measure_all<kIsX><<<1, kQuantiseThreads, 0, stream>>>(call);
  }
  quantise_nvfp4<kIsX><<<rows, kQuantiseThreads, 0, stream>>>(call);
  if (call.args.stats != nullptr) note_scales<kIsX><<<1, kQuantiseThreads, 0, stream>>>(call);
}

template <BlockFormat kFormat>
void launch(const Call& call, cudaStream_t stream) {
  const ExpertsShape& shape = call.args.shape;
  const unsigned experts = blocks(shape.local_experts);
  classify_slots<<<blocks(call.slots, kSlotThreads), kSlotThreads, 0, stream>>>(call);
  if (experts > 0) count_slots<<<experts, kSlotThreads, 0, stream>>>(call);
  sum_counts<<<1, kScanThreads, 0, stream>>>(call);
  if (experts > 0) {
    place_slots<<<experts, kSlotThreads, 0, stream>>>(call);
    launch_quantise<true>(call, stream);
    const dim3 acts(blocks(call.tiles), blocks(shape.inter, kColumns));
    if (call.args.weights.offsets.gate != BlobOffsets::kAbsent) {
      gate_up<kFormat, 2><<<acts, kProductThreads, 0, stream>>>(call);
    } else {
      gate_up<kFormat, 1><<<acts, kProductThreads, 0, stream>>>(call);
    }
    launch_quantise<false>(call, stream);
    const dim3 outputs(blocks(call.tiles), blocks(shape.hidden, kColumns));
    down<kFormat><<<outputs, kProductThreads, 0, stream>>>(call);
  }
  const dim3 sums(blocks(call.args.tokens), blocks(shape.hidden, kCombineThreads));
  combine<<<sums, kCombineThreads, 0, stream>>>(call);
}

void note_launch_error(int* to) {
  const cudaError_t code = cudaGetLastError();
  if (code != cudaSuccess && to != nullptr && *to == 0) *to = code;
}

void run(const ExpertsArgs& args) {
  if (args.tokens == 0) return;
  Call call{.args = args};
  carve(call, align_up(args.workspace, kAlign));
  auto* stream = static_cast<cudaStream_t>(args.stream);
  if (args.shape.format == BlockFormat::mxfp4) {
    launch<BlockFormat::mxfp4>(call, stream);
  } else {
    launch<BlockFormat::nvfp4>(call, stream);
  }
  note_launch_error(args.launch_error);
}

std::uint64_t workspace_bytes(const ExpertsShape& shape, std::uint64_t tokens) {
  Call call;
  call.args.shape = shape;
  call.args.tokens = tokens;
  return carve(call, nullptr) + kAlign - 1;
}

bool supports(Activation /*activation*/) { return true; }

// Grid: tokens x hidden / kCombineThreads.
__global__ void __launch_bounds__(kCombineThreads) add_partial(PartialsArgs args) {
  const std::uint64_t column = std::uint64_t{blockIdx.y} * kCombineThreads + threadIdx.x;
  if (column >= args.hidden) return;
  const std::uint64_t at = blockIdx.x * args.hidden + column;
  args.sum[at] += args.partial[at];
}

__global__ void __launch_bounds__(kCombineThreads) store_sum(PartialsArgs args) {
  const std::uint64_t column = std::uint64_t{blockIdx.y} * kCombineThreads + threadIdx.x;
  if (column >= args.hidden) return;
  const float sum = args.sum[blockIdx.x * args.hidden + column];
  const std::uint64_t to = blockIdx.x * args.y.row_stride + column;
  if (args.y.dtype == DType::f32) {
    static_cast<float*>(args.y.data)[to] = sum;
  } else {
    static_cast<std::uint16_t*>(args.y.data)[to] = encode_bf16(sum);
  }
}

void add(const PartialsArgs& args) {
  if (args.tokens == 0) return;
  const dim3 grid(blocks(args.tokens), blocks(args.hidden, kCombineThreads));
  add_partial<<<grid, kCombineThreads, 0, static_cast<cudaStream_t>(args.stream)>>>(args);
  note_launch_error(args.launch_error);
}

void store(const PartialsArgs& args) {
  if (args.tokens == 0) return;
  const dim3 grid(blocks(args.tokens), blocks(args.hidden, kCombineThreads));
  store_sum<<<grid, kCombineThreads, 0, static_cast<cudaStream_t>(args.stream)>>>(args);
  note_launch_error(args.launch_error);
}

template <class... Kernels>
int load(Kernels... kernels) {
  cudaFuncAttributes attributes;
  int first = 0;
  const auto one = [&](const void* kernel) {
    const int code = cudaFuncGetAttributes(&attributes, kernel);
    if (first == 0) first = code;
  };
  (one(reinterpret_cast<const void*>(kernels)), ...);
  return first;
}

template <bool kIsX>
int load_quantise() {
  return load(quantise_rows<kIsX, ActFormat::bf16>, quantise_rows<kIsX, ActFormat::fp8>,
              quantise_rows<kIsX, ActFormat::mxfp8>, measure_rows<kIsX>, measure_all<kIsX>,
              quantise_nvfp4<kIsX>, note_scales<kIsX>);
}

template <BlockFormat kFormat>
int load_products() {
  return load(gate_up<kFormat, 1>, gate_up<kFormat, 2>, down<kFormat>);
}

int prepare() {
  const int codes[] = {load(classify_slots, count_slots, sum_counts, place_slots, combine),
                       load(add_partial, store_sum),
                       load_quantise<true>(),
                       load_quantise<false>(),
                       load_products<BlockFormat::mxfp4>(),
                       load_products<BlockFormat::nvfp4>()};
  for (const int code : codes) {
    if (code != 0) return code;
  }
  return 0;
}

constexpr ExpertsKernel kExperts{
    .run = run, .workspace_bytes = workspace_bytes, .supports = supports, .prepare = prepare};
constexpr PartialsKernel kPartials{.add = add, .store = store};

}  // namespace

const ExpertsKernel* experts_kernel() { return &kExperts; }
const PartialsKernel* partials_kernel() { return &kPartials; }

}  // namespace moxie::cuda::portable
