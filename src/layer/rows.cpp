// SPDX-License-Identifier: Apache-2.0
// Rows that somebody else has dispatched: the kernel of the layer with one choice a row.
#include <algorithm>

#include "base/align.hpp"
#include "device/device.hpp"
#include "layer/layer_state.hpp"

namespace moxie {

namespace {

// What lies where in the workspace of a call.
struct RowsWorkspace {
  std::uint64_t ids = 0;
  std::uint64_t weights = 0;
  std::uint64_t local_of_expert = 0;
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

RowsWorkspace carve(const ExpertsKernel& kernel, const ExpertsShape& shape, std::uint64_t rows,
                    bool direct) {
  RowsWorkspace at;
  const auto take = [&at](std::uint64_t bytes) {
    const std::uint64_t begin = at.bytes;
    at.bytes += round_up(bytes, kWorkspaceAlign);
    return begin;
  };
  at.ids = take(rows * sizeof(std::int32_t));
  at.weights = take(rows * sizeof(float));
  at.local_of_expert = take(shape.local_experts * sizeof(std::int32_t));
  at.sum = take(direct ? 0 : rows * shape.hidden * sizeof(float));
  at.kernel = take(kernel.workspace_bytes(shape_of_rows(shape), rows));
  at.bytes += kWorkspaceAlign;
  return at;
}

}  // namespace

bool MoeLayer::State::writes_rows() const { return kernel->stores_y && !held.front().empty; }

std::uint64_t MoeLayer::rows_workspace_size(std::uint64_t rows) const {
  const State& state = *state_;
  if (state.held.size() != 1 || !fits(rows, 1)) {
    throw Error(
        ErrorCode::usage,
        {.code = "MOXIE-R008",
         .message = "the layer takes no dispatched rows, or not so many",
         .expected = "a layer that holds one rank, rows up to " + std::to_string(kMaxSlots),
         .got = std::to_string(state.held.size()) + " ranks, " + std::to_string(rows) + " rows"});
  }
  return carve(*state.kernel, state.held.front().shape, rows, state.writes_rows()).bytes;
}

bool MoeLayer::State::accepts(const RowsIo& io) const {
  const bool shapes = held.size() == 1 && are_rows(io.x, io.y, plan.hidden) && fits(io.x.rows, 1);
  const bool pointers = io.flags != nullptr && io.rows_of_expert != nullptr &&
                        (io.x.rows == 0 || (io.x.data != nullptr && io.y.data != nullptr));
  return shapes && pointers;
}

CallStatus MoeLayer::State::run_rows(const RowsIo& io, std::span<std::byte> workspace,
                                     void* stream) const {
  const HeldRank& rank = held.front();
  const std::uint64_t rows = io.x.rows;
  const bool direct = writes_rows();
  const RowsWorkspace at = carve(*kernel, rank.shape, rows, direct);
  if (workspace.size() < at.bytes) return CallStatus::workspace_too_small;
  if (rows == 0) return CallStatus::ok;
  std::byte* base = align_up(workspace.data(), kWorkspaceAlign);
  int error = 0;
  const ExpertRowsArgs choices{
      .rows = rows,
      .local_experts = rank.shape.local_experts,
      .rows_of_expert = io.rows_of_expert,
      .rows_apart = io.rows_apart,
      .row_scales = io.row_scales,
      .ids = reinterpret_cast<std::int32_t*>(base + at.ids),
      .weights = reinterpret_cast<float*>(base + at.weights),
      .local_of_expert = reinterpret_cast<std::int32_t*>(base + at.local_of_expert),
      .flags = io.flags,
      .stream = stream,
      .launch_error = &error};
  find_rows_kernel(plan.target)->run(choices);
  auto* sum = reinterpret_cast<float*>(base + at.sum);
  ExpertsArgs args = args_of(rank, {.x = io.x, .y = io.y, .flags = io.flags});
  args.shape = shape_of_rows(rank.shape);
  args.weights.local_of_expert = choices.local_of_expert;
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
