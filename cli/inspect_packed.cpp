// SPDX-License-Identifier: Apache-2.0
// What a packed set is, from its plan and its headers.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/verbs.hpp"
#include "moxie/pack.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

template <class Number>
Json list_of(const std::vector<Number>& numbers) {
  Json list = Json::array();
  for (const Number number : numbers) list.push_back(number);
  return list;
}

template <class Number>
std::string text_of(const std::vector<Number>& numbers) {
  std::string text;
  for (const Number number : numbers) text += (text.empty() ? "" : ", ") + fmt::to_string(number);
  return text.empty() ? "none" : text;
}

}  // namespace

std::optional<Finding> absent_ranks(const PackedFolder& folder) {
  std::vector<unsigned> absent;
  for (const RankPlan& rank : folder.plan.ranks) {
    if (!std::ranges::binary_search(folder.ranks, rank.rank)) absent.push_back(rank.rank);
  }
  if (absent.empty()) return std::nullopt;
  return Finding{
      .code = "MOXIE-V004",
      .severity = Severity::warning,
      .message = "ranks of the plan are not here and were not looked at: " + text_of(absent),
      .where = {.file = folder.path.string()},
      .expected = format_count(folder.plan.ranks.size(), "rank"),
      .got = text_of(folder.ranks),
      .hint = "normal where every machine packs its own"};
}

int inspect_packed(const InspectArgs& args, const Console& console) {
  const PackedFolder folder = open_packed_folder(args.model);
  const ShardPlan& plan = folder.plan;
  std::vector<Finding> findings = folder.findings;
  if (auto absent = absent_ranks(folder)) findings.push_back(*std::move(absent));
  Json packed;
  packed.set("plan_hash", folder.plan_hash).set("tp", plan.tp).set("ep", plan.ep);
  packed.set("target", name_of(plan.target)).set("layout", name_of(folder.layout));
  packed.set("ranks", list_of(folder.ranks)).set("layers", list_of(folder.layers));
  Json document;
  document.set("schema", "moxie.inspect/1").set("path", args.model.string());
  document.set("family", folder.config.model_type).set("format", name_of(plan.format));
  document.set("hidden", plan.hidden).set("inter", plan.inter().original.value);
  document.set("experts", plan.experts).set("num_layers", folder.config.num_layers);
  document.set("packed", std::move(packed)).set("findings", to_json(findings));
  std::string text = fmt::format("{}: a packed set\n", args.model.string());
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<12} {}\n", name, value);
  };
  line("family", folder.config.model_type);
  line("format", std::string(name_of(plan.format)));
  line("plan", fmt::format("{}: tp {}, ep {}, target {}", folder.plan_hash, plan.tp, plan.ep,
                           name_of(plan.target)));
  line("layout", std::string(name_of(folder.layout)));
  line("ranks", fmt::format("{} of {}", text_of(folder.ranks), plan.ranks.size()));
  line("layers", text_of(folder.layers));
  console.print(document, text);
  console.talk(findings);
  return 0;
}

}  // namespace moxie::cli
