// SPDX-License-Identifier: Apache-2.0
// What a run found, as a document and as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/run_subject.hpp"
#include "moxie/measure.hpp"

namespace moxie::cli {

// Counted from the problem: real parts only, of experts that a token goes to. The same for every
// plan.
struct RunWork {
  std::uint64_t slots = 0;           // that are not masked
  std::uint64_t active_experts = 0;  // with at least one slot
  std::uint64_t flops = 0;           // two per weight and slot
  std::uint64_t bytes_weights = 0;   // codes and block scales
  std::uint64_t bytes_acts = 0;      // x read once, y written once
};
RunWork count_work(const ModelConfig& config, BlockFormat format, const Probe& probe);
// Slots that each rank of the plan computes.
std::vector<std::uint64_t> slots_of_ranks(const ShardPlan& plan, const Probe& probe);

// One plan's run.
struct PlanRun {
  const ShardPlan* plan = nullptr;
  std::vector<double> samples_us;
  std::vector<Trace> traces;  // one per sample
  std::optional<LayerCheck> check;
  double reference_s = 0;  // of making the reference; shared by plans with the same one
};

struct RunReport {
  std::string path;
  const RunSubject* subject = nullptr;
  const RunProbe* probe = nullptr;
  std::uint64_t seed = 0;
  bool trace = false;
  RunWork work;
  Ceilings ceilings;
  std::vector<PlanRun> runs;
  std::vector<Finding> findings;

  [[nodiscard]] bool passed() const;
};

// Rates of a run above what this machine reaches, as warnings.
std::vector<Finding> rate_findings(const RunReport& report, const PlanRun& run);

Json document_of(const RunReport& report);
std::string text_of(const RunReport& report, const Console& console);

}  // namespace moxie::cli
