// SPDX-License-Identifier: Apache-2.0
// A certificate enters a plan here and nowhere else.
#include "cli/certificates.hpp"

#include <fmt/format.h>

#include <utility>

#include "moxie/report.hpp"

namespace moxie::cli {

std::optional<Certificate> apply_certificate(OpenedModel& opened,
                                             const std::optional<std::filesystem::path>& file) {
  if (!file) return std::nullopt;
  Certificate certificate = read_certificate(*file);
  require_certificate_of(certificate, opened.model);
  if (opened.model.format != BlockFormat::nvfp4) return certificate;
  Finding note{.code = "MOXIE-P014", .severity = Severity::note};
  if (const std::string refusal = recast_refusal(certificate, opened.model); refusal.empty()) {
    opened.model = recast_model(std::move(opened.model));
    note.message =
        "the NVFP4 experts are exact casts of MXFP4: they are taken as MXFP4 with globals";
  } else {
    note.message = "the experts stay NVFP4: " + refusal;
  }
  opened.findings.push_back(std::move(note));
  return certificate;
}

std::string certificate_text(const Certificate& certificate) {
  std::vector<std::string> head = {"layer", "format", "groups"};
  for (std::size_t window = 0; window < kExactWindows; ++window)
    head.emplace_back(name_of(static_cast<ExactWindow>(window)));
  head.emplace_back("MXFP4 cast");
  Table table(head);
  for (const LayerCertificate& layer : certificate.layers) {
    std::vector<std::string> row = {fmt::to_string(layer.layer), std::string(name_of(layer.format)),
                                    format_count(layer.groups)};
    for (std::size_t window = 0; window < kExactWindows; ++window) {
      const auto granule = layer.granule_for(static_cast<ExactWindow>(window));
      const std::uint64_t outside = layer.outside[static_cast<std::size_t>(Granule::row)][window];
      row.push_back(granule                    ? std::string(name_of(*granule))
                    : layer.groups == 0        ? "-"
                    : !layer.not_casts.empty() ? "no cast"
                                               : fmt::format("{} outside", format_count(outside)));
    }
    row.push_back(layer.format == BlockFormat::mxfp4 ? "-"
                  : layer.is_cast()
                      ? "all"
                      : fmt::format("all but {}", format_count(layer.not_casts.size())));
    table.add_row(std::move(row));
  }
  return table.to_text() +
         "Coarsest part of a matrix under whose one factor every scale group is exact: expert, "
         "block (128 x 128), row.\n";
}

}  // namespace moxie::cli
