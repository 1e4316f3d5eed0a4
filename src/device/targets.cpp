// SPDX-License-Identifier: Apache-2.0
// Which GPU runs which target, as pure functions of its compute capability.
#include "moxie/device.hpp"
#include "moxie/status.hpp"

namespace moxie {

std::optional<Target> target_of_capability(unsigned major, unsigned minor) {
  if (major == 9 && minor == 0) return Target::sm90;
  if (major == 10) return Target::sm100;
  if (major == 12) return Target::sm120;
  return std::nullopt;
}

std::string device_refusal(Target target, const GpuReport& report) {
  if (target == Target::cpu) return {};
  if (!report.built) return "built without CUDA";
  if (report.gpus.empty()) return report.problem.empty() ? "no GPU" : report.problem;
  const GpuInfo& gpu = report.gpus.at(report.current);
  const std::string capability = std::to_string(gpu.major) + "." + std::to_string(gpu.minor);
  const std::optional<Target> runs = target_of_capability(gpu.major, gpu.minor);
  if (runs == target) return {};
  return gpu.name + " has compute capability " + capability + ", which " +
         (runs ? "is " + std::string(name_of(*runs)) : "no target of this build runs on") +
         "; the target is " + std::string(name_of(target));
}

void require_device(Target target) {
  if (target == Target::cpu) return;
  const std::string reason = device_refusal(target, list_gpus());
  if (reason.empty()) return;
  throw Error(ErrorCode::environment, {.code = "MOXIE-E004",
                                       .message = "the target's device is not here",
                                       .expected = std::string(name_of(target)),
                                       .got = reason,
                                       .hint = "see moxie devices, or use --target cpu"});
}

}  // namespace moxie
