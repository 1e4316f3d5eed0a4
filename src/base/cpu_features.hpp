// SPDX-License-Identifier: Apache-2.0
// Which instruction sets this processor and operating system offer.
#pragma once

#include <string>
#include <vector>

namespace moxie {

// The processor's own name, e.g. "AMD EPYC"; "unknown" where it can not be read.
std::string cpu_name();

// Usable instruction sets that kernels may ask for, in a fixed order, e.g. {"avx2", "avx512f",
// "avx512_vnni"}.
std::vector<std::string> cpu_features();

}  // namespace moxie
