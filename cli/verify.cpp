// SPDX-License-Identifier: Apache-2.0
// moxie verify: the byte proof.
#include "moxie/verify.hpp"

#include <fmt/format.h>

#include "cli/verbs.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

int run_verify(const VerifyArgs& args, const Console& console) {
  const OpenedModel opened = open_model(args.against);
  console.talk(opened.findings);
  const Stopwatch watch;
  const VerifyReport report = verify_packed(args.folder, opened.model, console.progress("verify"));
  const double seconds = watch.seconds();
  Json layers = Json::array();
  for (const int layer : report.layers) layers.push_back(layer);
  Json document;
  document.set("schema", "moxie.verify/1")
      .set("ok", report.passed)
      .set("plan_hash", report.plan_hash);
  document.set("ranks", report.ranks).set("layers", std::move(layers)).set("files", report.files);
  document.set("tensors", report.tensors)
      .set("real_bytes", report.real_bytes)
      .set("tail_bytes", report.tail_bytes);
  document.set("seconds", seconds).set("findings", to_json(report.findings));
  Table table({"byte proof", ""});
  table.add_row({"source tensors compared", format_count(report.tensors)});
  table.add_row({"real bytes equal to the source", format_count(report.real_bytes)});
  table.add_row({"tail bytes zero", format_count(report.tail_bytes)});
  table.add_row({"files checked", format_count(report.files)});
  table.add_row({"ranks joined", format_count(report.ranks)});
  table.add_row({"plan", report.plan_hash});
  console.print(document, table.to_text() + "verdict: " + console.verdict(report.passed) + "\n");
  console.talk(report.findings);
  return report.passed ? 0 : static_cast<int>(ErrorCode::verdict);
}

}  // namespace moxie::cli
