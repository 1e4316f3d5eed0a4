// SPDX-License-Identifier: Apache-2.0
// The judge's problem from a checkpoint or from packed experts: the same weights by two ways that
// share no code before the judge.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/errors.hpp"
#include "formats/act_quant.hpp"
#include "moxie/catalog.hpp"
#include "moxie/verify.hpp"
#include "verify/expert_source.hpp"

namespace moxie {

namespace {

[[noreturn]] void refuse_problem(std::string message) {
  throw Error(ErrorCode::unsupported, {.code = "MOXIE-R001", .message = std::move(message)});
}

void check_problem(const ShardPlan& plan, const LayerSpec& spec, const Probe& probe) {
  if (plan.gated != has_gate(spec.activation) || !ref::supports(spec.activation)) {
    refuse_problem("there is no reference for the activation function " +
                   std::string(name_of(spec.activation)) +
                   (plan.gated ? " of experts with a gate" : " of experts without a gate"));
  }
  if (!ref::supports(plan.act_format)) {
    refuse_problem("there is no reference for act_format " + std::string(name_of(plan.act_format)));
  }
  if (has_limit(spec.activation) && !(spec.activation_limit.value_or(0) > 0))
    refuse_problem(std::string(name_of(spec.activation)) + " needs an activation limit above 0");
  const std::uint64_t slots = probe.tokens * probe.top_k;
  MOXIE_CHECK(probe.hidden == plan.hidden && probe.top_k == spec.top_k,
              "probe, plan and spec are of one layer");
  MOXIE_CHECK(probe.topk_ids.size() == slots && probe.topk_weights.size() == slots,
              "the probe is routed");
}

// x as the judge takes it.
std::vector<float> floats_of(const Probe& probe) {
  std::vector<float> x(probe.tokens * probe.hidden);
  const bool is_bf16 = probe.x_dtype == DType::bf16;
  MOXIE_CHECK(is_bf16 || probe.x_dtype == DType::f32, "x is bf16 or f32");
  MOXIE_CHECK(probe.x.size() == x.size() * (is_bf16 ? 2 : 4), "x has [tokens, hidden] elements");
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (is_bf16) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, probe.x.data() + i * sizeof bits, sizeof bits);
      x[i] = decode_bf16(bits);
    } else {
      std::memcpy(&x[i], probe.x.data() + i * sizeof(float), sizeof(float));
    }
  }
  return x;
}

const KernelEntry& entry_of(std::string_view kernel) {
  const auto entries = kernel_catalog();
  const auto found = std::ranges::find(entries, kernel, &KernelEntry::name);
  MOXIE_CHECK(found != entries.end(), "a planned kernel is in the catalog");
  return *found;
}

// The expert-parallel rank that computes a slot.
std::optional<std::uint32_t> owner_of(const ExpertOwners& owners, const Probe& probe,
                                      std::uint64_t slot) {
  const std::uint64_t choice = slot % probe.top_k;
  return owners.owner(std::span(probe.topk_ids).subspan(slot - choice, probe.top_k), choice);
}

// Where the judge takes the global scales of nvfp4 activations from.
ref::ActScaling scaling_of(const ShardPlan& plan, const Probe& probe,
                           std::span<const ActScales> frozen) {
  ref::ActScaling scaling{.policy = plan.act_scale, .groups = plan.ep};
  scaling.group_of_slot.resize(probe.topk_ids.size());
  const ExpertOwners owners = owners_of(plan);
  for (std::uint64_t slot = 0; slot < probe.topk_ids.size(); ++slot)
    scaling.group_of_slot[slot] = owner_of(owners, probe, slot).value_or(0);
  if (plan.act_scale != ActScale::warmup) return scaling;
  if (frozen.size() != plan.ranks.size()) {
    throw Error(ErrorCode::usage,
                {.code = "MOXIE-R017",
                 .message = "a reference under the policy warmup needs every rank's frozen scales",
                 .expected = std::to_string(plan.ranks.size()) + " entries",
                 .got = std::to_string(frozen.size())});
  }
  for (const RankPlan& rank : plan.ranks) {
    if (rank.slice.rows.count > Elems{0})
      scaling.frozen.push_back({.x = frozen[rank.rank].x, .act = frozen[rank.rank].act});
  }
  return scaling;
}

