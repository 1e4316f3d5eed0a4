// SPDX-License-Identifier: Apache-2.0
// Runs the ranks that a layer holds one after another and sums them in rank order.
#include "layer/layer_state.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "base/align.hpp"
#include "base/clock.hpp"
#include "base/parallel.hpp"
#include "device/device.hpp"
#include "formats/act_quant.hpp"
#include "formats/bf16.hpp"

namespace moxie {

void store_rows(const float* from, const MutableMatrixRef& y) {
  for (std::uint64_t row = 0; row < y.rows; ++row, from += y.cols) {
    const std::uint64_t at = row * y.row_stride;
    if (y.dtype == DType::f32) {
      std::copy_n(from, y.cols, static_cast<float*>(y.data) + at);
    } else {
      std::transform(from, from + y.cols, static_cast<std::uint16_t*>(y.data) + at, encode_bf16);
    }
  }
}

std::size_t MoeLayer::State::require(unsigned rank, std::uint64_t expert) const {
  for (std::size_t i = 0; i < held.size(); ++i) {
    const PackedExperts& packed = held[i].packed;
    if (packed.rank == rank && packed.experts.holds(expert)) return i;
  }
  throw Error(ErrorCode::usage, {.code = "MOXIE-R009",
                                 .message = "the layer does not hold this expert",
                                 .where = {.expert = expert, .rank = rank}});
}

bool MoeLayer::State::accepts(const LayerIo& io) const {
  const std::uint64_t tokens = io.x.rows;
  const bool shapes = are_rows(io.x, io.y, plan.hidden) && fits(tokens, spec.top_k);
  const bool pointers = io.flags != nullptr &&
                        (tokens == 0 || (io.x.data != nullptr && io.y.data != nullptr &&
                                         io.topk_ids != nullptr && io.topk_weights != nullptr));
  return shapes && pointers;
}

LayerIo MoeLayer::State::own_choices(const HeldRank& rank, const LayerIo& io,
                                     std::byte* room) const {
  if (!owners.redundant()) return io;
  auto* ids = reinterpret_cast<std::int32_t*>(room);
  const unsigned ep_rank = plan.ranks[rank.packed.rank].ep_rank;
  for (std::uint64_t token = 0; token < io.x.rows; ++token) {
    const std::span of_token(io.topk_ids + token * spec.top_k, spec.top_k);
    for (std::uint64_t choice = 0; choice < spec.top_k; ++choice) {
      const auto owner = owners.owner(of_token, choice);
      // Ids of no expert pass: the kernel reports them.
      ids[token * spec.top_k + choice] = owner.value_or(ep_rank) == ep_rank ? of_token[choice] : -1;
    }
  }
  LayerIo own = io;
  own.topk_ids = ids;
  return own;
}

void MoeLayer::State::run_rank(const HeldRank& rank, const LayerIo& io, float* y, float* act_tap,
                               std::byte* workspace) const {
  if (rank.empty) {
    std::fill_n(y, io.x.rows * plan.hidden, 0.0F);
    return;
  }
  ExpertsArgs args = args_of(rank, own_choices(rank, io, workspace));
  args.y = y;
  if (y == nullptr) args.final_y = io.y;
  args.act_tap = act_tap;
  args.workspace = workspace + own_ids_bytes(owners.redundant(), spec, io.x.rows);
  kernel->run(args);
}

ExpertsArgs MoeLayer::State::args_of(const HeldRank& rank, const LayerIo& io) const {
  return {.shape = rank.shape,
          .weights = {.blobs = partials == nullptr ? rank.blobs.data() : rank.on_device.blobs(),
                      .stride = partials == nullptr ? plan.layout.stride : rank.on_device.stride(),
                      .offsets = offsets,
                      .local_of_expert = partials == nullptr ? rank.local_of_expert.data()
                                                             : rank.on_device.local_of_expert()},
          .tokens = io.x.rows,
          .x = io.x,
          .topk_ids = io.topk_ids,
          .topk_weights = io.topk_weights,
          .x_scale = rank.scales.x,
          .act_scale = rank.scales.act,
          .stats = io.act_stats,
          .flags = io.flags,
          .threads = threads,
          .max_sms = spec.max_sms,
          .trace = io.trace};
}

// A call with dynamic scales: what it quantises with is what it has measured.
ActScales MoeLayer::State::warm_up(const HeldRank& rank, const LayerIo& all, float margin,
                                   std::byte* workspace) const {
  std::byte* base = align_up(workspace, kWorkspaceAlign);
  std::byte* rest = base + partials_bytes(plan, spec, *kernel, all.x.rows);
  const LayerIo io = own_choices(rank, all, rest);
  Measured measured;
  ExpertsArgs args = args_of(rank, io);
  args.shape.act_scale = ActScale::dynamic;
  args.act_margin = margin;
  args.y = reinterpret_cast<float*>(base);
  args.workspace = rest + own_ids_bytes(owners.redundant(), spec, io.x.rows);
  args.trace = nullptr;
  if (partials == nullptr) {
    args.flags = &measured.flags;
    args.stats = &measured.stats;
    if (io.x.rows > 0) kernel->run(args);
  } else {
    measure_on_device(args, measured);
  }
  ActScales scales{.x = kNvfp4Fallback, .act = kNvfp4Fallback, .slots = 0};
  for (const std::int64_t id : host_ids(io)) {
    const bool known = id >= 0 && static_cast<std::uint64_t>(id) < plan.experts;
    if (known && rank.local_of_expert[static_cast<std::size_t>(id)] >= 0) ++scales.slots;
  }
  if (scales.slots > 0) {
    scales.x = measured.stats.x.most_scale;
    scales.act = measured.stats.act.most_scale;
    scales.guarded = measured.stats.x.guarded + measured.stats.act.guarded > 0;
  }
  return scales;
}

void MoeLayer::State::measure_on_device(const ExpertsArgs& args, Measured& measured) const {
  const device::Stream stream;
  const device::Buffer there(sizeof measured);
  int error = device::fill(there.data(), std::byte{0}, sizeof measured, stream.handle());
  auto* at = reinterpret_cast<Measured*>(there.data());
  ExpertsArgs call = args;
  call.flags = &at->flags;
  call.stats = &at->stats;
  call.stream = stream.handle();
  call.launch_error = &error;
  if (call.tokens > 0) kernel->run(call);
  if (error != 0) {
    throw Error(ErrorCode::environment, {.code = "MOXIE-E005",
                                         .message = "the device did not take a launch",
                                         .got = device::error_text(error)});
  }
  stream.wait();
  device::copy_to_host(std::as_writable_bytes(std::span(&measured, 1)), there.data());
}

std::vector<std::int32_t> MoeLayer::State::host_ids(const LayerIo& io) const {
  std::vector<std::int32_t> ids(io.x.rows * spec.top_k);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(ids));
  if (partials != nullptr) {
    device::copy_to_host(bytes, reinterpret_cast<const std::byte*>(io.topk_ids));
  } else if (!ids.empty()) {
    std::memcpy(bytes.data(), io.topk_ids, bytes.size());
  }
  return ids;
}

