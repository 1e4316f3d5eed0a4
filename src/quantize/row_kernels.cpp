// SPDX-License-Identifier: Apache-2.0
// Chooses the kernels once per process, by what the processor offers.
#include "quantize/row_kernels.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/cpu_features.hpp"

namespace moxie {

const std::vector<const RowKernels*>& usable_row_kernels() {
  static const std::vector<const RowKernels*> kUsable = [] {
    std::vector<const RowKernels*> usable;
#if defined(__x86_64__)
    const std::vector<std::string> features = cpu_features();
    const auto has = [&](std::initializer_list<std::string_view> names) {
      return std::ranges::all_of(names, [&](std::string_view name) {
        return std::ranges::find(features, name) != features.end();
      });
    };
    if (has({"avx2", "avx512f", "avx512bw", "avx512vl"})) usable.push_back(&kAvx512RowKernels);
    if (has({"avx2"})) usable.push_back(&kAvx2RowKernels);
#endif
    usable.push_back(&kPortableRowKernels);
    return usable;
  }();
  return kUsable;
}

}  // namespace moxie
