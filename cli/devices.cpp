// SPDX-License-Identifier: Apache-2.0
// moxie devices: what this machine and this binary can do.
#include <fmt/format.h>

#include "cli/verbs.hpp"
#include "moxie/catalog.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

// Why a kernel does not run here; empty when it does.
std::string obstacle(const KernelEntry& kernel) {
  if (!kernel.built) return "not built";
  if (kernel.target != Target::cpu) return "no device";
  return {};
}

}  // namespace

int run_devices(const Console& console) {
  const HostCpu cpu = host_cpu();
  Json features = Json::array();
  std::string feature_text;
  for (const std::string& feature : cpu.features) {
    features.push_back(feature);
    feature_text += " " + feature;
  }
  Table table({"kernel", "target", "built", "runs here"});
  Json kernels = Json::array();
  for (const KernelEntry& kernel : kernel_catalog()) {
    const std::string why_not = obstacle(kernel);
    table.add_row({std::string(kernel.name), std::string(name_of(kernel.target)),
                   kernel.built ? "yes" : "no", why_not.empty() ? "yes" : "no: " + why_not});
    Json entry;
    entry.set("name", kernel.name)
        .set("target", name_of(kernel.target))
        .set("layout", name_of(kernel.layout));
    entry.set("built", kernel.built).set("runs_here", why_not.empty()).set("reason", why_not);
    kernels.push_back(std::move(entry));
  }
  Json document;
  document.set("schema", "moxie.devices/1").set("version", version());
  document.set(
      "cpu",
      Json::object().set("name", cpu.name).set("threads", cpu.threads).set("features", features));
  document.set("gpus", Json::array())
      .set("kernels", std::move(kernels))
      .set("findings", Json::array());
  console.print(document,
                fmt::format("cpu   {}, {} threads,{}\ngpus  none (built without CUDA)\n\n{}",
                            cpu.name, cpu.threads, feature_text, table.to_text()));
  return 0;
}

}  // namespace moxie::cli