LayerReference judge(const ShardPlan& plan, const LayerSpec& spec, const Probe& probe,
                     const ReferenceOptions& options,
                     const std::function<ref::Expert(std::uint64_t)>& expert) {
  const std::span<const float> act = options.act;
  const std::uint64_t slots = probe.tokens * probe.top_k;
  MOXIE_CHECK(act.empty() || act.size() == slots * plan.inter().original.value,
              "the engine's values are [tokens, top_k, inter]");
  const std::vector<float> x = floats_of(probe);
  // Columns beyond the real ones are zero and round nothing.
  const SumOrder& order = entry_of(plan.kernel).sum_order;
  ref::Problem problem{.format = plan.format,
                       .act_format = plan.act_format,
                       .act_scaling = {},
                       .activation = spec.activation,
                       .activation_limit = spec.activation_limit.value_or(0),
                       .hidden = plan.hidden,
                       .inter = plan.inter().original.value,
                       .experts = plan.experts,
                       .tokens = probe.tokens,
                       .top_k = probe.top_k,
                       .gate_up_roundings = order.roundings(plan.hidden),
                       .down_roundings = order.roundings(plan.inter().original.value),
                       .flushes_subnormals = order.flushes_subnormals,
                       .x = x.data(),
                       .topk_ids = probe.topk_ids.data(),
                       .topk_weights = probe.topk_weights.data(),
                       .act = act.empty() ? nullptr : act.data(),
                       .expert = [&](std::uint64_t number) {
                         report_progress(options.progress, number, plan.experts);
                         return expert(number);
                       }};
  if (auto starts = group_boundaries(plan); !starts.empty())
    problem.part_starts = std::move(starts);
  if (plan.act_format == ActFormat::nvfp4)
    problem.act_scaling = scaling_of(plan, probe, options.act_scales);
  ref::Result result = ref::run(problem);
  report_progress(options.progress, plan.experts, plan.experts);
  return {.tokens = probe.tokens,
          .hidden = probe.hidden,
          .y = std::move(result.y),
          .bound = std::move(result.bound),
          .magnitude = std::move(result.magnitude),
          .unquantised = std::move(result.unquantised),
          .act = {.outside = result.act.outside,
                  .token = result.act.slot / std::max<std::uint64_t>(probe.top_k, 1),
                  .choice = result.act.slot % std::max<std::uint64_t>(probe.top_k, 1),
                  .column = result.act.column,
                  .least = result.act.least,
                  .most = result.act.most,
                  .got = result.act.got},
          .clamped = result.clamped};
}

void check_ranks(const ShardPlan& plan, std::span<const PackedExperts> ranks) {
  bool fits = ranks.size() == plan.ranks.size();
  for (std::size_t i = 0; fits && i < ranks.size(); ++i) {
    fits = ranks[i].rank == plan.ranks[i].rank && ranks[i].experts == plan.ranks[i].experts &&
           ranks[i].layout == plan.layout &&
           ranks[i].blobs.size() == ranks[i].experts.count() * plan.layout.stride;
  }
  if (fits) return;
  throw Error(ErrorCode::unsupported,
              {.code = "MOXIE-R002",
               .message = "a reference needs every rank of the plan, packed under it, in order",
               .expected = std::to_string(plan.ranks.size()) + " ranks",
               .got = std::to_string(ranks.size())});
}

void check_holds_all(const MoeLayer& layer) {
  if (layer.spec().reduction == Reduction::layer || layer.plan().ranks.size() == 1) return;
  throw Error(ErrorCode::unsupported,
              {.code = "MOXIE-R002",
               .message = "a reference needs every rank, and this layer holds one",
               .expected = std::to_string(layer.plan().ranks.size()) + " ranks",
               .got = "1"});
}

}  // namespace

