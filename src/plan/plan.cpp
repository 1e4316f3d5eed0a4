// SPDX-License-Identifier: Apache-2.0
// topology -> kernel choice -> axis -> ranks -> bytes; pure functions of config facts and options.
#include "moxie/plan.hpp"

#include <algorithm>
#include <numeric>

#include "base/checked.hpp"
#include "base/cpu_features.hpp"
#include "formats/block_format.hpp"
#include "plan/engine.hpp"
#include "plan/ranks.hpp"

namespace moxie {

namespace {

constexpr unsigned kMaxTp = 64;
constexpr unsigned kMaxEp = 1024;

[[noreturn]] void refuse(ErrorCode code, Finding finding) { throw Error(code, std::move(finding)); }

void check_options(const PlanOptions& options) {
  const auto in_range = [](std::string_view name, std::uint64_t value, std::uint64_t most) {
    if (value >= 1 && value <= most) return;
    refuse(ErrorCode::usage, {.code = "MOXIE-P001",
                              .message = std::string(name) + " is out of range",
                              .expected = "1 to " + std::to_string(most),
                              .got = std::to_string(value)});
  };
  in_range("tp", options.tp, kMaxTp);
  in_range("ep", options.ep, kMaxEp);
  if (options.kernel_align) in_range("kernel-align", *options.kernel_align, std::uint64_t{1} << 16);
}

BlockFormat format_of(const MoeModel& model, const PlanOptions& options) {
  if (model.format) {
    const bool held = options.format && std::ranges::any_of(model.layers, [&](const auto& layer) {
                        return layer.format == *options.format;
                      });
    if (held) return *options.format;  // a checkpoint may hold layers of both
    if (options.format && *options.format != *model.format) {
      refuse(ErrorCode::usage, {.code = "MOXIE-P006",
                                .message = "--format differs from the checkpoint's",
                                .expected = std::string(name_of(*model.format)),
                                .got = std::string(name_of(*options.format))});
    }
    return *model.format;
  }
  if (!options.format) {
    refuse(
        ErrorCode::unsupported,
        {.code = "MOXIE-P005",
         .message = "the experts are in no known FP4 format",
         .expected = "mxfp4 or nvfp4",
         .got = model.config.quantization.empty() ? "no quantisation" : model.config.quantization,
         .hint = "say --format mxfp4|nvfp4 to plan for a format it could be converted to"});
  }
  return *options.format;
}

void check_widths(const ModelConfig& config, BlockFormat format) {
  const std::uint64_t group = scale_group(format);
  if (config.hidden % group != 0) {
    refuse(ErrorCode::unsupported, {.code = "MOXIE-P003",
                                    .message = "hidden is no multiple of the scale group",
                                    .where = {.axis = "hidden"},
                                    .expected = "a multiple of " + std::to_string(group),
                                    .got = std::to_string(config.hidden)});
  }
}

constexpr double kMostMargin = 0x1p20;

void check_act_options(const PlanOptions& options) {
  const bool nvfp4 = options.act_format == ActFormat::nvfp4;
  if (options.act_scale && !nvfp4) {
    refuse(ErrorCode::usage, {.code = "MOXIE-P011",
                              .message = "--act-scale is for act_format nvfp4 alone",
                              .expected = "--act-format nvfp4",
                              .got = std::string(name_of(options.act_format))});
  }
  if (!options.act_margin) return;
  if (!nvfp4 || options.act_scale != ActScale::warmup) {
    refuse(ErrorCode::usage,
           {.code = "MOXIE-P011",
            .message = "--act-margin is for --act-scale warmup alone",
            .expected = "--act-scale warmup",
            .got = options.act_scale ? std::string(name_of(*options.act_scale)) : "none"});
  }
  if (!(*options.act_margin >= 1 && *options.act_margin <= kMostMargin)) {
    refuse(ErrorCode::usage, {.code = "MOXIE-P001",
                              .message = "act-margin is out of range",
                              .expected = "1 to 1048576",
                              .got = std::to_string(*options.act_margin)});
  }
}

// Where the global scales of nvfp4 activations come from. Only what the checkpoint is declared to
// hold may be taken for granted.
ActScale act_scale_of(const PlanOptions& options, const MoeModel& model, BlockFormat format) {
  const ModelConfig& config = model.config;
  const bool stored = config.input_scales && (model.recast || block_spec(format).has_global);
  const ActScale asked = options.act_scale.value_or(ActScale::checkpoint);
  if (asked != ActScale::checkpoint || stored) return asked;
  refuse(ErrorCode::unsupported,
         {.code = "MOXIE-P012",
          .message = "act_format nvfp4 has no stored input scales to use",
          .expected = "experts in nvfp4 whose config declares input scales",
          .got = std::string(name_of(format)) +
                 (config.quantization.empty() ? "" : ", " + config.quantization),
          .hint = "say --act-scale warmup, row or dynamic"});
}

// Fills `considered` and returns the first kernel that supports the problem.
const KernelEntry& choose_kernel(const KernelProblem& problem, const std::string& forced,
                                 std::vector<KernelAnswer>& considered) {
  const KernelEntry* chosen = nullptr;
  for (const KernelEntry& kernel : kernel_catalog()) {
    considered.push_back({std::string(kernel.name), is_allowed(kernel, forced)
                                                        ? refusal(kernel, problem)
                                                        : "is left out by MOXIE_FORCE=" + forced});
    if (chosen == nullptr && considered.back().refusal.empty()) chosen = &kernel;
  }
  if (chosen != nullptr) return *chosen;
  std::vector<Finding> findings;
  for (const KernelAnswer& answer : considered) {
    findings.push_back({.code = "MOXIE-P002",
                        .message = "no kernel for this problem on " +
                                   std::string(name_of(problem.target)) + ": " + answer.kernel +
                                   " " + answer.refusal});
  }
  throw Error::of(ErrorCode::unsupported, std::move(findings));
}

// A plan that lands on a slow kernel says so, and why no other took it.
void note_fallback(const KernelEntry& kernel, ShardPlan& plan) {
  if (!kernel.fallback) return;
  std::string why;
  for (const KernelAnswer& answer : plan.considered) {
    const bool here = std::ranges::any_of(kernel_catalog(), [&](const KernelEntry& entry) {
      return entry.name == answer.kernel && entry.runs_on(plan.target);
    });
    if (here && !answer.refusal.empty())
      why += (why.empty() ? "" : "; ") + answer.kernel + " " + answer.refusal;
  }
  plan.findings.push_back(
      {.code = "MOXIE-P015",
       .severity = Severity::warning,
       .message = std::string(kernel.name) + " is correct and slow: it is no kernel to serve with",
       .expected = "a kernel made for " + std::string(name_of(plan.target)),
       .got = why.empty() ? "none is in the catalog" : why});
}

// The kernels that run the plan, and the alignment that they ask of the experts' axis.
std::uint64_t choose_kernels(const ModelConfig& config, const PlanOptions& options,
                             ShardPlan& plan) {
  if (plan.engine) {
    plan.kernel = plan.route_kernel = plan.engine->moe;
    plan.considered = engine_answers(engine_problem(plan));
    return std::lcm(engine_align(engine_problem(plan)), scale_group(plan.format));
  }
  const std::vector<std::string> features = cpu_features();
  const std::string forced = forced_kernels();
  const KernelEntry& kernel =
      choose_kernel(with_placement({.target = plan.target,
                                    .format = plan.format,
                                    .act_format = plan.act_format,
                                    .hidden = plan.hidden,
                                    .inter = divide_up(config.inter, plan.tp),
                                    .kernel_align = options.kernel_align.value_or(1),
                                    .cpu_features = &features},
                                   plan.placement, plan.experts, plan.ep),
                    forced, plan.considered);
  plan.kernel = kernel.name;
  plan.route_kernel = kernel.route;
  note_fallback(kernel, plan);
  if (!forced.empty()) {
    plan.findings.push_back({.code = "MOXIE-P026",
                             .severity = Severity::note,
                             .message = "MOXIE_FORCE leaves out all kernels but " + forced,
                             .got = plan.kernel});
  }
  return kernel.inter_multiple;
}

void add_v4_axes(const ModelConfig& config, ShardPlan& plan) {
  if (!config.v4) return;
  const V4Config& v4 = *config.v4;
  plan.widths = v4.cut_widths();
  const std::vector<AxisPlan> axes = plan_v4_axes({.heads = v4.heads,
                                                   .output_groups = v4.output_groups,
                                                   .shared_inter = v4.shared_inter,
                                                   .vocab = v4.vocab,
                                                   .widths = *plan.widths},
                                                  plan.tp);
  plan.axes.insert(plan.axes.end(), axes.begin(), axes.end());
}

void note_empty_ranks(const AxisPlan& axis, ShardPlan& plan) {
  for (unsigned tp_rank = 0; tp_rank < plan.tp; ++tp_rank) {
    if (slice_axis(axis, tp_rank).count > Elems{0}) continue;
    plan.findings.push_back({.code = "MOXIE-P007",
                             .severity = Severity::note,
                             .message = "rank owns no real part of the axis; all it holds is zero",
                             .where = {.rank = tp_rank, .axis = std::string(name_of(axis.axis))}});
  }
}

}  // namespace

void require_batch_invariant(const ShardPlan& plan) {
  if (plan.act_format != ActFormat::nvfp4 || plan.act_scale != ActScale::dynamic) return;
  refuse(ErrorCode::unsupported,
         {.code = "MOXIE-P016",
          .message = "dynamic activation scales follow the whole batch",
          .expected = "a plan in which a token's result does not depend on its batch",
          .got = "act_scale dynamic",
          .hint = "say --act-scale row, warmup or checkpoint"});
}

void require_same_cut(const ShardPlan& main, const ShardPlan& draft) {
  const auto require = [](std::string_view what, const std::string& expected,
                          const std::string& got) {
    if (expected == got) return;
    refuse(ErrorCode::unsupported,
           {.code = "MOXIE-P019",
            .message = "the draft model is not cut as the main model is: " + std::string(what),
            .where = {.axis = std::string(what)},
            .expected = expected,
            .got = got,
            .hint = "give the draft model the main model's plan"});
  };
  require("tp", std::to_string(main.tp), std::to_string(draft.tp));
  require("ep", std::to_string(main.ep), std::to_string(draft.ep));
  for (const Axis axis :
       {Axis::moe_inter, Axis::heads, Axis::output_groups, Axis::shared_inter, Axis::vocab}) {
    const auto text = [&](const ShardPlan& plan) {
      const AxisPlan* found = plan.find(axis);
      if (found == nullptr) return std::string("absent");
      std::string sizes;
      for (const Elems size : {found->original, found->virtual_global, found->local, found->kernel})
        sizes += (sizes.empty() ? "" : ", ") + std::to_string(size.value);
      return sizes;
    };
    require(name_of(axis), text(main), text(draft));
  }
}

ShardPlan make_plan(const MoeModel& model, const PlanOptions& options) {
  check_options(options);
  check_act_options(options);
  const ModelConfig& config = model.config;
  if (options.ep > config.experts) {
    refuse(ErrorCode::unsupported, {.code = "MOXIE-P004",
                                    .message = "more expert-parallel ranks than experts",
                                    .expected = "ep <= " + std::to_string(config.experts),
                                    .got = std::to_string(options.ep)});
  }
  check_placement(options.placement, config.experts, options.ep);
  ShardPlan plan;
  plan.model = config.model_type;
  plan.format = format_of(model, options);
  plan.tp = options.tp;
  plan.ep = options.ep;
  if (options.ep > 1 || options.placement.kind == PlacementKind::file)
    plan.placement = options.placement;
  plan.target = options.target;
  plan.act_format = options.act_format;
  plan.hidden = config.hidden;
  plan.experts = config.experts;
  plan.layers = model.planned_layers();
  plan.gated = config.gated;
  plan.biases = config.biases;
  plan.recast = model.recast;
  check_widths(config, plan.format);
  plan.engine = options.engine;
  const std::uint64_t kernel_align = choose_kernels(config, options, plan);
  if (plan.act_format == ActFormat::nvfp4) {
    plan.act_scale = act_scale_of(options, model, plan.format);
    plan.act_margin = options.act_margin.value_or(kDefaultActMargin);
  }
  if (options.batch_invariant) require_batch_invariant(plan);
  // A common multiple serves the kernel and whoever asked for more.
  const std::uint64_t align = std::lcm(kernel_align, options.kernel_align.value_or(1));
  plan.axes.push_back(
      plan_axis(Elems{config.inter}, plan.tp, Elems{scale_group(plan.format)}, Elems{align}));
  add_v4_axes(config, plan);
  derive_ranks(plan);
  if (plan.engine) require_vetted(plan);
  for (const AxisPlan& axis : plan.axes) note_empty_ranks(axis, plan);
  return plan;
}

}  // namespace moxie
