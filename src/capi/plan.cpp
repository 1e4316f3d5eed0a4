// SPDX-License-Identifier: Apache-2.0
// Plans, and what they say.
#include "moxie/plan.hpp"

#include <cmath>
#include <initializer_list>

#include "capi/handles.hpp"
#include "capi/refusal.hpp"
#include "capi/versioned.hpp"
#include "moxie/report.hpp"

namespace moxie::capi {

const RankPlan& require_rank(const ShardPlan& plan, std::uint32_t rank) {
  if (rank < plan.ranks.size()) return plan.ranks[rank];
  throw Error(ErrorCode::usage, {.code = "MOXIE-K004",
                                 .message = "there is no such rank in the plan",
                                 .where = {.rank = rank},
                                 .expected = "a rank below " + std::to_string(plan.ranks.size()),
                                 .got = std::to_string(rank)});
}

ExpertRange contiguous_experts(const RankPlan& rank) { return rank.experts.range().value(); }

namespace {

// No value for null.
template <class Enum>
std::optional<Enum> named(std::string_view field, const char* text,
                          std::initializer_list<Enum> values) {
  if (text == nullptr) return std::nullopt;
  std::string names;
  for (const Enum value : values) {
    if (name_of(value) == text) return value;
    names += (names.empty() ? "" : ", ") + std::string(name_of(value));
  }
  refuse("MOXIE-A003", std::string(field) + " is no name that moxie knows", names,
         "\"" + std::string(text) + "\"");
}

// The options as they were given; what was not has no value.
struct Given {
  std::optional<unsigned> tp;
  std::optional<unsigned> ep;
  std::optional<Target> target;
  std::optional<ActFormat> act_format;
  std::optional<BlockFormat> format;
  std::optional<ActScale> act_scale;
  std::optional<double> act_margin;
  std::optional<std::uint64_t> kernel_align;
};

template <class Number>
std::optional<Number> unless_zero(Number value) {
  return value == Number{} ? std::nullopt : std::optional(value);
}

Given given_of(const moxie_plan_options& options) {
  require_reserved(options.reserved, "moxie_plan_options.reserved");
  if (!std::isfinite(options.act_margin) || options.act_margin < 0) {
    refuse("MOXIE-A003", "act_margin is no factor", "0, or a number from 1 up",
           std::to_string(options.act_margin));
  }
  return {.tp = unless_zero(options.tp),
          .ep = unless_zero(options.ep),
          .target = named("target", options.target,
                          {Target::cpu, Target::sm90, Target::sm100, Target::sm120}),
          .act_format = named("act_format", options.act_format,
                              {ActFormat::bf16, ActFormat::fp8, ActFormat::fp8x2, ActFormat::mxfp8,
                               ActFormat::nvfp4, ActFormat::int8, ActFormat::int8x2}),
          .format = named("format", options.format, {BlockFormat::mxfp4, BlockFormat::nvfp4}),
          .act_scale =
              named("act_scale", options.act_scale,
                    {ActScale::checkpoint, ActScale::warmup, ActScale::dynamic, ActScale::row}),
          .act_margin = unless_zero(options.act_margin),
          .kernel_align = unless_zero(options.kernel_align)};
}

template <class Value>
void require_same(std::string_view field, const std::optional<Value>& given, Value packed) {
  if (!given || *given == packed) return;
  const auto text = [](Value value) {
    if constexpr (std::is_enum_v<Value>)
      return std::string(name_of(value));
    else
      return std::to_string(value);
  };
  refuse("MOXIE-R013", "the set was packed with another " + std::string(field), text(packed),
         text(*given), "leave the field 0 or null");
}

// A packed set was planned already: what is given must be what it was packed for.
ShardPlan plan_of(const PackedFolder& folder, const Given& given) {
  const ShardPlan& plan = folder.plan;
  if (plan.placement.kind != PlacementKind::contiguous) {
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-A006",
                 .message = "this interface knows ranks by a first and a last expert alone",
                 .where = {.file = folder.path.string()},
                 .expected = "a set packed with --placement contiguous",
                 .got = std::string(name_of(plan.placement.kind)),
                 .hint = "the C++ interface takes every placement"});
  }
  require_same("tp", given.tp, plan.tp);
  require_same("ep", given.ep, plan.ep);
  require_same("target", given.target, plan.target);
  require_same("act_format", given.act_format, plan.act_format);
  require_same("format", given.format, plan.format);
  const bool nvfp4 = plan.act_format == ActFormat::nvfp4;
  const bool warmup = nvfp4 && plan.act_scale == ActScale::warmup;
  if ((given.act_scale && !nvfp4) || (given.act_margin && !warmup)) {
    refuse("MOXIE-R013", "the set was packed for activations that take no such option",
           "neither act_scale nor act_margin", given.act_scale ? "act_scale" : "act_margin");
  }
  require_same("act_scale", given.act_scale, plan.act_scale);
  require_same("act_margin", given.act_margin, plan.act_margin);
  const std::uint64_t width = plan.inter().kernel.value;
  if (given.kernel_align && width % *given.kernel_align != 0) {
    refuse("MOXIE-R013", "the set was packed with another kernel_align",
           "a divisor of " + std::to_string(width), std::to_string(*given.kernel_align));
  }
  return plan;
}

