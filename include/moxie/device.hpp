// SPDX-License-Identifier: Apache-2.0
// The GPUs of this machine, and which target each of them is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moxie/api.hpp"
#include "moxie/types.hpp"

namespace moxie {

struct GpuInfo {
  std::string name;
  unsigned major = 0;  // compute capability
  unsigned minor = 0;
  std::uint64_t memory_bytes = 0;
  unsigned multiprocessors = 0;
};

struct GpuReport {
  bool built = false;           // this binary holds CUDA code
  std::string driver{};         // newest CUDA version of the driver, "13.0"; empty: no driver
  std::string runtime{};        // CUDA version that this binary was built with
  std::vector<GpuInfo> gpus{};  // in the runtime's order
  std::size_t current = 0;      // the one that this thread uses
  std::string problem{};        // why there are none; empty when there is one
};
// Never fails; what fails is in `problem`.
MOXIE_API GpuReport list_gpus();

// Memory of the current GPU, of all processes.
struct GpuMemory {
  std::uint64_t free_bytes = 0;
  std::uint64_t bytes = 0;
};
// Errors: Error(unsupported) MOXIE-E004 without CUDA, Error(environment) MOXIE-E005.
MOXIE_API GpuMemory gpu_memory();

// The target whose kernels a compute capability runs: 9.0 is sm90, 10.x sm100, 12.x sm120. No value
// for all others: kernels of one family do not run on another, whatever the order of the numbers.
MOXIE_API std::optional<Target> target_of_capability(unsigned major, unsigned minor);

// Why the current GPU does not run what is planned for `target`; empty when it does.
MOXIE_API std::string device_refusal(Target target, const GpuReport& report);

// Errors: Error(environment) MOXIE-E004 when device_refusal() has a reason, for targets other than
// cpu.
MOXIE_API void require_device(Target target);

}  // namespace moxie
