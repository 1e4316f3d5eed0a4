// SPDX-License-Identifier: Apache-2.0
// A probe as a call's arguments; a timed call.
#include "cli/layer_call.hpp"

#include <string>

#include "moxie/status.hpp"

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

double call_layer(HostCall& call, const LayerIo& io) {
  const CallStatus status = call.forward(io);
  if (status == CallStatus::ok) return call.us();
  const bool device = status == CallStatus::device_failed;
  throw Error(device ? ErrorCode::environment : ErrorCode::internal,
              {.code = device ? "MOXIE-E005" : "MOXIE-U070",
               .message = "the layer answers " + std::string(name_of(status))});
}

}  // namespace moxie::cli
