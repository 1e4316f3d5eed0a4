// SPDX-License-Identifier: Apache-2.0
// Calls of a layer. What succeeds allocates nothing.
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/checked.hpp"
#include "capi/handles.hpp"
#include "capi/refusal.hpp"
#include "capi/versioned.hpp"

namespace moxie::capi {

namespace {

constexpr const char* kFloats = "MOXIE_DTYPE_F32 (1) or MOXIE_DTYPE_BF16 (2)";

DType dtype_of(std::uint32_t value, const char* field, const char* expected = kFloats) {
  if (value == MOXIE_DTYPE_F32) return DType::f32;
  if (value == MOXIE_DTYPE_BF16) return DType::bf16;
  refuse("MOXIE-A003", std::string(field) + " is no element type that is taken here", expected,
         std::to_string(value));
}

// Of x, where a dispatch may have quantised it.
DType dtype_of_rows(std::uint32_t value) {
  if (value == MOXIE_DTYPE_F8_E4M3) return DType::f8_e4m3;
  return dtype_of(value, "x_dtype",
                  "MOXIE_DTYPE_F32 (1), MOXIE_DTYPE_BF16 (2) or MOXIE_DTYPE_F8_E4M3 (3)");
}

// A kernel reads and writes whole elements.
void require_data(const void* data, std::uint64_t element_bytes, const char* field) {
  require_pointer(data, field);
  if (reinterpret_cast<std::uintptr_t>(data) % element_bytes == 0) return;
  refuse("MOXIE-A004", std::string(field) + " is not aligned to its elements",
         "a multiple of " + std::to_string(element_bytes),
         std::to_string(reinterpret_cast<std::uintptr_t>(data)));
}

void require_room(std::uint64_t places, std::uint64_t stride, const char* field) {
  if (stride <= largest_stride(places)) return;
  refuse("MOXIE-A004", std::string(field) + " is larger than memory",
         "at most " + std::to_string(largest_stride(places)), std::to_string(stride));
}

void require_stride(std::uint64_t stride, std::uint64_t hidden, std::uint64_t rows,
                    const char* field) {
  // More rows than fit memory are refused as such.
  if (largest_stride(rows) >= hidden) require_room(rows, stride, field);
  if (stride >= hidden) return;
  refuse("MOXIE-A004", std::string(field) + " is less than a row",
         "at least hidden, " + std::to_string(hidden), std::to_string(stride));
}

void require_stream(const ShardPlan& plan, const void* stream) {
  if (plan.target != Target::cpu || stream == nullptr) return;
  refuse("MOXIE-A004", "a layer on the CPU has no stream", "stream null", "a stream",
         "plan for the GPU that the stream belongs to");
}

// What the arguments of both kinds of call say of x and y.
struct Rows {
  MatrixRef x;
  MutableMatrixRef y;
};

template <class Args>
Rows rows_of(const ShardPlan& plan, const Args& args, DType x_dtype, std::uint64_t count,
             const char* reserved) {
  require_reserved(args.reserved, reserved);
  const DType y_dtype = dtype_of(args.y_dtype, "y_dtype");
  require_stride(args.x_row_stride, plan.hidden, count, "x_row_stride");
  require_stride(args.y_row_stride, plan.hidden, count, "y_row_stride");
  require_data(args.flags, sizeof(std::uint32_t), "flags");
  require_pointer(args.workspace, "workspace");
  if (count > 0) {
    require_data(args.x, bits_of(x_dtype) / 8, "x");
    require_data(args.y, bits_of(y_dtype) / 8, "y");
  }
  require_stream(plan, args.stream);
  return {.x = {.data = args.x,
                .dtype = x_dtype,
                .rows = count,
                .cols = plan.hidden,
                .row_stride = args.x_row_stride},
          .y = {.data = args.y,
                .dtype = y_dtype,
                .rows = count,
                .cols = plan.hidden,
                .row_stride = args.y_row_stride}};
}

LayerIo io_of(const MoeLayer& layer, const moxie_forward_args& args) {
  const Rows rows = rows_of(layer.plan(), args, dtype_of(args.x_dtype, "x_dtype"), args.tokens,
                            "moxie_forward_args.reserved");
  if (args.tokens > 0) {
    require_data(args.topk_ids, sizeof(std::int32_t), "topk_ids");
    require_data(args.topk_weights, sizeof(float), "topk_weights");
  }
  return {.x = rows.x,
          .topk_ids = args.topk_ids,
          .topk_weights = args.topk_weights,
          .y = rows.y,
          .flags = args.flags};
}

void require_stride_of_scales(std::uint64_t stride, std::uint64_t places, const char* field) {
  require_room(places, stride, field);
  if (stride > 0) return;
  refuse("MOXIE-A004", std::string(field) + " is less than a scale", "at least 1", "0");
}

RowBlockScales x_scales_of(const moxie_rows_args& args, const ShardPlan& plan) {
  if (args.x_dtype != MOXIE_DTYPE_F8_E4M3) {
    if (args.x_scales == nullptr) return {};
    refuse("MOXIE-A004", "x_scales belong to x in MOXIE_DTYPE_F8_E4M3 alone", "x_scales null",
           "x_dtype " + std::to_string(args.x_dtype));
  }
  if (args.rows == 0) return {};
  require_data(args.x_scales, sizeof(float), "x_scales");
  const std::uint64_t blocks = divide_up(plan.hidden, kScaledColumns);
  require_stride_of_scales(args.x_scale_row_stride, args.rows, "x_scale_row_stride");
  require_stride_of_scales(args.x_scale_block_stride, blocks, "x_scale_block_stride");
  require_room(plan.experts, args.x_scale_expert_stride, "x_scale_expert_stride");
  return {.data = args.x_scales,
          .row_stride = args.x_scale_row_stride,
          .block_stride = args.x_scale_block_stride,
          .expert_stride = args.x_scale_expert_stride};
}

RowsIo io_of(const MoeLayer& layer, const moxie_rows_args& args) {
  const Rows rows = rows_of(layer.plan(), args, dtype_of_rows(args.x_dtype), args.rows,
                            "moxie_rows_args.reserved");
  require_data(args.rows_of_expert, sizeof(std::int32_t), "rows_of_expert");
  if (args.row_scales != nullptr) require_data(args.row_scales, sizeof(float), "row_scales");
  return {.x = rows.x,
          .x_scales = x_scales_of(args, layer.plan()),
          .rows_of_expert = args.rows_of_expert,
          .rows_apart = args.rows_apart,
          .row_scales = args.row_scales,
          .y = rows.y,
          .flags = args.flags};
}

// At least the bytes that so many tokens or rows need.
template <class Args>
std::span<std::byte> workspace_of(const Args& args, std::uint64_t needed, std::uint64_t count,
                                  const char* what) {
  if (args.workspace_bytes < needed) {
    refuse("MOXIE-A005", "the workspace is too small for " + std::to_string(count) + what,
           "at least " + std::to_string(needed) + " bytes", std::to_string(args.workspace_bytes));
  }
  return {static_cast<std::byte*>(args.workspace), args.workspace_bytes};
}

// Refuses more slots than a call may have.
std::span<std::byte> workspace_for(const MoeLayer& layer, const moxie_forward_args& args) {
  return workspace_of(args, layer.workspace_size(args.tokens), args.tokens, " tokens");
}
std::span<std::byte> workspace_for(const MoeLayer& layer, const moxie_rows_args& args) {
  return workspace_of(args, layer.rows_workspace_size(args.rows, dtype_of_rows(args.x_dtype)),
                      args.rows, " rows");
}

void require_scales(const moxie_layer& handle, const char* call) {
  if (!handle.scales_missing) return;
  refuse("MOXIE-R017", "the scales of the activations are not known yet", "moxie_warm_up() first",
         call);
}

void require_ok(CallStatus status) {
  if (status == CallStatus::ok) return;
  if (status == CallStatus::device_failed) {
    throw Error(ErrorCode::environment,
                {.code = "MOXIE-E005",
                 .message = "the device did not take the work of the call",
                 .hint = "ask the stream: an earlier failure stays with it"});
  }
  refuse("MOXIE-A004", "the layer does not take this call", "ok", std::string(name_of(status)));
}

void forward(const moxie_layer& handle, const moxie_forward_args& args) {
  const MoeLayer& layer = handle.layer;
  const LayerIo io = io_of(layer, args);
  require_scales(handle, "moxie_forward()");
  require_ok(layer.forward(io, workspace_for(layer, args), args.stream));
}

void forward_rows(const moxie_layer& handle, const moxie_rows_args& args) {
  const MoeLayer& layer = handle.layer;
  const RowsIo io = io_of(layer, args);
  require_scales(handle, "moxie_forward_rows()");
  require_ok(layer.forward_rows(io, workspace_for(layer, args), args.stream));
}

std::uint32_t warm_up(moxie_layer& handle, const moxie_forward_args& args) {
  MoeLayer& layer = handle.layer;
  const LayerIo io = io_of(layer, args);
  const auto scales = layer.warm_up(io, workspace_for(layer, args), layer.plan().act_margin);
  layer.freeze(scales);
  handle.scales_missing = false;
  return static_cast<std::uint32_t>(std::ranges::count_if(
      scales, [](const ActScales& rank) { return rank.slots == 0 || rank.guarded; }));
}

}  // namespace

}  // namespace moxie::capi

