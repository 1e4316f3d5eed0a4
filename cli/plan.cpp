// SPDX-License-Identifier: Apache-2.0
// moxie plan: who owns which bytes.
#include <fmt/format.h>

#include "cli/certificates.hpp"
#include "cli/placements.hpp"
#include "cli/verbs.hpp"
#include "moxie/layer.hpp"
#include "moxie/pack.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

constexpr std::size_t kMaxWarnings = 20;  // of tensors around the experts
constexpr std::size_t kMaxRows = 64;      // ranks shown as text; --json has them all

template <class Unit>
std::string range_text(const UnitRange<Unit>& range) {
  return fmt::format("[{}, {})", range.src.value, (range.src + range.count).value);
}

// The parts of the axes beside the experts' own, which expert-parallel ranks share.
std::string other_axes_text(const ShardPlan& plan) {
  std::vector<std::string> columns = {"tp rank"};
  for (std::size_t axis = 1; axis < plan.axes.size(); ++axis) {
    columns.emplace_back(name_of(plan.axes[axis].axis));
    columns.emplace_back("tail");
  }
  Table table(std::move(columns));
  for (unsigned tp_rank = 0; tp_rank < plan.tp; ++tp_rank) {
    std::vector<std::string> row = {fmt::to_string(tp_rank)};
    for (std::size_t axis = 1; axis < plan.axes.size(); ++axis) {
      const UnitRange<Elems> part = slice_axis(plan.axes[axis], tp_rank);
      row.push_back(range_text(part));
      row.push_back(fmt::to_string((plan.axes[axis].local - part.count).value));
    }
    table.add_row(std::move(row));
  }
  return table.to_text();
}

std::string text_of(const ShardPlan& plan) {
  const bool contiguous = plan.placement.kind == PlacementKind::contiguous;
  const std::string placed =
      contiguous ? "" : fmt::format(", placement {}", name_of(plan.placement.kind));
  std::string text =
      fmt::format("{}, {}: {} x {} on {} (tp {}, ep {}{}), target {}, {}\n\n", plan.model,
                  name_of(plan.format), format_count(plan.experts, "expert"),
                  format_count(plan.layers, "layer"), format_count(plan.ranks.size(), "rank"),
                  plan.tp, plan.ep, placed, name_of(plan.target), plan.kernel);
  Table axes({"axis", "original", "virtual", "logical", "kernel", "unit", "virtual %", "kernel %"});
  for (const AxisPlan& axis : plan.axes) {
    axes.add_row({std::string(name_of(axis.axis)), fmt::to_string(axis.original.value),
                  fmt::to_string(axis.virtual_global.value), fmt::to_string(axis.local.value),
                  fmt::to_string(axis.kernel.value), fmt::to_string(axis.unit.value),
                  fmt::format("{:+.1f}", axis.overhead_pct),
                  fmt::format("{:+.1f}", axis.kernel_overhead_pct)});
  }
  text += axes.to_text() + "\n";
  Table ranks({"rank", "experts", "gate/up rows", "tail", "down bytes", "tail", "down groups",
               "tail", "bytes/layer"});
  for (std::size_t i = 0; i < plan.ranks.size() && i < kMaxRows; ++i) {
    const RankPlan& rank = plan.ranks[i];
    ranks.add_row({fmt::to_string(rank.rank), experts_text(rank.experts),
                   range_text(rank.slice.rows), fmt::to_string(rank.slice.rows.zero().value),
                   range_text(rank.slice.bytes), fmt::to_string(rank.slice.bytes.zero().value),
                   range_text(rank.slice.groups), fmt::to_string(rank.slice.groups.zero().value),
                   format_count(rank.bytes_layer)});
  }
  text += ranks.to_text();
  if (plan.ranks.size() > kMaxRows)
    text += fmt::format("… {} more ranks; --json lists them\n", plan.ranks.size() - kMaxRows);
  if (plan.axes.size() > 1) text += "\n" + other_axes_text(plan);
  text += plan.identity
              ? "\nNo virtual padding: every rank loads an equal part.\n"
              : "\nEvery rank's real part starts on a scale group; what follows it is zero.\n";
  return text;
}

// An engine's answers are about vetted combinations, a kernel's about itself.
bool is_chosen(const KernelAnswer& answer, const ShardPlan& plan) {
  return plan.engine ? answer.refusal.empty() : answer.kernel == plan.kernel;
}

