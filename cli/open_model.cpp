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

void require_no_packed_set(const std::filesystem::path& path, const std::string& hint) {
  if (!is_packed_folder(path)) return;
  throw Error(ErrorCode::usage,
              {.code = "MOXIE-U001",
               .message = "a checkpoint is meant, and this is a packed set, which has its plan",
               .where = {.file = path.string()},
               .hint = hint});
}

}  // namespace moxie::cli
