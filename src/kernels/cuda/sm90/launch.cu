// SPDX-License-Identifier: Apache-2.0
// The routed experts of a call in two launches.
//
// Grids follow from the shape, the tokens and the device alone; what the routing decides is read on
// the device. Nothing is allocated or waited for, so a call can be captured. Calls with more tokens
// than the workspace is made for run in pieces.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/align.hpp"
#include "kernels/cuda/sm90/clear.cuh"
#include "kernels/cuda/sm90/family.hpp"
#include "kernels/cuda/sm90/segment.cuh"
#include "kernels/cuda/sm90/slots.cuh"
#include "kernels/cuda/sm90/tap.cuh"

namespace moxie::cuda::sm90 {

namespace {

constexpr std::uint32_t kMemoryMost = 232448;                       // of a block's shared memory
constexpr std::uint64_t kWorkspaceMost = std::uint64_t{150} << 20;  // of one piece of a call

// Shared memory of items of so many rows with so many stages in flight; its bytes.
std::uint32_t lay_out(const Family& family, const ExpertsShape& shape, std::uint32_t rows,
                      int stages, Memory& memory) {
  memory.row_count = rows;
  memory.ring = static_cast<std::uint32_t>(round_up(family.lay_out(shape, rows, memory), 128));
  return memory.ring + kWarps * static_cast<std::uint32_t>(stages) * step_bytes(shape.format);
}

// Whether sheets are not worth the wait for the routing, which tells if they are: then a block
// begins before it. An even routing gives an expert too few rows.
bool has_few_rows(const Family& family, const ExpertsShape& shape, std::uint64_t tokens) {
  if (tokens <= kRowsOfTile) return true;
  const auto steps = static_cast<std::uint32_t>(shape.inter / kStepColumns);
  return 10 * tokens * shape.top_k < sheets_from(family.form, steps) * shape.experts;
}

// Whether a call is start and hand-over more than streaming; see small.cuh.
bool is_small(const ExpertsShape& shape, std::uint64_t tokens) {
  return tokens <= kRowsOfTile && tokens * shape.top_k <= kSmallSlots &&
         shape.experts <= kSmallExperts && shape.local_experts <= kSmallExperts;
}

// Whether an even routing leaves a block at most 5.5 units of gate and up, of which an item has so
// many.
bool has_few_units(const ExpertsArgs& args, std::uint64_t units, std::uint64_t blocks) {
  const ExpertsShape& shape = args.shape;
  return 2 * args.tokens * shape.top_k * shape.local_experts * units <= 11 * blocks * shape.experts;
}

// Null where not even the smallest fits.
const Variant* choose(const Family& family, const ExpertsShape& shape, std::uint64_t tokens,
                      Memory& memory, std::uint32_t& bytes) {
  if (is_small(shape, tokens)) {
    for (const Variant& variant : family.small) {
      bytes = lay_out(family, shape, static_cast<std::uint32_t>(tokens), variant.narrow, memory);
      if (bytes <= kMemoryMost) return &variant;
    }
    return nullptr;
  }
  for (const Variant& variant : family.variants) {
    if (variant.wide > 0 && has_few_rows(family, shape, tokens)) continue;
    if (tokens * shape.top_k < variant.least_rows * shape.experts) continue;
    bytes = lay_out(family, shape, kRowsOfTile, variant.narrow, memory);
    if (variant.wide > 0) bytes = std::max(bytes, family.sheet_bytes(shape.format, variant));
    if (bytes <= kMemoryMost) return &variant;
  }
  return nullptr;
}

// Tokens of one piece.
std::uint64_t piece_of(const Family& family, const ExpertsShape& shape, std::uint64_t tokens) {
  const auto beside = [&](std::uint64_t columns) {
    return words_beside(family.form, static_cast<std::uint32_t>(columns)) * sizeof(std::uint32_t);
  };
  const std::uint64_t per_token =
      shape.top_k * (shape.inter * act_bytes(shape) + beside(shape.inter) +
                     shape.hidden * sizeof(float) + 64) +
      shape.hidden * value_bytes(family.form) + beside(shape.hidden);
  return std::clamp<std::uint64_t>(kWorkspaceMost / per_token, 1,
                                   std::max<std::uint64_t>(tokens, 1));
}

// Returns the runtime's code.
template <class... Args>
int launch(void (*kernel)(Args...), unsigned blocks, unsigned threads, std::uint64_t shared,
           cudaStream_t stream, Args... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  const cudaError_t code = cudaLaunchKernelEx(&config, kernel, args...);
  if (code != cudaSuccess) (void)cudaGetLastError();  // it is known: nobody is to find it again
  return code;
}

unsigned blocks_of(const ExpertsArgs& args) {
  int device = 0;
  int count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return 1;
  const auto all = static_cast<unsigned>(count);
  return args.max_sms == 0 ? all : std::min(args.max_sms, all);
}

// The tokens [first, first + count) of a call.
ExpertsArgs piece(const ExpertsArgs& args, std::uint64_t first, std::uint64_t count) {
  const std::uint64_t top_k = args.shape.top_k;
  ExpertsArgs part = args;
  part.tokens = count;
  part.x.rows = count;
  part.x.data = static_cast<const std::byte*>(args.x.data) +
                first * args.x.row_stride * (args.x.dtype == DType::f32 ? 4 : 2);
  part.topk_ids += first * top_k;
  part.topk_weights += first * top_k;
  if (args.final_y.data == nullptr) {
    part.final_y = {.data = args.y + first * args.shape.hidden,
                    .dtype = DType::f32,
                    .rows = count,
                    .cols = args.shape.hidden,
                    .row_stride = args.shape.hidden};
  } else {
    part.final_y.rows = count;
    part.final_y.data =
        static_cast<std::byte*>(args.final_y.data) +
        first * args.final_y.row_stride * (args.final_y.dtype == DType::f32 ? 4 : 2);
  }
  if (args.act_tap != nullptr) part.act_tap += first * top_k * args.shape.inter;
  return part;
}

// What makes a call ready for its blocks; rows of x are wanted in this form.
int launch_first(const Call& call, bool small, RowForm form, unsigned most_blocks,
                 cudaStream_t stream) {
  if (small) {
    const std::uint64_t bytes = unwritten_bytes(call);
    const std::uint64_t blocks = (bytes + kClearBytes - 1) / kClearBytes;
    return launch(clear_call, static_cast<unsigned>(std::min<std::uint64_t>(blocks, most_blocks)),
                  kClearThreads, 0, stream, call, bytes);
  }
  const std::uint32_t hidden = static_cast<std::uint32_t>(call.args.shape.hidden);
  const unsigned others = form == RowForm::none ? 0
                                                : std::min(row_blocks(form, call.tokens, hidden),
                                                           std::max(most_blocks, 2U) - 1);
  return launch(form == RowForm::fp16  ? prepare_slots<RowForm::fp16>
                : form == RowForm::fp8 ? prepare_slots<RowForm::fp8>
                                       : prepare_slots<RowForm::none>,
                1 + others, kSlotThreads, call.args.shape.local_experts * sizeof(std::uint32_t),
                stream, call);
}

}  // namespace

void run(const Family& family, const ExpertsArgs& args) {
  if (args.tokens == 0) return;
  Call call;
  std::uint32_t bytes = 0;
  const Variant* variant = choose(family, args.shape, args.tokens, call.memory, bytes);
  const bool mx = args.shape.format == BlockFormat::mxfp4;
  const Kernel kernel = variant == nullptr ? nullptr : mx ? variant->mxfp4 : variant->nvfp4;
  if (kernel == nullptr) {
    if (args.launch_error != nullptr) *args.launch_error = cudaErrorInvalidConfiguration;
    return;
  }
  call.experts = arranged(args.shape, args.weights.offsets);
  call.wide_rows = variant->wide_tiles * kRowsOfTile;
  call.sheets_from = sheets_from(family.form, call.experts.down.steps);
  call.wide_acts = args.shape.act_format != ActFormat::bf16;
  const unsigned blocks = blocks_of(args);
  auto* stream = static_cast<cudaStream_t>(args.stream);
  const RowForm form = variant->wide > 0 ? family.form : RowForm::none;
  const bool small = is_small(args.shape, args.tokens);
  call.in_order =
      small && !call.wide_acts && has_few_units(args, call.experts.gate_up.units, blocks);
  const std::uint64_t most = piece_of(family, args.shape, args.tokens);
  for (std::uint64_t first = 0; first < args.tokens; first += most) {
    const std::uint64_t tokens = std::min(most, args.tokens - first);
    call.args = piece(args, first, tokens);
    carve(args.shape, tokens, form, align_up(args.workspace, kAlign), call.work);
    call.tokens = static_cast<std::uint32_t>(tokens);
    call.slots = static_cast<std::uint32_t>(tokens * args.shape.top_k);
    // What a launch that failed would have made, the next one must not read.
    int code = launch_first(call, small, form, blocks, stream);
    if (code == cudaSuccess) code = launch(kernel, blocks, kBlockThreads, bytes, stream, call);
    if (code == cudaSuccess && args.act_tap != nullptr)
      code = launch(tap_acts, blocks, kThreads, 0, stream, call, form != RowForm::none);
    if (code == cudaSuccess) continue;
    if (args.launch_error != nullptr && *args.launch_error == 0) *args.launch_error = code;
    return;
  }
}

std::uint64_t workspace_bytes(const Family& family, const ExpertsShape& shape,
                              std::uint64_t tokens) {
  Workspace work;
  return carve(shape, piece_of(family, shape, tokens), family.form, nullptr, work) + kAlign - 1;
}

bool supports(Activation /*activation*/) { return true; }

int prepare(const Family& family) {
  cudaFuncAttributes attributes;
  int first = cudaSuccess;
  const auto note = [&](int code) { first = first == cudaSuccess ? code : first; };
  for (const auto variants : {family.variants, family.small}) {
    for (const Variant& variant : variants) {
      for (const Kernel kernel : {variant.mxfp4, variant.nvfp4}) {
        if (kernel == nullptr) continue;
        note(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kMemoryMost));
      }
    }
  }
  note(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(clear_call)));
  for (const Kernel kernel :
       {prepare_slots<RowForm::none>, prepare_slots<RowForm::fp16>, prepare_slots<RowForm::fp8>})
    note(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
  note(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(tap_acts)));
  if (first != cudaSuccess) (void)cudaGetLastError();
  return first;
}

}  // namespace moxie::cuda::sm90
