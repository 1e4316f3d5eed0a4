// SPDX-License-Identifier: Apache-2.0
// The one way to call the CUDA runtime.
#pragma once

#include <string_view>

namespace moxie::device {

// Throws Error(environment): MOXIE-E003 for lack of memory, MOXIE-E005 otherwise, with the call,
// its code and the runtime's text.
[[noreturn]] void raise_cuda(std::string_view call, int code);

}  // namespace moxie::device

#define MOXIE_CUDA(call)                                                  \
  do {                                                                    \
    if (const cudaError_t moxie_code = (call); moxie_code != cudaSuccess) \
      ::moxie::device::raise_cuda(#call, static_cast<int>(moxie_code));   \
  } while (false)
