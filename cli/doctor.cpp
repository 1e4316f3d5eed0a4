// SPDX-License-Identifier: Apache-2.0
// moxie doctor: what is wrong with a checkpoint or a packed set, and what its scales allow.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/certificates.hpp"
#include "cli/output_place.hpp"
#include "cli/verbs.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

// What was looked at and found.
struct Examination {
  std::uint64_t layers = 0;
  std::vector<Finding> findings;
  std::optional<Certificate> certificate;
};

// What input is refused for is what a doctor is asked about.
template <class Look>
void collect(std::vector<Finding>& findings, const Look& look) {
  try {
    look();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::input) throw;
    findings.insert(findings.end(), error.findings().begin(), error.findings().end());
  }
}

bool is_chosen(const DoctorArgs& args, int layer) {
  return args.layers.empty() || std::ranges::find(args.layers, layer) != args.layers.end();
}

void examine_checkpoint(const DoctorArgs& args, const Console& console, Examination& result) {
  const OpenedModel opened = open_model(args.model);
  if (args.certificate) {
    require_outside(*args.certificate, "--certificate", args.model, &opened.model.checkpoint);
  }
  std::vector<Finding>& findings = result.findings;
  findings = opened.findings;
  for (const LayerExperts& layer : opened.model.layers) {
    if (!is_chosen(args, layer.layer)) continue;
    ++result.layers;
    for (const Finding& problem : layer.problems) {
      // Opening names an absent shard once, as a warning: partial downloads are normal.
      if (problem.code != "MOXIE-C010") findings.push_back(problem);
    }
    if (!args.deep || !layer.problems.empty()) continue;
    const auto bad =
        check_stored_values(opened.model, layer.layer,
                            console.progress(fmt::format("layer {}", layer.layer), "experts"));
    findings.insert(findings.end(), bad.begin(), bad.end());
  }
  const auto append = [&](std::vector<Finding> more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  append(check_whole_model(opened.model, args.layers));
  if (args.deep && args.layers.empty()) append(check_stored_top(opened.model));
  for (const int layer : args.layers) {
    const auto held = std::ranges::find(opened.model.layers, layer, &LayerExperts::layer);
    if (held == opened.model.layers.end())
      collect(findings, [&] { (void)opened.model.require_layer(layer); });
  }
  if (args.certificate) {
    collect(findings, [&] {
      result.certificate =
          certify(opened.model,
                  {.layers = args.layers, .progress = console.progress("certificate", "experts")});
    });
  }
}

void examine_packed(const DoctorArgs& args, Examination& result) {
  if (args.certificate) {
    throw Error(ErrorCode::usage, {.code = "MOXIE-U001",
                                   .message = "a certificate is written of a checkpoint",
                                   .where = {.file = args.model.string()},
                                   .got = "a packed set"});
  }
  const PackedFolder folder = open_packed_folder(args.model);
  result.findings = folder.findings;
  for (const int layer : folder.layers) {
    if (!is_chosen(args, layer)) continue;
    ++result.layers;
    if (!args.deep) continue;
    for (const unsigned rank : folder.ranks)
      collect(result.findings, [&] { (void)load_packed(folder, rank, layer); });
  }
  collect(result.findings, [&] {
    const auto lost = check_packed_tensors(folder, args.deep, args.layers);
    result.findings.insert(result.findings.end(), lost.begin(), lost.end());
  });
  if (!args.deep || !args.layers.empty()) return;
  for (const unsigned rank : folder.ranks)
    collect(result.findings, [&] { check_packed_top(folder, rank); });
}

}  // namespace

int run_doctor(const DoctorArgs& args, const Console& console) {
  if (args.certificate) require_output_place(*args.certificate, "--certificate");
  const bool is_packed = is_packed_folder(args.model);
  Examination result;
  collect(result.findings, [&] {
    if (is_packed)
      examine_packed(args, result);
    else
      examine_checkpoint(args, console, result);
  });
  const bool healthy = std::ranges::none_of(
      result.findings, [](const Finding& finding) { return finding.severity == Severity::error; });
  // A certificate of experts that can not be read is none.
  const bool certified = result.certificate && healthy;
  if (certified) write_certificate(*args.certificate, *result.certificate);
  Json document;
  document.set("schema", "moxie.doctor/1").set("ok", healthy).set("path", args.model.string());
  document.set("layers", result.layers).set("deep", args.deep);
  document.set("certificate", certified ? Json(args.certificate->string()) : Json());
  document.set("findings", to_json(result.findings));
  std::string text = fmt::format("{}: {} layers examined, {}\n", args.model.string(), result.layers,
                                 args.deep ? "headers and values" : "headers only");
  if (certified) text += "\n" + certificate_text(*result.certificate);
  console.print(document, text + "verdict: " + console.verdict(healthy) + "\n");
  console.talk(result.findings);
  return healthy ? 0 : static_cast<int>(ErrorCode::verdict);
}

}  // namespace moxie::cli
