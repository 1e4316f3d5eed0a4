// SPDX-License-Identifier: Apache-2.0
// What a run found, as a document and as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/figures.hpp"
#include "cli/run_subject.hpp"
#include "moxie/measure.hpp"

namespace moxie::cli {

// One plan's run.
struct PlanRun {
  const ShardPlan* plan = nullptr;
  std::vector<double> samples_us;
  std::vector<Trace> traces;  // one per sample
  std::optional<CheckFigures> check;
  ActStats act_stats{};  // of one call
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
