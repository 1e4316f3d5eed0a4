// SPDX-License-Identifier: Apache-2.0
// moxie devices: what this machine and this binary can do.
#include <fmt/format.h>

#include "cli/verbs.hpp"
#include "moxie/catalog.hpp"
#include "moxie/device.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

// Why a kernel does not run here; empty when it does.
std::string obstacle(const KernelEntry& kernel, const GpuReport& gpus) {
  if (!kernel.built) return "not built";
  std::string first;
  for (const Target target : targets_of(kernel)) {
    const std::string reason = device_refusal(target, gpus);
    if (reason.empty()) return {};
    if (first.empty()) first = reason;
  }
  return first;
}

Json gpu_json(const GpuInfo& gpu) {
  Json json;
  json.set("name", gpu.name).set("capability", fmt::format("{}.{}", gpu.major, gpu.minor));
  const auto target = target_of_capability(gpu.major, gpu.minor);
  json.set("target", target ? Json(name_of(*target)) : Json());
  return json.set("memory_bytes", gpu.memory_bytes).set("multiprocessors", gpu.multiprocessors);
}

std::string gpus_text(const GpuReport& report) {
  if (report.gpus.empty()) return fmt::format("gpus  none ({})\n", report.problem);
  std::string text;
  for (const GpuInfo& gpu : report.gpus) {
    text += fmt::format("gpu   {}, compute capability {}.{}, {}, {} multiprocessors\n", gpu.name,
                        gpu.major, gpu.minor, format_bytes(gpu.memory_bytes), gpu.multiprocessors);
  }
  return text + fmt::format("cuda  driver {}, runtime {}\n", report.driver, report.runtime);
}

}  // namespace

int run_devices(const Console& console) {
  const HostCpu cpu = host_cpu();
  const GpuReport report = list_gpus();
  Json features = Json::array();
  std::string feature_text;
  for (const std::string& feature : cpu.features) {
    features.push_back(feature);
    feature_text += " " + feature;
  }
  Table table({"kernel", "target", "built", "runs here"});
  Json kernels = Json::array();
  for (const KernelEntry& kernel : kernel_catalog()) {
    const std::string why_not = obstacle(kernel, report);
    Json targets = Json::array();
    std::string target_text;
    for (const Target target : targets_of(kernel)) {
      targets.push_back(name_of(target));
      target_text += (target_text.empty() ? "" : ", ") + std::string(name_of(target));
    }
    table.add_row({std::string(kernel.name), target_text, kernel.built ? "yes" : "no",
                   why_not.empty() ? "yes" : "no: " + why_not});
    Json entry;
    entry.set("name", kernel.name)
        .set("target", name_of(kernel.target))
        .set("targets", std::move(targets))
        .set("layout", name_of(kernel.layout));
    entry.set("built", kernel.built).set("runs_here", why_not.empty()).set("reason", why_not);
    kernels.push_back(std::move(entry));
  }
  Json gpus = Json::array();
  for (const GpuInfo& gpu : report.gpus) gpus.push_back(gpu_json(gpu));
  Json document;
  document.set("schema", "moxie.devices/1").set("version", version());
  document.set(
      "cpu",
      Json::object().set("name", cpu.name).set("threads", cpu.threads).set("features", features));
  document.set("cuda", Json::object()
                           .set("built", report.built)
                           .set("driver", report.driver)
                           .set("runtime", report.runtime)
                           .set("problem", report.problem));
  document.set("gpus", std::move(gpus))
      .set("kernels", std::move(kernels))
      .set("findings", Json::array());
  console.print(document, fmt::format("cpu   {}, {} threads,{}\n{}\n{}", cpu.name, cpu.threads,
                                      feature_text, gpus_text(report), table.to_text()));
  return 0;
}

}  // namespace moxie::cli