using namespace moxie::capi;  // NOLINT(google-build-using-namespace): of the C functions below

extern "C" {

int moxie_workspace_size(const moxie_layer* layer, uint64_t tokens, uint64_t* bytes) noexcept {
  return guarded([&] {
    require_pointer(bytes, "bytes");
    *bytes = 0;
    require_pointer(layer, "layer");
    *bytes = layer->layer.workspace_size(tokens);
  });
}

int moxie_forward(const moxie_layer* layer, const moxie_forward_args* args) noexcept {
  return guarded([&] {
    require_pointer(layer, "layer");
    forward(*layer, read_struct(args));
  });
}

int moxie_rows_workspace_size(const moxie_layer* layer, uint64_t rows, uint64_t* bytes) noexcept {
  return guarded([&] {
    require_pointer(bytes, "bytes");
    *bytes = 0;
    require_pointer(layer, "layer");
    *bytes = layer->layer.rows_workspace_size(rows);
  });
}

int moxie_rows_workspace_size_of(const moxie_layer* layer, uint64_t rows, uint32_t x_dtype,
                                 uint64_t* bytes) noexcept {
  return guarded([&] {
    require_pointer(bytes, "bytes");
    *bytes = 0;
    require_pointer(layer, "layer");
    *bytes = layer->layer.rows_workspace_size(rows, dtype_of_rows(x_dtype));
  });
}

int moxie_forward_rows(const moxie_layer* layer, const moxie_rows_args* args) noexcept {
  return guarded([&] {
    require_pointer(layer, "layer");
    forward_rows(*layer, read_struct(args));
  });
}

int moxie_warm_up(moxie_layer* layer, const moxie_forward_args* args,
                  uint32_t* fallback_ranks) noexcept {
  return guarded([&] {
    require_pointer(layer, "layer");
    const std::uint32_t fallbacks = warm_up(*layer, read_struct(args));
    if (fallback_ranks != nullptr) *fallback_ranks = fallbacks;
  });
}

}  // extern "C"
