// SPDX-License-Identifier: Apache-2.0
// Rows that are dispatched already, as choices.
#pragma once

#include "kernels/contract.hpp"

namespace moxie::cpu::portable {

extern const RowsKernel kRows;

}  // namespace moxie::cpu::portable
