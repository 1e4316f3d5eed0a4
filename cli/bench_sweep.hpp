// SPDX-License-Identifier: Apache-2.0
// moxie bench --sweep act-margin: what the margin of a warm-up costs, and what it saves.
#pragma once

#include <vector>

#include "cli/bench_record.hpp"
#include "cli/run_subject.hpp"

namespace moxie::cli {

// For every plan and margin: a warm-up on one random sample, then calls on other samples, of the
// same size and grown; one record for each margin and growth. `args` gives the number of tokens,
// the routing and the first sample's seed.
class ActMarginSweep {
 public:
  ActMarginSweep(const RunSubject& subject, const RunArgs& args, const BenchSetting& setting,
                 const Console& console)
      : subject_(subject), args_(args), setting_(setting), console_(console) {}

  void run(const std::vector<std::uint64_t>& margins) const;

 private:
  [[nodiscard]] Probe sample(std::uint64_t number) const;

  const RunSubject& subject_;
  const RunArgs& args_;
  const BenchSetting& setting_;
  const Console& console_;
};

}  // namespace moxie::cli
