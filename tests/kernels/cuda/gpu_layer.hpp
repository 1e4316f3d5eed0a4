// SPDX-License-Identifier: Apache-2.0
// Layers on a GPU, called with data of the host or with buffers that stay for a graph.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "support/device_memory.hpp"
#include "support/layer_rig.hpp"

namespace moxie::test {

// A layer's f32 result for a probe of the host's, on whatever it runs; its workspace is poisoned.
inline std::vector<float> called(const MoeLayer& layer, const Probe& probe) {
  std::vector<float> y(probe.tokens * probe.hidden, std::numeric_limits<float>::quiet_NaN());
  std::uint32_t flags = 0;
  HostCall call(layer, probe.tokens);
  EXPECT_EQ(call.forward(io_of(probe, y.data(), DType::f32, &flags)), CallStatus::ok);
  EXPECT_EQ(flags, 0U);
  return y;
}

// One call of a layer in a graph, with its buffers.
class CapturedLayer {
 public:
  CapturedLayer(const MoeLayer& layer, const Probe& probe)
      : x_(std::span<const std::byte>(probe.x)),
        ids_(std::span<const std::int32_t>(probe.topk_ids)),
        weights_(std::span<const float>(probe.topk_weights)),
        y_(probe.tokens * probe.hidden * sizeof(float)),
        flags_(sizeof(std::uint32_t), std::byte{0}),
        workspace_(layer.workspace_size(probe.tokens), std::byte{0xFF}, 3),
        graph_(stream_) {
    LayerIo io = io_of(probe, y_.data(), DType::f32, flags_.as<std::uint32_t>());
    io.x.data = x_.data();
    io.topk_ids = ids_.as<std::int32_t>();
    io.topk_weights = weights_.as<float>();
    EXPECT_EQ(layer.forward(io, workspace_.span(), stream_.handle()), CallStatus::ok);
    graph_.end();
  }
  // With the inputs of another probe of the same extents.
  std::vector<float> replayed(const Probe& probe) {
    x_.put(std::span<const std::byte>(probe.x));
    ids_.put(std::span<const std::int32_t>(probe.topk_ids));
    weights_.put(std::span<const float>(probe.topk_weights));
    return replayed();
  }
  std::vector<float> replayed() {
    const std::vector<std::byte> poison(y_.span().size(), std::byte{0xFF});
    y_.put(std::span(poison));
    graph_.launch();
    stream_.wait();
    for (const DeviceMemory* memory : {&x_, &ids_, &weights_, &y_, &flags_, &workspace_})
      EXPECT_TRUE(memory->intact()) << "the layer wrote outside a buffer";
    return y_.values<float>();
  }

 private:
  DeviceMemory x_, ids_, weights_, y_, flags_, workspace_;
  device::Stream stream_;
  device::Graph graph_;
};

}  // namespace moxie::test
