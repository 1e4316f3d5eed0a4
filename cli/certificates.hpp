// SPDX-License-Identifier: Apache-2.0
// Certificates as the verbs use them: read, held against the model, acted upon and shown.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "cli/verbs.hpp"
#include "moxie/certificate.hpp"

namespace moxie::cli {

// Reads the file and holds it against the model. Where all NVFP4 experts are casts of MXFP4, the
// model is read as MXFP4 with globals from then on; a note says so, or why not. nullopt without a
// file.
std::optional<Certificate> apply_certificate(OpenedModel& opened,
                                             const std::optional<std::filesystem::path>& file);

// What the layers allow, as a table.
std::string certificate_text(const Certificate& certificate);

}  // namespace moxie::cli