std::vector<std::uint64_t> group_boundaries(const ShardPlan& plan) {
  std::vector<std::uint64_t> starts;
  if (act_group(plan.act_format) == 1 || consumes_act_scales(plan)) return starts;
  for (const RankPlan& rank : plan.ranks) {
    if (rank.ep_rank == 0 && rank.slice.rows.count > Elems{0})
      starts.push_back(rank.slice.rows.src.value);
  }
  std::ranges::sort(starts);
  return starts;
}

LayerReference make_reference(const MoeModel& model, int layer, const ShardPlan& plan,
                              const LayerSpec& spec, const Probe& probe,
                              const ReferenceOptions& options) {
  const LayerExperts& source = model.require_layer(layer);
  if (source.format != plan.format || source.experts.size() != plan.experts) {
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-M009",
                 .message = "the layer differs from the plan in format or number of experts",
                 .where = {.layer = layer},
                 .expected = std::to_string(plan.experts) + " experts in " +
                             std::string(name_of(plan.format)),
                 .got = std::to_string(source.experts.size()) + " experts in " +
                        std::string(name_of(source.format))});
  }
  check_problem(plan, spec, probe);
  CheckpointExperts experts(model, source, plan);
  return judge(plan, spec, probe, options,
               [&](std::uint64_t expert) { return experts.expert(expert); });
}

LayerReference make_reference(const ShardPlan& plan, std::span<const PackedExperts> ranks,
                              const LayerSpec& spec, const Probe& probe,
                              const ReferenceOptions& options) {
  check_problem(plan, spec, probe);
  check_ranks(plan, ranks);
  JoinedExperts experts(
      plan, [&](unsigned rank, std::uint64_t expert) { return ranks[rank].blob(expert); });
  return judge(plan, spec, probe, options,
               [&](std::uint64_t expert) { return experts.expert(expert); });
}

LayerReference make_reference(const MoeLayer& layer, const Probe& probe,
                              const ReferenceOptions& options) {
  check_problem(layer.plan(), layer.spec(), probe);
  check_holds_all(layer);
  JoinedExperts experts(
      layer.plan(), [&](unsigned rank, std::uint64_t expert) { return layer.blob(rank, expert); });
  const std::vector<ActScales> frozen = layer.act_scales();
  ReferenceOptions with_scales = options;
  if (with_scales.act_scales.empty()) with_scales.act_scales = frozen;
  return judge(layer.plan(), layer.spec(), probe, with_scales,
               [&](std::uint64_t expert) { return experts.expert(expert); });
}

std::vector<float> joined_acts(const ShardPlan& plan, const Probe& probe,
                               std::span<const float> taps) {
  const std::uint64_t slots = probe.tokens * probe.top_k;
  const std::uint64_t inter = plan.inter().original.value;
  const std::uint64_t kernel = plan.inter().kernel.value;
  MOXIE_CHECK(taps.size() == plan.ranks.size() * slots * kernel,
              "there is a tap of every rank, [tokens, top_k, kernel width] each");
  std::vector<float> joined(slots * inter, 0.0F);
  const ExpertOwners owners = owners_of(plan);
  for (const RankPlan& rank : plan.ranks) {
    const auto tap = taps.subspan(rank.rank * slots * kernel, slots * kernel);
    const UnitRange<Elems>& columns = rank.slice.rows;
    for (std::uint64_t slot = 0; slot < slots; ++slot) {
      if (owner_of(owners, probe, slot) != rank.ep_rank) continue;
      std::ranges::copy(
          tap.subspan(slot * kernel, columns.count.value),
          joined.begin() + static_cast<std::ptrdiff_t>(slot * inter + columns.src.value));
    }
  }
  return joined;
}

}  // namespace moxie
