// SPDX-License-Identifier: Apache-2.0
// tools/peers/peer.py, as it was when this was built.
#pragma once

#include <string_view>

namespace moxie::cli {

extern const std::string_view kPeerScript;

}  // namespace moxie::cli
