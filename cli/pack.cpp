// SPDX-License-Identifier: Apache-2.0
// moxie pack: carries a plan out into a folder.
#include <fmt/format.h>

#include <algorithm>

#include "cli/certificates.hpp"
#include "cli/placements.hpp"
#include "cli/verbs.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

int run_pack(const PackArgs& args, const Console& console) {
  OpenedModel opened = open_model(args.model);
  apply_certificate(opened, args.certificate);
  PlanOptions plan_options = args.options;
  plan_options.placement = read_placement(args.placement);
  const ShardPlan plan = make_plan(opened.model, plan_options);
  opened.findings.insert(opened.findings.end(), plan.findings.begin(), plan.findings.end());
  const bool has_mtp = std::ranges::any_of(opened.model.layers, &LayerExperts::mtp);
  if (args.layers.empty() && has_mtp) {
    opened.findings.push_back(
        {.code = "MOXIE-K007",
         .severity = Severity::note,
         .message = "multi-token-prediction blocks are packed only when --layers names them"});
  }
  console.talk(opened.findings);
  PackOptions options{.out = args.out,
                      .ranks = {},
                      .layers = args.layers,
                      .layout = args.layout,
                      .memory_bytes = args.memory_bytes,
                      .progress = console.progress("pack")};
  if (args.rank) options.ranks.push_back(*args.rank);
  const Stopwatch watch;
  const PackReport report = pack_to_folder(opened.model, plan, options);
  const double seconds = watch.seconds();
  Json ranks = Json::array();
  for (const unsigned rank : report.ranks) ranks.push_back(rank);
  Json layers = Json::array();
  for (const int layer : report.layers) layers.push_back(layer);
  Json document;
  document.set("schema", "moxie.pack/1").set("ok", true).set("out", args.out.string());
  document.set("plan_hash", report.plan_hash).set("layout", name_of(args.layout));
  document.set("ranks", std::move(ranks)).set("layers", std::move(layers));
  document.set("files", report.files).set("bytes", report.bytes).set("seconds", seconds);
  document.set("findings", to_json(opened.findings));
  console.print(document, fmt::format("{}: {} ranks, {} layers, {} in {} files, plan {}\n",
                                      args.out.string(), report.ranks.size(), report.layers.size(),
                                      format_bytes(report.bytes), report.files, report.plan_hash));
  return 0;
}

}  // namespace moxie::cli
