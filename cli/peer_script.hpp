// SPDX-License-Identifier: Apache-2.0
// The scripts of tools/peers, as they were when this was built.
#pragma once

#include <string_view>

namespace moxie::cli {

extern const std::string_view kPeerScript;      // peer.py: torch and humming
extern const std::string_view kGgmlPeerScript;  // ggml_peer.py

}  // namespace moxie::cli
