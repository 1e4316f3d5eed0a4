// SPDX-License-Identifier: Apache-2.0
// What the system counts for this process.
#include <fstream>
#include <string>

#include "moxie/measure.hpp"

namespace moxie {

HostMemory host_memory() {
  HostMemory memory;
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    std::uint64_t kib = 0;
    if (word == "VmHWM:" && file >> kib) memory.peak_bytes = kib * 1024;
    if (word == "VmRSS:" && file >> kib) memory.resident_bytes = kib * 1024;
  }
  std::ifstream machine("/proc/meminfo");
  for (std::string word; machine >> word;) {
    std::uint64_t kib = 0;
    if (word == "MemAvailable:" && machine >> kib) memory.available_bytes = kib * 1024;
  }
  return memory;
}

bool restart_host_peak() {
  constexpr std::uint64_t kNoise = std::uint64_t{4} << 20;
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  const HostMemory memory = host_memory();
  return file.good() && memory.peak_bytes < memory.resident_bytes + kNoise;
}

}  // namespace moxie
