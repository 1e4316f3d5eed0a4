// SPDX-License-Identifier: Apache-2.0
// One call with a tap between the products, and two comparisons.
#include "cli/references.hpp"

#include <limits>
#include <utility>

#include "cli/layer_call.hpp"

namespace moxie::cli {

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace

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
        layer, probe_,
        {.act_scales = scales, .progress = console_.progress("reference", "experts")});
  }
  return at->second;
}

CheckedRun References::check(const MoeLayer& layer) {
  const ShardPlan& plan = layer.plan();
  const std::uint64_t slots = probe_.tokens * probe_.top_k;
  CheckedRun checked{.whole = {}, .stages = {}, .y = {}};
  checked.y.assign(probe_.tokens * probe_.hidden, kNan);
  checked.acts = slots * plan.inter().original.value;
  std::vector<float> act;
  {
    std::vector<float> taps(plan.ranks.size() * slots * plan.inter().kernel.value, kNan);
    HostCall call(layer, probe_.tokens);  // its workspace is poisoned
    std::uint32_t flags = 0;
    LayerIo io = io_of(probe_, checked.y.data(), DType::f32, &flags);
    io.act_tap = taps.data();
    call_layer(call, io);
    act = joined_acts(plan, probe_, taps);
  }
  const Stopwatch watch;
  checked.reference = &of(layer);
  checked.whole = check_output(checked.y, *checked.reference, plan);
  const std::vector<ActScales> scales = layer.act_scales();
  const LayerReference stages = subject_.reference(
      layer, probe_,
      {.act = act, .act_scales = scales, .progress = console_.progress("stages", "experts")});
  checked.stages = check_output(checked.y, stages, plan);
  checked.stages.bound = {};
  for (LayerCheck* check : {&checked.whole, &checked.stages}) {
    for (Finding& finding : check->findings) finding.where.layer = subject_.layer();
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
