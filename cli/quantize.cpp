// SPDX-License-Identifier: Apache-2.0
// moxie quantize: a checkpoint with its experts in another format or dialect.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "cli/figures.hpp"
#include "cli/verbs.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

constexpr std::size_t kListed = 10;  // worst tensors shown without -v

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string snr_text(const QuantStats& stats) {
  const double snr = stats.snr_db();
  if (std::isnan(snr)) return "all zero";
  return std::isinf(snr) ? "exact" : fmt::format("{:.2f}", snr);
}

// "SNR" is null where nothing was lost or all is zero: `exact` tells which.
Json stats_json(const QuantStats& stats, const std::optional<std::uint64_t>& changed) {
  Json json;
  json.set("elems", stats.elems).set("snr_db", number_or_null(stats.snr_db()));
  json.set("exact", stats.noise == 0).set("max_error", number_or_null(stats.max_error));
  json.set("clipped", stats.clipped_elems).set("flushed", stats.flushed_elems);
  json.set("blocks", stats.blocks).set("zero_blocks", stats.zero_blocks);
  json.set("saturated_blocks", stats.saturated_blocks);
  json.set("underflowed_blocks", stats.underflowed_blocks);
  json.set("raised_globals", stats.raised_globals);
  json.set("changed", changed ? Json(*changed) : Json());
  json.set("changed_share", changed ? Json(share(*changed, stats.elems)) : Json());
  return json;
}

Json document_of(const QuantizeArgs& args, const QuantizeReport& report, double seconds) {
  Json document;
  document.set("schema", "moxie.quantize/1").set("ok", true).set("out", args.out.string());
  document.set("source", report.source).set("format", name_of(report.format));
  document.set("dialect", report.dialect ? Json(name_of(*report.dialect)) : Json());
  document.set("recipe", report.recipe.empty() ? Json() : Json(report.recipe));
  document.set("input_scales", report.input_scales).set("projections", report.projections);
  document.set("tensors", report.tensors).set("copied_tensors", report.copied_tensors);
  document.set("files", report.files).set("bytes", report.bytes);
  document.set("expert_bytes", report.expert_bytes).set("seconds", seconds);
  document.set("total", stats_json(report.total, report.changed_elems));
  Json tensors = Json::array();
  for (const QuantizedTensor& tensor : report.worst_first) {
    Json entry;
    entry.set("layer", tensor.layer)
        .set("expert", tensor.expert)
        .set("projection", name_of(tensor.projection));
    const Json stats = stats_json(tensor.stats, tensor.changed_elems);
    for (const JsonMember& member : stats.members()) entry.set(member.key, member.value);
    tensors.push_back(std::move(entry));
  }
  document.set("worst_first", std::move(tensors)).set("findings", to_json(report.findings));
  return document;
}

std::vector<std::string> row_of(std::string name, const QuantStats& stats,
                                const std::optional<std::uint64_t>& changed) {
  std::vector<std::string> row = {std::move(name),
                                  snr_text(stats),
                                  fmt::format("{:.3g}", stats.max_error),
                                  format_count(stats.clipped_elems),
                                  format_count(stats.flushed_elems),
                                  format_count(stats.underflowed_blocks)};
  if (changed) row.push_back(fmt::format("{:.4f}", 100 * share(*changed, stats.elems)));
  return row;
}

std::string text_of(const QuantizeArgs& args, const QuantizeReport& report, bool all) {
  std::string text = fmt::format(
      "{}: {} of {} projections, {} to {}{}{}, {} in {}\n\n", args.out.string(), report.projections,
      report.projections, report.source, name_of(report.format),
      report.dialect ? fmt::format(" ({} dialect", name_of(*report.dialect)) : "",
      report.dialect ? (report.recipe.empty() ? ")" : ", recipe " + report.recipe + ")") : "",
      format_bytes(report.bytes), format_count(report.files, "file"));
  std::vector<std::string> head = {"projection", "SNR dB",  "max error",
                                   "clipped",    "flushed", "underflowed blocks"};
  if (report.changed_elems) head.emplace_back("changed %");
  Table table(std::move(head));
  table.add_row(row_of("all", report.total, report.changed_elems));
  const std::size_t listed =
      all ? report.worst_first.size() : std::min(kListed, report.worst_first.size());
  for (std::size_t i = 0; i < listed; ++i) {
    const QuantizedTensor& tensor = report.worst_first[i];
    table.add_row(row_of(fmt::format("layer {} expert {} {}", tensor.layer, tensor.expert,
                                     name_of(tensor.projection)),
                         tensor.stats, tensor.changed_elems));
  }
  text += table.to_text();
  if (listed < report.worst_first.size())
    text += fmt::format("{} more, less bad; -v lists all\n", report.worst_first.size() - listed);
  return text;
}

}  // namespace

int run_quantize(const QuantizeArgs& args, const Console& console) {
  require_no_packed_set(args.model, "quantise its source");
  const Checkpoint checkpoint = open_checkpoint(args.model);
  QuantizeOptions options = args.options;
  options.progress = console.progress("quantize");
  const Stopwatch watch;
  const QuantizeReport report = quantize_checkpoint(checkpoint, args.out, options);
  const double seconds = watch.seconds();
  console.print(document_of(args, report, seconds), text_of(args, report, console.verbose()));
  console.talk(report.findings);
  return 0;
}

}  // namespace moxie::cli
