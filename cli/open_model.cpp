// SPDX-License-Identifier: Apache-2.0
// Opening a MODEL argument.
#include "cli/verbs.hpp"

namespace moxie::cli {

OpenedModel open_model(const std::filesystem::path& path) {
  const Checkpoint checkpoint = open_checkpoint(path);
  OpenedModel opened{.model = read_model(checkpoint), .findings = {}};
  opened.findings.assign(checkpoint.findings().begin(), checkpoint.findings().end());
  opened.findings.insert(opened.findings.end(), opened.model.findings.begin(),
                         opened.model.findings.end());
  return opened;
}

}  // namespace moxie::cli
