// SPDX-License-Identifier: Apache-2.0
// A probe as a call's arguments; a timed call.
#include "cli/layer_call.hpp"

#include <string>

#include "cli/console.hpp"

namespace moxie::cli {

LayerIo io_of(const Probe& probe, void* y, DType y_dtype, std::uint32_t* flags) {
  return {.x = probe.x_ref(),
          .topk_ids = probe.topk_ids.data(),
          .topk_weights = probe.topk_weights.data(),
          .y = {.data = y,
                .dtype = y_dtype,
                .rows = probe.tokens,
                .cols = probe.hidden,
                .row_stride = probe.hidden},
          .flags = flags};
}

double call_layer(const MoeLayer& layer, const LayerIo& io, std::span<std::byte> workspace) {
  const Stopwatch watch;
  const CallStatus status = layer.forward(io, workspace);
  const double us = watch.seconds() * 1e6;
  if (status != CallStatus::ok) {
    throw Error(
        ErrorCode::internal,
        {.code = "MOXIE-U070", .message = "the layer answers " + std::string(name_of(status))});
  }
  return us;
}

}  // namespace moxie::cli
