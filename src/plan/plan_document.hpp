// SPDX-License-Identifier: Apache-2.0
// What writing and reading a plan's document have in common.
#pragma once

#include <string_view>

#include "moxie/plan.hpp"

namespace moxie {

inline constexpr std::string_view kPlanSchema = "moxie.plan/1";

}  // namespace moxie
