// SPDX-License-Identifier: Apache-2.0
// One call of a layer on a probe, as run, bench and their checks make it.
#pragma once

#include <cstdint>

#include "moxie/layer.hpp"
#include "moxie/probe.hpp"

namespace moxie::cli {

// The probe's inputs and a dense result [tokens, hidden] of this type.
LayerIo io_of(const Probe& probe, void* y, DType y_dtype, std::uint32_t* flags);

// Microseconds of the call. Error(internal) when the layer refuses it: sizes were checked before.
double call_layer(HostCall& call, const LayerIo& io);

}  // namespace moxie::cli
