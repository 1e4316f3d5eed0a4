// SPDX-License-Identifier: Apache-2.0
// What this process has resident, and what packing adds to it at its peak.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "moxie/pack.hpp"

namespace moxie::test {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
// Beside the buffers: stacks of two threads, file headers, the allocator's own.
inline constexpr std::uint64_t kBesideBuffers = 4 * kMiB;

// A line of /proc/self/status in bytes.
inline std::uint64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    std::uint64_t kib = 0;
    if (word == key && file >> kib) return kib * 1024;
  }
  return 0;
}

// Starts the peak over from what is resident now; false when the kernel does not allow it.
inline bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good() && status_bytes("VmHWM:") < status_bytes("VmRSS:") + kMiB;
}

inline std::uint64_t peak_of_packing(const MoeModel& model, const ShardPlan& plan,
                                     const PackOptions& options) {
  for (std::uint32_t file = 0; file < model.checkpoint.files().size(); ++file)
    model.checkpoint.release(file);
  reset_peak();
  const std::uint64_t before = status_bytes("VmRSS:");
  pack_to_folder(model, plan, options);
  return status_bytes("VmHWM:") - before;
}

}  // namespace moxie::test
