// SPDX-License-Identifier: Apache-2.0
// moxie verify: the byte proof.
#include "moxie/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "cli/verbs.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

// Of a set that the byte proof has refused as far as it can be computed with: its findings stand.
std::vector<PaddingCheck> check_numbers(const VerifyArgs& args, const MoeModel& model,
                                        const VerifyReport& report, const Console& console) {
  std::vector<int> layers = args.layers;
  if (layers.empty() && !report.layers.empty()) layers.push_back(report.layers.front());
  std::vector<PaddingCheck> checks;
  try {
    for (const int layer : layers)
      checks.push_back(check_padding(
          args.folder, model,
          {.layer = layer,
           .progress = console.progress(fmt::format("numeric, layer {}", layer), "step")}));
  } catch (const Error& error) {
    if (report.passed || error.code() != ErrorCode::unsupported) throw;
  }
  return checks;
}

Json numeric_json(std::span<const PaddingCheck> checks) {
  Json list = Json::array();
  for (const PaddingCheck& check : checks) {
    Json entry;
    entry.set("layer", check.layer).set("ok", check.passed).set("tokens", check.tokens);
    entry.set("virtual_heads", check.virtual_heads).set("virtual_groups", check.virtual_groups);
    entry.set("virtual_columns", check.virtual_columns)
        .set("virtual_rows", check.virtual_rows ? Json(*check.virtual_rows) : Json());
    entry.set("zero_products", check.zero_products)
        .set("max_err_over_bound", check.max_err_over_bound);
    list.push_back(std::move(entry));
  }
  return list;
}

std::string numeric_text(std::span<const PaddingCheck> checks) {
  Table table({"layer", "virtual heads", "groups", "columns", "rows", "products exactly 0",
               "sum over ranks, error/bound"});
  for (const PaddingCheck& check : checks) {
    table.add_row({fmt::to_string(check.layer), format_count(check.virtual_heads),
                   format_count(check.virtual_groups), format_count(check.virtual_columns),
                   check.virtual_rows ? format_count(*check.virtual_rows) : "not checked",
                   format_count(check.zero_products),
                   fmt::format("{:.3f}", check.max_err_over_bound)});
  }
  return table.to_text();
}

}  // namespace

int run_verify(const VerifyArgs& args, const Console& console) {
  require_no_packed_set(args.against, "--against takes the checkpoint that was packed");
  const OpenedModel opened = open_model(args.against);
  console.talk(opened.findings);
  const Stopwatch watch;
  std::vector<PaddingCheck> numeric;
  double seconds = 0;
  // A proof says that everything passed that was asked for.
  const auto further = [&](const VerifyReport& bytes) {
    seconds = watch.seconds();
    if (args.numeric) numeric = check_numbers(args, opened.model, bytes, console);
    return std::ranges::all_of(numeric, &PaddingCheck::passed);
  };
  VerifyReport report =
      verify_packed(args.folder, opened.model, console.progress("verify"), further);
  const bool passed = report.passed && std::ranges::all_of(numeric, &PaddingCheck::passed);
  for (const PaddingCheck& check : numeric)
    report.findings.insert(report.findings.end(), check.findings.begin(), check.findings.end());
  Json layers = Json::array();
  for (const int layer : report.layers) layers.push_back(layer);
  Json document;
  document.set("schema", "moxie.verify/1").set("ok", passed).set("plan_hash", report.plan_hash);
  document.set("ranks", report.ranks).set("layers", std::move(layers)).set("files", report.files);
  document.set("tensors", report.tensors)
      .set("real_bytes", report.real_bytes)
      .set("tail_bytes", report.tail_bytes);
  if (args.numeric) document.set("numeric", numeric_json(numeric));
  document.set("seconds", seconds).set("findings", to_json(report.findings));
  Table table({"byte proof", ""});
  table.add_row({"source tensors compared", format_count(report.tensors)});
  table.add_row({"real bytes equal to the source", format_count(report.real_bytes)});
  table.add_row({"tail bytes zero", format_count(report.tail_bytes)});
  table.add_row({"files checked", format_count(report.files)});
  table.add_row({"ranks joined", format_count(report.ranks)});
  table.add_row({"plan", report.plan_hash});
  std::string text = table.to_text();
  if (!numeric.empty()) text += "\n" + numeric_text(numeric);
  console.print(document, text + "verdict: " + console.verdict(passed) + "\n");
  console.talk(report.findings);
  return passed ? 0 : static_cast<int>(ErrorCode::verdict);
}

}  // namespace moxie::cli
