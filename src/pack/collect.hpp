// SPDX-License-Identifier: Apache-2.0
// What the checks of packing throw, as findings.
#pragma once

#include <vector>

#include "moxie/status.hpp"

namespace moxie {

// The first finding of what `check` refuses of the input; anything else passes through.
template <class Check>
void collect(std::vector<Finding>& findings, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::input) throw;
    findings.push_back(error.findings().front());
  }
}

}  // namespace moxie
