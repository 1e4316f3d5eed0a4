// SPDX-License-Identifier: Apache-2.0
// Rows that somebody else has dispatched: the kernel of the layer with one choice a row.
#include <algorithm>

#include "base/align.hpp"
#include "base/checked.hpp"
#include "device/device.hpp"
#include "layer/layer_state.hpp"

namespace moxie {

namespace {

// What lies where in the workspace of a call.
struct RowsWorkspace {
  std::uint64_t ids = 0;
  std::uint64_t weights = 0;
  std::uint64_t x = 0;    // [rows, hidden] of FP8 rows, in values_type_of()
  std::uint64_t sum = 0;  // f32 [rows, hidden], where the kernel does not write y itself
  std::uint64_t kernel = 0;
  std::uint64_t bytes = 0;
};

ExpertsShape shape_of_rows(const ExpertsShape& shape) {
  ExpertsShape one = shape;
  one.experts = one.local_experts;
  one.top_k = 1;
  return one;
}

// Of FP8 rows: what rounds them first makes the same of them as of f32.
DType values_type_of(const ExpertsShape& shape) {
  return shape.act_format == ActFormat::bf16 ? DType::bf16 : DType::f32;
}

RowsWorkspace carve(const ExpertsKernel& kernel, const ExpertsShape& shape, std::uint64_t rows,
                    DType x_dtype, bool direct) {
  RowsWorkspace at;
  const auto take = [&at](std::uint64_t bytes) {
    const std::uint64_t begin = at.bytes;
    at.bytes += round_up(bytes, kWorkspaceAlign);
    return begin;
  };
  at.ids = take(rows * sizeof(std::int32_t));
  at.weights = take(rows * sizeof(float));
  at.x = take(x_dtype == DType::f8_e4m3 ? rows * shape.hidden * (bits_of(values_type_of(shape)) / 8)
                                        : 0);
  at.sum = take(direct ? 0 : rows * shape.hidden * sizeof(float));
  at.kernel = take(kernel.workspace_bytes(shape_of_rows(shape), rows));
  at.bytes += kWorkspaceAlign;
  return at;
}

MatrixRef as_f32(MatrixRef x) {
  x.dtype = DType::f32;
  return x;
}

// Whether FP8 rows have scales, and no others.
bool has_its_scales(const RowsIo& io, std::uint64_t experts) {
  const RowBlockScales& scales = io.x_scales;
  if (io.x.dtype != DType::f8_e4m3) return scales.data == nullptr;
  if (io.x.rows == 0) return true;
  return scales.data != nullptr && scales.row_stride > 0 && scales.block_stride > 0 &&
         scales.row_stride <= largest_stride(io.x.rows) &&
         scales.block_stride <= largest_stride(divide_up(io.x.cols, kScaledColumns)) &&
         scales.expert_stride <= largest_stride(experts);
}

}  // namespace

bool MoeLayer::State::writes_rows() const { return kernel->stores_y && !held.front().empty; }

std::uint64_t MoeLayer::rows_workspace_size(std::uint64_t rows, DType x_dtype) const {
  const State& state = *state_;
  if (state.held.size() != 1 || !fits(rows, 1) ||
      !(is_float(x_dtype) || x_dtype == DType::f8_e4m3)) {
    throw Error(ErrorCode::usage,
                {.code = "MOXIE-R008",
                 .message = "the layer takes no dispatched rows, not so many, or none of this type",
                 .expected = "a layer that holds one rank, up to " + std::to_string(kMaxSlots) +
                             " rows of F32, BF16 or F8_E4M3",
                 .got = std::to_string(state.held.size()) + " ranks, " + std::to_string(rows) +
                        " rows of " + std::string(name_of(x_dtype))});
  }
  return carve(*state.kernel, state.held.front().shape, rows, x_dtype, state.writes_rows()).bytes;
}

bool MoeLayer::State::accepts(const RowsIo& io) const {
  const MatrixRef values = io.x.dtype == DType::f8_e4m3 ? as_f32(io.x) : io.x;
  const bool shapes = held.size() == 1 && are_rows(values, io.y, plan.hidden) &&
                      fits(io.x.rows, 1) && has_its_scales(io, held.front().shape.local_experts);
  const bool pointers = io.flags != nullptr && io.rows_of_expert != nullptr &&
                        (io.x.rows == 0 || (io.x.data != nullptr && io.y.data != nullptr));
  return shapes && pointers;
}

CallStatus MoeLayer::State::run_rows(const RowsIo& io, std::span<std::byte> workspace,
                                     void* stream) const {
  const HeldRank& rank = held.front();
  const std::uint64_t rows = io.x.rows;
  const bool direct = writes_rows();
  const RowsWorkspace at = carve(*kernel, rank.shape, rows, io.x.dtype, direct);
  if (workspace.size() < at.bytes) return CallStatus::workspace_too_small;
  if (rows == 0) return CallStatus::ok;
  std::byte* base = align_up(workspace.data(), kWorkspaceAlign);
  int error = 0;
  const bool expands = io.x.dtype == DType::f8_e4m3 && !rank.empty;
  const ExpertRowsArgs choices{.rows = rows,
                               .local_experts = rank.shape.local_experts,
                               .rows_of_expert = io.rows_of_expert,
                               // Behind the last row there is room for nobody, however far.
                               .rows_apart = std::min(io.rows_apart, rows),
                               .row_scales = io.row_scales,
                               .codes = expands ? io.x : MatrixRef{},
                               .code_scales = io.x_scales,
                               .ids = reinterpret_cast<std::int32_t*>(base + at.ids),
                               .weights = reinterpret_cast<float*>(base + at.weights),
                               .x = {.data = base + at.x,
                                     .dtype = values_type_of(rank.shape),
                                     .rows = rows,
                                     .cols = plan.hidden,
                                     .row_stride = plan.hidden},
                               .flags = io.flags,
                               .max_sms = spec.max_sms,
                               .stream = stream,
                               .launch_error = &error,
                               .threads = threads};
  find_rows_kernel(plan.target)->run(choices);
  auto* sum = reinterpret_cast<float*>(base + at.sum);
  ExpertsArgs args = args_of(rank, {.x = io.x, .y = io.y, .flags = io.flags});
  args.shape = shape_of_rows(rank.shape);
  if (expands) {
    args.x.data = choices.x.data;
    args.x.dtype = choices.x.dtype;
    args.x.row_stride = choices.x.row_stride;
  }
  args.weights.local_of_expert =
      partials == nullptr ? rank.local_of_local.data() : rank.on_device.local_of_local();
  args.topk_ids = choices.ids;
  args.topk_weights = choices.weights;
  args.y = sum;
  if (direct) args.final_y = io.y;
  args.workspace = base + at.kernel;
  args.stream = stream;
  args.launch_error = &error;
  if (rank.empty) {
    const std::uint64_t bytes = rows * plan.hidden * sizeof(float);
    if (partials == nullptr) {
      std::fill_n(sum, rows * plan.hidden, 0.0F);
    } else if (const int code = device::fill(sum, std::byte{0}, bytes, stream); error == 0) {
      error = code;
    }
  } else if (error == 0) {
    kernel->run(args);
  }
  if (partials == nullptr) {
    if (!direct) store_rows(sum, io.y);
    return CallStatus::ok;
  }
  if (!direct && error == 0) {
    partials->store({.sum = sum,
                     .y = io.y,
                     .tokens = rows,
                     .hidden = plan.hidden,
                     .stream = stream,
                     .launch_error = &error});
  }
  return error == 0 ? CallStatus::ok : CallStatus::device_failed;
}

CallStatus MoeLayer::forward_rows(const RowsIo& io, std::span<std::byte> workspace,
                                  void* stream) const noexcept {
  const State& state = *state_;
  if (!state.accepts(io)) return CallStatus::bad_argument;
  return state.run_rows(io, workspace, stream);
}

}  // namespace moxie