void MoeLayer::State::run(const LayerIo& io, std::byte* workspace) const {
  const std::uint64_t tokens = io.x.rows;
  const std::uint64_t hidden = plan.hidden;
  std::byte* base = align_up(workspace, kWorkspaceAlign);
  const bool dense = io.y.dtype == DType::f32 && io.y.row_stride == hidden;
  float* sum = dense ? static_cast<float*>(io.y.data) : reinterpret_cast<float*>(base);
  auto* partial = reinterpret_cast<float*>(base + partial_bytes(plan, tokens));
  const std::uint64_t sums_bytes = partials_bytes(plan, spec, *kernel, tokens);
  std::byte* rest = base + sums_bytes;
  if (sums_bytes == 0) return run_rank(held.front(), io, nullptr, io.act_tap, rest);

  std::uint64_t reduce_ns = 0;
  for (const HeldRank& rank : held) {
    const bool first = &rank == &held.front();
    const auto index = static_cast<std::uint64_t>(&rank - held.data());
    float* tap = io.act_tap == nullptr
                     ? nullptr
                     : io.act_tap + index * tokens * spec.top_k * plan.inter().kernel.value;
    run_rank(rank, io, first ? sum : partial, tap, rest);
    if (first) continue;
    const std::uint64_t start = now_ns();
    parallel_team(tokens * hidden < 100'000 ? 1 : threads, [&](Team& team) {
      team.for_each(tokens, [&](std::uint64_t token) {
        float* to = sum + token * hidden;
        const float* from = partial + token * hidden;
        for (std::uint64_t i = 0; i < hidden; ++i) to[i] += from[i];
      });
    });
    reduce_ns += now_ns() - start;
  }
  if (!dense) {
    const std::uint64_t start = now_ns();
    store_rows(sum, io.y);
    reduce_ns += now_ns() - start;
  }
  if (io.trace != nullptr) (*io.trace)[Stage::reduce] += reduce_ns;
}

CallStatus MoeLayer::State::run_on_device(const LayerIo& io, std::byte* workspace,
                                          void* stream) const {
  const std::uint64_t tokens = io.x.rows;
  int error = 0;
  const auto note = [&error](int code) { error = error == 0 ? code : error; };
  std::byte* base = align_up(workspace, kWorkspaceAlign);
  const std::uint64_t sums_bytes = partials_bytes(plan, spec, *kernel, tokens);
  const bool direct = sums_bytes == 0;  // the one kernel writes y
  const bool dense = io.y.dtype == DType::f32 && io.y.row_stride == plan.hidden;
  PartialsArgs sums{.sum = dense ? static_cast<float*>(io.y.data) : reinterpret_cast<float*>(base),
                    .partial = reinterpret_cast<const float*>(base + partial_bytes(plan, tokens)),
                    .y = io.y,
                    .tokens = tokens,
                    .hidden = plan.hidden,
                    .stream = stream,
                    .launch_error = &error};
  if (io.act_stats != nullptr)
    note(device::fill(io.act_stats, std::byte{0}, sizeof *io.act_stats, stream));
  for (std::size_t i = 0; i < held.size() && tokens > 0 && error == 0; ++i) {
    float* y = i == 0 ? sums.sum : const_cast<float*>(sums.partial);
    if (held[i].empty) {
      note(device::fill(y, std::byte{0}, tokens * plan.hidden * sizeof(float), stream));
    } else {
      ExpertsArgs args = args_of(held[i], io);
      args.y = y;
      if (direct) args.final_y = io.y;
      if (io.act_tap != nullptr)
        args.act_tap = io.act_tap + i * tokens * spec.top_k * plan.inter().kernel.value;
      args.workspace = base + sums_bytes;
      args.trace = nullptr;
      args.stream = stream;
      args.launch_error = &error;
      kernel->run(args);
    }
    if (i > 0) partials->add(sums);
  }
  if (!dense && !direct) partials->store(sums);
  return error == 0 ? CallStatus::ok : CallStatus::device_failed;
}

}  // namespace moxie
