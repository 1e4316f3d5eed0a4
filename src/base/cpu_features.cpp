// SPDX-License-Identifier: Apache-2.0
// Feature bits through the compiler's run-time support, which also checks that the operating system
// saves the registers.
#include "base/cpu_features.hpp"

#include <fstream>
#include <string_view>

namespace moxie {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const auto colon = line.find(':');
    if (colon == std::string::npos || colon + 2 > line.size()) break;
    return line.substr(colon + 2);
  }
  return "unknown";
}

std::vector<std::string> cpu_features() {
  std::vector<std::string> features;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const auto add = [&](std::string_view name, bool present) {
    if (present) features.emplace_back(name);
  };
  add("avx2", __builtin_cpu_supports("avx2") != 0);
  add("fma", __builtin_cpu_supports("fma") != 0);
  add("f16c", __builtin_cpu_supports("f16c") != 0);
  add("avx512f", __builtin_cpu_supports("avx512f") != 0);
  add("avx512bw", __builtin_cpu_supports("avx512bw") != 0);
  add("avx512vl", __builtin_cpu_supports("avx512vl") != 0);
  add("avx512_vbmi", __builtin_cpu_supports("avx512vbmi") != 0);
  add("avx512_vnni", __builtin_cpu_supports("avx512vnni") != 0);
  add("avx512_bf16", __builtin_cpu_supports("avx512bf16") != 0);
#endif
  return features;
}

}  // namespace moxie
