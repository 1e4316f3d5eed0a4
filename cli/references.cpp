// SPDX-License-Identifier: Apache-2.0
// One call with a tap between the products, and two comparisons.
#include "cli/references.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "cli/figures.hpp"
#include "cli/layer_call.hpp"

namespace moxie::cli {

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

bool depends_on_all_tokens(const ShardPlan& plan) {
  return plan.act_format == ActFormat::nvfp4 && plan.act_scale == ActScale::dynamic;
}

std::vector<std::uint64_t> spread_tokens(std::uint64_t tokens, std::uint64_t most) {
  const std::uint64_t count = std::min(tokens, most);
  std::vector<std::uint64_t> chosen;
  for (std::uint64_t i = 0; i < count; ++i)
    chosen.push_back(count > 1 ? i * (tokens - 1) / (count - 1) : 0);
  return chosen;
}

Probe probe_of(const Probe& probe, const std::vector<std::uint64_t>& tokens,
               const ShardPlan& plan) {
  Probe part{.tokens = tokens.size(),
             .hidden = probe.hidden,
             .top_k = probe.top_k,
             .x_dtype = probe.x_dtype,
             .x = {},
             .topk_ids = {},
             .topk_weights = {},
             .token_ids = {}};
  const std::uint64_t row_bytes = probe.tokens == 0 ? 0 : probe.x.size() / probe.tokens;
  for (const std::uint64_t token : tokens) {
    const auto x = std::span(probe.x).subspan(token * row_bytes, row_bytes);
    part.x.insert(part.x.end(), x.begin(), x.end());
    for (std::uint64_t slot = token * probe.top_k; slot < (token + 1) * probe.top_k; ++slot) {
      part.topk_ids.push_back(holds(plan, probe.topk_ids[slot]) ? probe.topk_ids[slot] : -1);
      part.topk_weights.push_back(probe.topk_weights[slot]);
    }
  }
  return part;
}

}  // namespace

References::References(const RunSubject& subject, const Probe& probe, const Console& console,
                       std::uint64_t most_tokens)
    : subject_(subject), probe_(probe), console_(console) {
  const bool all = std::ranges::any_of(subject.plans(), depends_on_all_tokens);
  tokens_ = spread_tokens(probe.tokens, all ? probe.tokens : most_tokens);
  checked_ = probe_of(probe, tokens_, subject.plans().front());
}

std::vector<float> References::checked_rows(std::vector<float> values, std::uint64_t width) const {
  if (tokens_.size() == probe_.tokens) return values;
  std::vector<float> rows;
  for (const std::uint64_t token : tokens_) {
    const auto row = std::span(values).subspan(token * width, width);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

const LayerReference& References::of(const MoeLayer& layer) {
  const ShardPlan& plan = layer.plan();
  Key key{.boundaries = group_boundaries(plan)};
  const bool by_rank = plan.act_scale == ActScale::warmup || plan.act_scale == ActScale::dynamic;
  if (plan.act_format == ActFormat::nvfp4 && by_rank) {
    key.tp = plan.tp;
    key.ep = plan.ep;
  }
  const auto [at, made_now] = made_.try_emplace(std::move(key));
  const std::vector<ActScales> scales = layer.act_scales();
  if (made_now) {
    at->second = subject_.reference(
        layer, checked_,
        {.act_scales = scales, .progress = console_.progress("reference", "expert")});
  }
  return at->second;
}

CheckedRun References::check(const MoeLayer& layer) {
  const ShardPlan& plan = layer.plan();
  const std::uint64_t slots = probe_.tokens * probe_.top_k;
  CheckedRun checked{.whole = {}, .stages = {}, .y = {}};
  checked.y.assign(probe_.tokens * probe_.hidden, kNan);
  checked.tokens = checked_.tokens;
  checked.acts = checked_.tokens * probe_.top_k * plan.inter().original.value;
  std::vector<float> act;
  {
    std::vector<float> taps(plan.ranks.size() * slots * plan.inter().kernel.value, kNan);
    HostCall call(layer, probe_.tokens);  // its workspace is poisoned
    std::uint32_t flags = 0;
    LayerIo io = io_of(probe_, checked.y.data(), DType::f32, &flags);
    io.act_tap = taps.data();
    call_layer(call, io);
    act = checked_rows(joined_acts(plan, probe_, taps), probe_.top_k * plan.inter().original.value);
  }
  const std::vector<float> y = checked_rows(checked.y, probe_.hidden);
  const Stopwatch watch;
  checked.reference = &of(layer);
  checked.whole = check_output(y, *checked.reference, plan);
  const std::vector<ActScales> scales = layer.act_scales();
  const LayerReference stages = subject_.reference(
      layer, checked_,
      {.act = act, .act_scales = scales, .progress = console_.progress("stages", "expert")});
  checked.stages = check_output(y, stages, plan);
  checked.stages.bound = {};
  for (LayerCheck* check : {&checked.whole, &checked.stages}) {
    for (Finding& finding : check->findings) {
      finding.where.layer = subject_.layer();
      if (tokens_.size() < probe_.tokens)
        finding.hint = "token numbers of this message count the checked tokens only";
    }
    if (!tokens_.empty()) check->worst_token = tokens_[check->worst_token];
  }
  if (has_limit(layer.spec().activation) && slots > 0 && stages.clamped == 0) {
    checked.whole.findings.push_back(
        {.code = "MOXIE-R015",
         .severity = Severity::note,
         .message = "no value of this call reached the activation limit; the clamp was not tested",
         .where = {.layer = subject_.layer()}});
  }
  checked.acts_outside = stages.act.outside;
  checked.reference_s = watch.seconds();
  return checked;
}

}  // namespace moxie::cli
