// SPDX-License-Identifier: Apache-2.0
// The configs of named models that are no DeepSeek-V4.
#pragma once

#include <string_view>
#include <vector>

#include "moxie/json.hpp"

namespace moxie::synth {

std::vector<std::string_view> published_models();

// Null for a name that is not among them.
Json published_config(std::string_view model);

}  // namespace moxie::synth
