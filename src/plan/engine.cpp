// SPDX-License-Identifier: Apache-2.0
// A padded plan needs a combination that was verified as a whole; without padding an engine sees
// the model as it is published.
#include "plan/engine.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace moxie {

namespace {

bool is_padded(const AxisPlan& axis) { return axis.virtual_global != axis.original; }

std::string padded_axes(const ShardPlan& plan) {
  std::string names;
  for (const AxisPlan& axis : plan.axes) {
    if (is_padded(axis)) names += (names.empty() ? "" : ", ") + std::string(name_of(axis.axis));
  }
  return names;
}

std::string text_of(const std::vector<TupleMismatch>& differences) {
  std::string text;
  for (const TupleMismatch& each : differences) {
    text += (text.empty() ? "" : "; ") + std::string(each.element) + " is " + each.got + ", not " +
            each.expected;
  }
  return text;
}

}  // namespace

EngineProblem engine_problem(const ShardPlan& plan) {
  return {.model_type = plan.model,
          .target = plan.target,
          .attention = plan.engine->attention,
          .moe = plan.engine->moe,
          .tp = plan.tp,
          .ep = plan.ep};
}

std::uint64_t engine_align(const EngineProblem& problem) {
  for (const VettedTuple& tuple : vetted_tuples()) {
    if (mismatches(tuple, problem).empty()) return tuple.kernel_align;
  }
  return 1;
}

std::vector<KernelAnswer> engine_answers(const EngineProblem& problem) {
  std::vector<KernelAnswer> answers;
  for (const VettedTuple& tuple : vetted_tuples())
    answers.push_back({to_string(tuple), text_of(mismatches(tuple, problem))});
  return answers;
}

void require_vetted(const ShardPlan& plan) {
  const EngineProblem problem = engine_problem(plan);
  if (fuses_expert_parallelism(problem.moe)) {
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-P018",
                 .message = "the MoE backend fuses expert parallelism: it hands out experts by id "
                            "over all ranks and can not take a plan's cut",
                 .expected = "a MoE backend that runs one rank's experts",
                 .got = problem.moe});
  }
  if (plan.identity) return;
  std::vector<TupleMismatch> nearest;
  for (const VettedTuple& tuple : vetted_tuples()) {
    std::vector<TupleMismatch> differences = mismatches(tuple, problem);
    if (differences.empty()) return;
    if (nearest.empty() || differences.size() < nearest.size()) nearest = std::move(differences);
  }
  std::vector<Finding> findings;
  for (const TupleMismatch& difference : nearest) {
    const bool of_target = difference.element == "device capability";
    findings.push_back(
        {.code = "MOXIE-P017",
         .message = "padded axes (" + padded_axes(plan) +
                    ") with a combination that was not verified: " +
                    std::string(difference.element) + " " + difference.got +
                    (of_target ? ", of --target " + std::string(name_of(problem.target)) : ""),
         .expected = std::string(difference.element) + " " + difference.expected,
         .got = difference.got,
         .hint = std::string(of_target ? "say --target of the engine's device"
                                       : "use the vetted combination") +
                 ", or a tp that divides every axis; --why with such a tp lists what is vetted"});
  }
  throw Error::of(ErrorCode::unsupported, std::move(findings));
}

}  // namespace moxie
