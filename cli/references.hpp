// SPDX-License-Identifier: Apache-2.0
// References made once for all plans that share them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "cli/console.hpp"
#include "cli/run_subject.hpp"
#include "moxie/verify.hpp"

namespace moxie::cli {

// References by the columns at which activation groups begin; plans that agree there share one.
class References {
 public:
  struct Entry {
    LayerReference reference;
    double seconds = 0;
  };

  References(const RunSubject& subject, const Probe& probe, const Console& console)
      : subject_(subject), probe_(probe), console_(console) {}

  const Entry& of(const ShardPlan& plan, std::span<const PackedExperts> experts) {
    const auto [at, made_now] = entries_.try_emplace(group_boundaries(plan));
    if (!made_now) return at->second;
    const Stopwatch watch;
    at->second.reference = subject_.reference(plan, probe_, experts);
    at->second.seconds = watch.seconds();
    if (at->second.seconds >= 0.5)
      console_.say(fmt::format("reference: {:.1f} s", at->second.seconds));
    return at->second;
  }

 private:
  const RunSubject& subject_;
  const Probe& probe_;
  const Console& console_;
  std::map<std::vector<std::uint64_t>, Entry> entries_;
};

}  // namespace moxie::cli