std::string why_text(const ShardPlan& plan) {
  Table table({plan.engine ? "vetted combination" : "kernel", "answer"});
  for (const KernelAnswer& answer : plan.considered) {
    const bool chosen = is_chosen(answer, plan);
    table.add_row({answer.kernel, chosen                   ? "chosen"
                                  : answer.refusal.empty() ? "supported, less preferred"
                                                           : answer.refusal});
  }
  return "\n" + table.to_text();
}

Json why_json(const ShardPlan& plan) {
  Json considered = Json::array();
  for (const KernelAnswer& answer : plan.considered) {
    Json entry;
    entry.set("kernel", answer.kernel).set("supported", answer.refusal.empty());
    entry.set("chosen", is_chosen(answer, plan)).set("reason", answer.refusal);
    considered.push_back(std::move(entry));
  }
  return considered;
}

// What each layer allows, without the counts.
Json allowed_json(const Certificate& certificate) {
  Json layers = Json::array();
  for (const LayerCertificate& layer : certificate.layers) {
    Json entry;
    entry.set("layer", layer.layer).set("mxfp4_cast", layer.is_cast());
    for (std::size_t window = 0; window < kExactWindows; ++window) {
      const auto granule = layer.granule_for(static_cast<ExactWindow>(window));
      entry.set(name_of(static_cast<ExactWindow>(window)),
                granule ? Json(name_of(*granule)) : Json());
    }
    layers.push_back(std::move(entry));
  }
  return layers;
}

// A plan needs no tensors: what is wrong with them is worth a warning here and an error where they
// are read.
void warn_of_problems(OpenedModel& opened) {
  std::vector<Finding> problems;
  for (const LayerExperts& layer : opened.model.layers)
    problems.insert(problems.end(), layer.problems.begin(), layer.problems.end());
  std::vector<Finding> of_whole = check_whole_model(opened.model);
  std::erase_if(of_whole, [](const Finding& finding) { return finding.code == "MOXIE-C010"; });
  if (of_whole.size() > kMaxWarnings) {
    const std::uint64_t more = of_whole.size() - kMaxWarnings;
    of_whole.resize(kMaxWarnings);
    of_whole.push_back(
        {.code = "MOXIE-K013",
         .message = format_count(more, "more finding") + " of tensors around the experts",
         .hint = "moxie inspect lists all"});
  }
  problems.insert(problems.end(), of_whole.begin(), of_whole.end());
  for (Finding& finding : problems) {
    if (finding.code == "MOXIE-C010") continue;  // named by opening
    if (finding.code == "MOXIE-K015" && !opened.model.config.v4)
      finding.message += "; the plan has no axis but moe_inter";
    finding.severity = Severity::warning;
    opened.findings.push_back(std::move(finding));
  }
}

// A kernel that is not built is planned all the same.
void size_workspace(ShardPlan& plan, OpenedModel& opened, std::uint64_t tokens) {
  try {
    plan.workspace_bytes = workspace_size(plan, spec_of(opened.model.config), tokens);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    opened.findings.push_back(
        {.code = "MOXIE-P008",
         .severity = Severity::note,
         .message = "the workspace is not known: " + error.findings().front().message});
  }
}

}  // namespace

int run_plan(const PlanArgs& args, const Console& console) {
  require_no_packed_set(args.model, "plan its source, or see moxie inspect");
  OpenedModel opened = open_model(args.model);
  const std::optional<Certificate> certificate = apply_certificate(opened, args.certificate);
  PlanOptions options = args.options;
  options.placement = read_placement(args.placement);
  ShardPlan plan = make_plan(opened.model, options);
  warn_of_problems(opened);
  opened.findings.insert(opened.findings.end(), plan.findings.begin(), plan.findings.end());
  if (args.tokens) size_workspace(plan, opened, *args.tokens);
  Json document = to_json(plan);
  if (args.why) document.set("why", why_json(plan));
  document.set("findings", to_json(opened.findings));
  if (args.why && certificate) document.set("certificate", allowed_json(*certificate));
  std::string text = text_of(plan);
  if (args.why) text += why_text(plan);
  if (args.why && certificate) text += "\n" + certificate_text(*certificate);
  console.print(document, text);
  console.talk(opened.findings);
  return 0;
}

}  // namespace moxie::cli
