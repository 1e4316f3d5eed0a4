// SPDX-License-Identifier: Apache-2.0
// Copies around a call on a device; none on the CPU.
#include <cstring>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/clock.hpp"
#include "device/device.hpp"
#include "formats/block_format.hpp"
#include "moxie/layer.hpp"

namespace moxie {

namespace {

constexpr std::byte kPoison{0xFF};  // NaN as f32 and as bf16
constexpr std::uint64_t kAlign = 256;

std::uint64_t row_bytes(DType dtype, std::uint64_t columns) { return columns * bits_of(dtype) / 8; }

// Bytes from the first element of the first row to the last of the last.
std::uint64_t span_bytes(DType dtype, std::uint64_t rows, std::uint64_t cols,
                         std::uint64_t stride) {
  return rows == 0 ? 0 : row_bytes(dtype, (rows - 1) * stride + cols);
}

}  // namespace

struct HostCall::State {
  explicit State(const MoeLayer& bound) : layer(&bound) {}

  const MoeLayer* layer;
  std::vector<std::byte> workspace;  // on the CPU
  double us = 0;

  // On a device.
  struct OnDevice {
    explicit OnDevice(std::uint64_t workspace_bytes) : workspace(workspace_bytes) {}
    device::Stream stream;
    device::Event begin;
    device::Event end;
    device::Buffer workspace;
    device::Buffer data;      // inputs and results; grows
    device::Buffer evicting;  // made when it is needed
  };
  std::unique_ptr<OnDevice> device;

  template <class Action>
  auto on_device(const LayerIo& io, const Action& action);
};

// A call's host memory and its place on the device.
struct DeviceCopy {
  const void* host = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;
};

template <class Action>
auto HostCall::State::on_device(const LayerIo& io, const Action& action) {
  const std::uint64_t tokens = io.x.rows;
  const std::uint64_t slots = tokens * layer->spec().top_k;
  const std::uint64_t taps = io.act_tap == nullptr ? 0
                                                   : slots * layer->act_scales().size() *
                                                         layer->plan().inter().kernel.value;
  DeviceCopy x{io.x.data, span_bytes(io.x.dtype, tokens, io.x.cols, io.x.row_stride)};
  DeviceCopy ids{io.topk_ids, slots * sizeof(std::int32_t)};
  DeviceCopy weights{io.topk_weights, slots * sizeof(float)};
  DeviceCopy y{io.y.data, span_bytes(io.y.dtype, io.y.rows, io.y.cols, io.y.row_stride)};
  DeviceCopy flags{io.flags, sizeof(std::uint32_t)};
  DeviceCopy tap{io.act_tap, taps * sizeof(float)};
  DeviceCopy stats{io.act_stats, io.act_stats == nullptr ? 0 : sizeof(ActStats)};
  const auto all = {&x, &ids, &weights, &y, &flags, &tap, &stats};
  std::uint64_t bytes = 0;
  for (DeviceCopy* copy : all)
    copy->offset = std::exchange(bytes, bytes + round_up(copy->bytes, kAlign));
  if (device->data.bytes() < bytes) device->data = device::Buffer(bytes);
  std::byte* base = device->data.data();
  // y and taps too: rows between which the caller keeps something, and slots that are left alone.
  for (const DeviceCopy* copy : all) {
    if (copy->host != nullptr)
      device::copy_to_device(base + copy->offset,
                             {static_cast<const std::byte*>(copy->host), copy->bytes});
  }
  const auto at = [&](const DeviceCopy& copy) -> void* {
    return copy.host == nullptr ? nullptr : base + copy.offset;
  };
  LayerIo there = io;
  there.x.data = at(x);
  there.topk_ids = static_cast<const std::int32_t*>(at(ids));
  there.topk_weights = static_cast<const float*>(at(weights));
  there.y.data = at(y);
  there.flags = static_cast<std::uint32_t*>(at(flags));
  there.act_tap = static_cast<float*>(at(tap));
  there.act_stats = static_cast<ActStats*>(at(stats));
  auto answer = action(there, std::span(device->workspace.data(), device->workspace.bytes()),
                       device->stream.handle());
  device->stream.wait();
  for (const DeviceCopy* copy : {&y, &flags, &tap, &stats}) {
    if (copy->host != nullptr)
      device::copy_to_host({static_cast<std::byte*>(const_cast<void*>(copy->host)), copy->bytes},
                           base + copy->offset);
  }
  return answer;
}

HostCall::HostCall(const MoeLayer& layer, std::uint64_t tokens)
    : state_(std::make_unique<State>(layer)) {
  const std::uint64_t bytes = layer.workspace_size(tokens);
  if (layer.plan().target == Target::cpu) {
    state_->workspace.assign(bytes, kPoison);
    return;
  }
  state_->device = std::make_unique<State::OnDevice>(bytes);
  (void)device::fill(state_->device->workspace.data(), kPoison, bytes,
                     state_->device->stream.handle());
  state_->device->stream.wait();
}

HostCall::~HostCall() = default;
HostCall::HostCall(HostCall&&) noexcept = default;
HostCall& HostCall::operator=(HostCall&&) noexcept = default;

CallStatus HostCall::forward(const LayerIo& io) {
  State& state = *state_;
  if (state.device == nullptr) {
    const std::uint64_t start = now_ns();
    const CallStatus status = state.layer->forward(io, state.workspace);
    state.us = static_cast<double>(now_ns() - start) * 1e-3;
    return status;
  }
  const CallStatus status =
      state.on_device(io, [&](const LayerIo& there, std::span<std::byte> workspace, void* stream) {
        state.device->begin.record(stream);
        const CallStatus answer = state.layer->forward(there, workspace, stream);
        state.device->end.record(stream);
        return answer;
      });
  state.us = state.device->end.us_since(state.device->begin);
  if (io.trace != nullptr) io.trace->total_ns = static_cast<std::uint64_t>(state.us * 1e3);
  return status;
}

std::vector<ActScales> HostCall::warm_up(const LayerIo& io, double margin) {
  State& state = *state_;
  if (state.device == nullptr) return state.layer->warm_up(io, state.workspace, margin);
  return state.on_device(io, [&](const LayerIo& there, std::span<std::byte> workspace, void*) {
    return state.layer->warm_up(there, workspace, margin);
  });
}

void HostCall::evict() {
  State::OnDevice* device = state_->device.get();
  if (device == nullptr) return;
  constexpr std::uint64_t kMoreThanAnyCache = std::uint64_t{256} << 20;
  if (device->evicting.bytes() == 0) device->evicting = device::Buffer(kMoreThanAnyCache);
  (void)device::fill(device->evicting.data(), std::byte{0}, kMoreThanAnyCache,
                     device->stream.handle());
  device->stream.wait();
}

double HostCall::us() const { return state_->us; }

}  // namespace moxie
