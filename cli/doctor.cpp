// SPDX-License-Identifier: Apache-2.0
// moxie doctor: what is wrong with a checkpoint or a packed set, and what its scales allow.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "cli/certificates.hpp"
#include "cli/output_place.hpp"
#include "cli/verbs.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

// What was looked at and found.
struct Examination {
  std::set<int> due;     // layers to look at
  std::set<int> seen;    // that were looked at, and
  std::set<int> unseen;  // not in all their parts
  unsigned ranks = 0;    // of a packed set
  unsigned due_ranks = 0;
  std::vector<Finding> findings;
  std::optional<Certificate> certificate;

  [[nodiscard]] std::uint64_t layers() const {
    return static_cast<std::uint64_t>(
        std::ranges::count_if(seen, [&](int layer) { return !unseen.contains(layer); }));
  }
  [[nodiscard]] bool is_partial() const { return layers() < due.size() || ranks < due_ranks; }
  void append(const std::vector<Finding>& more) {
    findings.insert(findings.end(), more.begin(), more.end());
  }
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

bool speaks_of_absent_shard(const Finding& finding) { return finding.code == "MOXIE-C010"; }

// Layers that a doctor has to look at.
std::set<int> layers_due(const DoctorArgs& args, const MoeModel& model) {
  if (!args.layers.empty()) return {args.layers.begin(), args.layers.end()};
  std::set<int> due(model.config.moe_layers.begin(), model.config.moe_layers.end());
  for (const LayerExperts& layer : model.layers) due.insert(layer.layer);
  return due;
}

// For other verbs an absent shard is a warning, as partial downloads are normal. Here nobody has
// looked at what is in it.
void call_unseen(Finding& finding) {
  finding.severity = Severity::error;
  finding.message += ", which could not be examined";
  finding.hint = "download the shard";
}

// Opening has named every absent shard once.
void add_problems(const std::vector<Finding>& problems, Examination& result) {
  for (const Finding& problem : problems) {
    if (!speaks_of_absent_shard(problem)) {
      result.findings.push_back(problem);
      continue;
    }
    if (problem.where.layer) result.unseen.insert(*problem.where.layer);
    const auto named = std::ranges::find_if(result.findings, [&](const Finding& finding) {
      return speaks_of_absent_shard(finding) && finding.where.file == problem.where.file;
    });
    if (named != result.findings.end() && named->severity == Severity::error) continue;
    Finding& finding = named != result.findings.end() ? *named : result.findings.emplace_back();
    finding = problem;
    call_unseen(finding);
  }
}

void examine_experts(const DoctorArgs& args, const Console& console, const MoeModel& model,
                     Examination& result) {
  for (const LayerExperts& layer : model.layers) {
    if (!result.due.contains(layer.layer)) continue;
    result.seen.insert(layer.layer);
    add_problems(layer.problems, result);
    if (!args.deep || !layer.problems.empty()) continue;
    result.append(check_stored_values(
        model, layer.layer, console.progress(fmt::format("layer {}", layer.layer), "expert")));
  }
  for (const DenseExperts& layer : model.dense) {
    if (!result.due.contains(layer.layer)) continue;
    add_problems(layer.problems, result);
    if (!args.deep) result.seen.insert(layer.layer);  // no values of these
  }
}

void examine_checkpoint(const DoctorArgs& args, const Console& console, Examination& result) {
  const OpenedModel opened = open_model(args.model);
  const MoeModel& model = opened.model;
  if (args.certificate)
    require_outside(*args.certificate, "--certificate", args.model, &model.checkpoint);
  result.findings = opened.findings;
  for (Finding& finding : result.findings) {
    if (speaks_of_absent_shard(finding) && args.layers.empty()) call_unseen(finding);
  }
  result.due = layers_due(args, model);
  examine_experts(args, console, model, result);
  add_problems(check_whole_model(model, args.layers), result);
  if (args.deep && args.layers.empty()) result.append(check_stored_top(model));
  for (const int layer : args.layers) {
    if (!result.seen.contains(layer))
      collect(result.findings, [&] { (void)model.require_layer(layer); });
  }
  if (args.certificate) {
    collect(result.findings, [&] {
      result.certificate = certify(
          model, {.layers = args.layers, .progress = console.progress("certificate", "expert")});
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
  if (const auto absent = absent_ranks(folder)) result.findings.push_back(*absent);
  result.ranks = static_cast<unsigned>(folder.ranks.size());
  result.due_ranks = static_cast<unsigned>(folder.plan.ranks.size());
  const std::vector<int>& due = args.layers.empty() ? folder.layers : args.layers;
  result.due = {due.begin(), due.end()};
  for (const int layer : result.due) {
    if (!std::ranges::binary_search(folder.layers, layer))
      collect(result.findings, [&] { (void)blob_source(folder, folder.ranks.front(), layer); });
  }
  for (const int layer : folder.layers) {
    if (!result.due.contains(layer)) continue;
    result.seen.insert(layer);
    if (!args.deep) continue;
    for (const unsigned rank : folder.ranks)
      collect(result.findings, [&] { (void)load_packed(folder, rank, layer); });
  }
  collect(result.findings,
          [&] { result.append(check_packed_tensors(folder, args.deep, args.layers)); });
  if (!args.deep || !args.layers.empty()) return;
  for (const unsigned rank : folder.ranks)
    collect(result.findings, [&] { check_packed_top(folder, rank); });
}

// "2 layers", "1 of 2 layers", "2 layers on 1 of 3 ranks".
std::string text_of(const Examination& result) {
  std::string text = format_count(result.due.size(), "layer");
  if (result.layers() < result.due.size()) text = format_count(result.layers()) + " of " + text;
  if (result.ranks < result.due_ranks) {
    text += " on " + format_count(result.ranks) + " of " + format_count(result.due_ranks, "rank");
  }
  return text;
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
  document.set("layers", result.layers()).set("deep", args.deep);
  document.set("certificate", certified ? Json(args.certificate->string()) : Json());
  document.set("findings", to_json(result.findings));
  std::string text = args.model.string() + ": " + text_of(result) + " examined, " +
                     (args.deep ? "headers and values" : "headers only") + "\n";
  if (certified) text += "\n" + certificate_text(*result.certificate);
  const std::string extent = healthy && result.is_partial() ? ", of what is here" : "";
  console.print(document, text + "verdict: " + console.verdict(healthy) + extent + "\n");
  console.talk(result.findings);
  return healthy ? 0 : static_cast<int>(ErrorCode::verdict);
}

}  // namespace moxie::cli
