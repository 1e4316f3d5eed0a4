// SPDX-License-Identifier: Apache-2.0
// Figures that run and bench state alike: work counted from the problem, rates, checks and stages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cli/references.hpp"
#include "moxie/execution.hpp"
#include "moxie/json.hpp"
#include "moxie/measure.hpp"
#include "moxie/model.hpp"
#include "moxie/plan.hpp"
#include "moxie/probe.hpp"
#include "moxie/verify.hpp"

namespace moxie::cli {

// Counted from the problem: real parts only, of experts that a token goes to and that a rank of the
// plan holds. The same for every tp.
struct RunWork {
  std::uint64_t slots = 0;           // that are not masked
  std::uint64_t active_experts = 0;  // with at least one slot; once for every group it has one on
  std::uint64_t flops = 0;           // two per weight and slot
  std::uint64_t bytes_weights = 0;   // codes and block scales
  std::uint64_t bytes_acts = 0;      // x read once, y written once
};
// `output` is the type in which y is written.
RunWork count_work(const ShardPlan& plan, const Probe& probe, DType output);
// Whether a rank of the plan holds the expert.
bool holds(const ShardPlan& plan, std::int32_t expert);
// Slots that each rank of the plan computes.
std::vector<std::uint64_t> slots_of_ranks(const ShardPlan& plan, const Probe& probe);

// Rates of one call; 0 where nothing was measured.
struct Rates {
  double tokens_per_s = 0;
  double tflops = 0;
  double gbps = 0;
  double percent = 0;  // of what the nearer of the two ceilings allows
  bool reads = false;  // which is the read ceiling
};
// What this machine reaches now with so many threads (0: all); NaN for a GPU, where none is
// measured.
Ceilings ceilings_of(Target target, unsigned threads);
// "12.3", and "-" for NaN.
std::string percent_text(double percent);
std::string ceilings_text(const Ceilings& ceilings);

// What one plan's calls are held against.
struct PlanCeiling {
  double read_gbps = 0;
  double tflops = 0;
};
// With the rate of the products that this machine would make of these activations: bf16 by
// AVX512-BF16, int8 by VNNI or else by AVX2, int8x2 at half of that because it makes every product
// twice, everything else in fp32.
PlanCeiling ceiling_of(const Ceilings& ceilings, ActFormat act_format);

Rates rates_of(const RunWork& work, const PlanCeiling& ceiling, std::uint64_t tokens,
               double median_us);

double stage_median_us(std::span<const Trace> traces, Stage stage);

// What a check found, without its arrays.
struct CheckFigures {
  bool passed = false;
  LayerCheck whole;  // from x to y; without the bound of every element
  bool gate_up_passed = false;
  std::uint64_t acts = 0;          // values between the products
  std::uint64_t acts_outside = 0;  // of them not what x and the weights allow
  bool down_passed = false;
  double down_max_err_over_bound = 0;  // from the engine's own values between the products
  double down_relative_l2 = 0;
  std::uint64_t clamped = 0;  // gates and ups that reached the activation limit
  double reference_s = 0;
  std::uint64_t tokens = 0;  // that were checked
};
CheckFigures figures_of(const CheckedRun& checked);

// Infinity has no place in JSON.
Json number_or_null(double value);
Json check_json(const CheckFigures& figures);
// False for calls on a GPU, whose stages are not timed.
bool has_stage_times(std::span<const Trace> traces);
Json stages_json(std::span<const Trace> traces);
Json work_json(const RunWork& work);
Json ceiling_json(const PlanCeiling& ceiling, const Rates& rates);
// `routed`: whether the model's router ran.
Json kernels_json(const ShardPlan& plan, bool routed);

}  // namespace moxie::cli
