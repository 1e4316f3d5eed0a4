// SPDX-License-Identifier: Apache-2.0
// Calls of a layer on several sets of inputs, captured one behind the other.
#include <algorithm>
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

[[noreturn]] void refuse_set(std::size_t set, std::string expected, std::string got) {
  throw Error(ErrorCode::usage,
              {.code = "MOXIE-R020",
               .message = "set " + std::to_string(set) + " of a replay is no call of the layer",
               .expected = std::move(expected),
               .got = std::move(got)});
}

std::uint64_t dense_bytes(DType dtype, std::uint64_t rows, std::uint64_t cols) {
  return rows * cols * bits_of(dtype) / 8;
}

}  // namespace

struct DeviceReplay::State {
  // One set's data on the device; `io` points there.
  struct Set {
    LayerIo io;
    device::Buffer inputs;
    device::Buffer results;
    device::Buffer flags;
  };

  const MoeLayer* layer = nullptr;
  std::vector<Set> sets;
  device::Buffer workspace;
  device::Stream stream;
  device::Event begin;
  device::Event end;
  std::unique_ptr<device::Graph> graph;

  void add(const LayerIo& io);
  void put_calls();
  template <class Action>
  double time_of(const Action& action);
};

// Host memory in, addresses of the copies out.
void DeviceReplay::State::add(const LayerIo& io) {
  const std::size_t number = sets.size();
  const std::uint64_t tokens = io.x.rows;
  const std::uint64_t slots = tokens * layer->spec().top_k;
  if (tokens == 0) refuse_set(number, "at least one token", "none");
  if (io.x.row_stride != io.x.cols || io.y.row_stride != io.y.cols)
    refuse_set(number, "dense rows of x and y", "a row stride that is not the width");
  if (io.trace != nullptr || io.act_tap != nullptr || io.act_stats != nullptr)
    refuse_set(number, "x, ids, weights, y and flags alone", "a tap, counts or a trace");
  if (io.x.data == nullptr || io.topk_ids == nullptr || io.topk_weights == nullptr ||
      io.y.data == nullptr || io.flags == nullptr) {
    refuse_set(number, "x, ids, weights, y and flags", "a null pointer");
  }
  Set set{.io = io, .inputs = {}, .results = {}, .flags = device::Buffer(sizeof(std::uint32_t))};
  const std::uint64_t x_bytes = dense_bytes(io.x.dtype, tokens, io.x.cols);
  const std::uint64_t ids_at = round_up(x_bytes, kAlign);
  const std::uint64_t weights_at = ids_at + round_up(slots * sizeof(std::int32_t), kAlign);
  set.inputs = device::Buffer(weights_at + slots * sizeof(float));
  std::byte* base = set.inputs.data();
  device::copy_to_device(base, {static_cast<const std::byte*>(io.x.data), x_bytes});
  device::copy_to_device(base + ids_at, std::as_bytes(std::span(io.topk_ids, slots)));
  device::copy_to_device(base + weights_at, std::as_bytes(std::span(io.topk_weights, slots)));
  set.results = device::Buffer(dense_bytes(io.y.dtype, io.y.rows, io.y.cols));
  set.io.x.data = base;
  set.io.topk_ids = reinterpret_cast<const std::int32_t*>(base + ids_at);
  set.io.topk_weights = reinterpret_cast<const float*>(base + weights_at);
  set.io.y.data = set.results.data();
  set.io.flags = reinterpret_cast<std::uint32_t*>(set.flags.data());
  sets.push_back(std::move(set));
}

void DeviceReplay::State::put_calls() {
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const CallStatus status =
        layer->forward(sets[i].io, std::span(workspace.data(), workspace.bytes()), stream.handle());
    if (status == CallStatus::ok) continue;
    if (status != CallStatus::device_failed)
      refuse_set(i, "a call that the layer takes", std::string(name_of(status)));
    throw Error(ErrorCode::environment,
                {.code = "MOXIE-E005", .message = "the device did not take a call of a replay"});
  }
}

template <class Action>
double DeviceReplay::State::time_of(const Action& action) {
  begin.record(stream.handle());
  action();
  end.record(stream.handle());
  stream.wait();
  return end.us_since(begin);
}

DeviceReplay::DeviceReplay(const MoeLayer& layer, std::span<const LayerIo> sets) {
  if (layer.plan().target == Target::cpu) {
    throw Error(ErrorCode::unsupported, {.code = "MOXIE-R020",
                                         .message = "a replay needs a layer on a GPU",
                                         .expected = "a plan for another target",
                                         .got = "cpu"});
  }
  if (sets.empty()) {
    throw Error(ErrorCode::usage, {.code = "MOXIE-R020",
                                   .message = "a replay has no set of inputs",
                                   .expected = "at least one",
                                   .got = "none"});
  }
  state_ = std::make_unique<State>();
  State& state = *state_;
  state.layer = &layer;
  std::uint64_t tokens = 0;
  for (const LayerIo& io : sets) {
    state.add(io);
    tokens = std::max(tokens, io.x.rows);
  }
  state.workspace = device::Buffer(layer.workspace_size(tokens));
  clear_results();
  // Eagerly first: what a call loads once is loaded, and what is refused is refused outside of a
  // capture.
  state.put_calls();
  state.stream.wait();
  state.graph = std::make_unique<device::Graph>(state.stream);
  state.put_calls();
  state.graph->end();
}

DeviceReplay::~DeviceReplay() = default;
DeviceReplay::DeviceReplay(DeviceReplay&&) noexcept = default;
DeviceReplay& DeviceReplay::operator=(DeviceReplay&&) noexcept = default;

std::size_t DeviceReplay::sets() const { return state_->sets.size(); }

double DeviceReplay::call_us() {
  return state_->time_of([&] { state_->put_calls(); });
}

double DeviceReplay::replay_us() {
  return state_->time_of([&] { state_->graph->launch(); });
}

double DeviceReplay::host_us() {
  const std::uint64_t begin = now_ns();
  state_->put_calls();
  const double us = static_cast<double>(now_ns() - begin) * 1e-3;
  state_->stream.wait();
  return us;
}

void DeviceReplay::clear_results() {
  State& state = *state_;
  const auto fill = [&](const device::Buffer& buffer, std::byte value) {
    const int code = device::fill(buffer.data(), value, buffer.bytes(), state.stream.handle());
    if (code == 0) return;
    throw Error(ErrorCode::environment, {.code = "MOXIE-E005",
                                         .message = "the device did not fill a buffer",
                                         .got = device::error_text(code)});
  };
  fill(state.workspace, kPoison);
  for (const State::Set& set : state.sets) {
    fill(set.results, kPoison);
    fill(set.flags, std::byte{0});
  }
  state.stream.wait();
}

std::uint32_t DeviceReplay::copy_result(std::size_t set, std::span<std::byte> y) const {
  MOXIE_CHECK(set < state_->sets.size(), "a set lies inside the replay");
  const State::Set& from = state_->sets[set];
  MOXIE_CHECK(y.size() == from.results.bytes(), "a result has the size of the set's y");
  device::copy_to_host(y, from.results.data());
  std::uint32_t flags = 0;
  device::copy_to_host(std::as_writable_bytes(std::span(&flags, 1)), from.flags.data());
  return flags;
}

}  // namespace moxie
