// SPDX-License-Identifier: Apache-2.0
// What was built, from what, and where it runs.
#include <sys/utsname.h>

#include <moxie_commit.hpp>
#include <string>

#include "base/cpu_features.hpp"
#include "base/parallel.hpp"
#include "moxie/measure.hpp"
#include "moxie/status.hpp"

namespace moxie {

Json build_json() {
  Json build;
  build.set("version", version()).set("commit", kCommit).set("dirty", kDirty);
  build.set("compiler", MOXIE_COMPILER).set("flags", MOXIE_FLAGS);
  build.set("cuda", nullptr).set("archs", Json::array());
  return build;
}

Json host_json() {
  Json isa = Json::array();
  for (const std::string& feature : cpu_features()) isa.push_back(feature);
  utsname system{};
  const bool known = ::uname(&system) == 0;
  Json host;
  host.set("cpu", cpu_name()).set("isa", std::move(isa)).set("cores", usable_threads());
  host.set("kernel", known ? std::string(system.sysname) + " " + system.release : "unknown");
  return host;
}

}  // namespace moxie