ShardPlan plan_of(const Source& source, const Given& given) {
  if (source.folder) return plan_of(*source.folder, given);
  return make_plan(*source.model, {.tp = given.tp.value_or(1),
                                   .ep = given.ep.value_or(1),
                                   .target = given.target.value_or(Target::cpu),
                                   .act_format = given.act_format.value_or(ActFormat::bf16),
                                   .format = given.format,
                                   .kernel_align = given.kernel_align,
                                   .act_scale = given.act_scale,
                                   .act_margin = given.act_margin});
}

std::string json_of(const Source& source, const ShardPlan& plan) {
  std::vector<Finding> findings = source.findings;
  findings.insert(findings.end(), plan.findings.begin(), plan.findings.end());
  Json document = to_json(plan);
  document.set("findings", to_json(findings));
  return document.dump();
}

}  // namespace

}  // namespace moxie::capi

using namespace moxie::capi;  // NOLINT(google-build-using-namespace): of the C functions below

extern "C" {

int moxie_make_plan(const moxie_model* model, const moxie_plan_options* options,
                    moxie_plan** plan) noexcept {
  return guarded([&] {
    require_pointer(plan, "plan");
    *plan = nullptr;
    require_pointer(model, "model");
    const Given given = given_of(read_struct(options));
    moxie::ShardPlan made = plan_of(*model->source, given);
    std::string json = json_of(*model->source, made);
    *plan =
        std::make_unique<moxie_plan>(moxie_plan{model->source, std::move(made), std::move(json)})
            .release();
  });
}

void moxie_plan_destroy(moxie_plan* plan) noexcept {
  const std::unique_ptr<moxie_plan> owned(plan);
}

int moxie_plan_json(const moxie_plan* plan, const char** text) noexcept {
  return guarded([&] {
    require_pointer(text, "text");
    *text = nullptr;
    require_pointer(plan, "plan");
    *text = plan->json.c_str();
  });
}

int moxie_describe_plan(const moxie_plan* plan, moxie_plan_info* info) noexcept {
  return guarded([&] {
    require_pointer(plan, "plan");
    const moxie::ShardPlan& made = plan->plan;
    write_struct(info, {.struct_size = 0,
                        .ranks = static_cast<std::uint32_t>(made.ranks.size()),
                        .hidden = made.hidden,
                        .experts = made.experts,
                        .kernel_inter = made.inter().kernel.value,
                        .blob_bytes = made.layout.stride});
  });
}

int moxie_describe_rank(const moxie_plan* plan, uint32_t rank, moxie_rank_info* info) noexcept {
  return guarded([&] {
    require_pointer(plan, "plan");
    const moxie::RankPlan& part = require_rank(plan->plan, rank);
    const moxie::ExpertRange experts = contiguous_experts(part);
    write_struct(info, {.struct_size = 0,
                        .tp_rank = part.tp_rank,
                        .ep_rank = part.ep_rank,
                        .reserved = 0,
                        .first_expert = experts.first,
                        .end_expert = experts.end,
                        .bytes = part.bytes_layer});
  });
}

}  // extern "C"
