// SPDX-License-Identifier: Apache-2.0
// moxie pack: carries a plan out into a folder.
#include <fmt/format.h>

#include <optional>
#include <vector>

#include "cli/certificates.hpp"
#include "cli/placements.hpp"
#include "cli/verbs.hpp"
#include "moxie/measure.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

// The rate of reading alone; both that and packing begin with nothing in the page cache.
FileRead read_cold(const MoeModel& model, const std::vector<std::filesystem::path>& files) {
  const auto forget = [&] {
    for (std::uint32_t file = 0; file < model.checkpoint.files().size(); ++file)
      model.checkpoint.release(file);
    drop_page_cache(files);
  };
  forget();
  const FileRead read = read_files(files);
  forget();
  return read;
}

}  // namespace

int run_pack(const PackArgs& args, const Console& console) {
  require_no_packed_set(args.model, "pack its source");
  OpenedModel opened = open_model(args.model);
  apply_certificate(opened, args.certificate);
  PlanOptions plan_options = args.options;
  plan_options.placement = read_placement(args.placement);
  const ShardPlan plan = make_plan(opened.model, plan_options);
  opened.findings.insert(opened.findings.end(), plan.findings.begin(), plan.findings.end());
  console.talk(opened.findings);
  PackOptions options{.out = args.out,
                      .ranks = {},
                      .layers = args.layers,
                      .drafts = args.drafts,
                      .layout = args.layout,
                      .memory_bytes = args.memory_bytes,
                      .progress = console.progress("pack")};
  if (args.rank) options.ranks.push_back(*args.rank);
  std::optional<FileRead> read;
  if (args.measure_read) read = read_cold(opened.model, files_to_pack(opened.model, plan, options));
  const Stopwatch watch;
  const PackReport report = pack_to_folder(opened.model, plan, options);
  const double seconds = watch.seconds();
  console.talk(report.findings);
  opened.findings.insert(opened.findings.end(), report.findings.begin(), report.findings.end());
  const double rate = static_cast<double>(report.source_bytes) / seconds;
  Json ranks = Json::array();
  for (const unsigned rank : report.ranks) ranks.push_back(rank);
  Json layers = Json::array();
  for (const int layer : report.layers) layers.push_back(layer);
  Json document;
  document.set("schema", "moxie.pack/1").set("ok", true).set("out", args.out.string());
  document.set("plan_hash", report.plan_hash).set("layout", name_of(args.layout));
  document.set("ranks", std::move(ranks)).set("layers", std::move(layers));
  document.set("files", report.files).set("bytes", report.bytes).set("seconds", seconds);
  document.set("source_bytes", report.source_bytes).set("pack_bytes_per_s", rate);
  if (read) {
    document.set("read_bytes_per_s", read->bytes_per_s())
        .set("read_ratio", rate / read->bytes_per_s());
  }
  document.set("findings", to_json(opened.findings));
  std::string text = fmt::format(
      "{}: {}, {}, {} in {}, plan {}\n", args.out.string(),
      format_count(report.ranks.size(), "rank"), format_count(report.layers.size(), "layer"),
      format_bytes(report.bytes), format_count(report.files, "file"), report.plan_hash);
  text += fmt::format("source {} in {:.2f} s, {}/s", format_bytes(report.source_bytes), seconds,
                      format_bytes(static_cast<std::uint64_t>(rate)));
  if (read) {
    text += fmt::format(", {:.0f} % of reading alone at {}/s", 100 * rate / read->bytes_per_s(),
                        format_bytes(static_cast<std::uint64_t>(read->bytes_per_s())));
  }
  console.print(document, text + "\n");
  return 0;
}

}  // namespace moxie::cli
