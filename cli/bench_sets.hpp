// SPDX-License-Identifier: Apache-2.0
// The inputs of one point: independent routing sets, so that each call reads its experts from
// memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/run_subject.hpp"

namespace moxie::cli {

struct BenchSets {
  std::vector<Probe> probes;         // of the same number of tokens
  std::vector<std::uint64_t> seeds;  // of each
  std::string routing;
  std::vector<Finding> findings;
};

// As many as keep a graph longer than its launch and its experts larger than a cache.
std::uint64_t default_sets(std::uint64_t tokens);

// The one set of calls that are made eagerly on a GPU: as make_run_probe() makes it.
BenchSets make_set(const RunArgs& args, const RunSubject& subject);

// Probes from the seeds args.seed, args.seed + 1, …, leaving out those without a slot for a rank
// that is held. Drawn routings that prefer experts prefer others in every set but the first: zipf
// under a permutation of all experts, one and hot under one of the experts that are held. Errors:
// as make_run_probe(); Error(usage) MOXIE-B005 for no tokens, for several sets of a routing that a
// file gives, and when no seed gives a rank a slot.
BenchSets make_sets(const RunArgs& args, const RunSubject& subject, std::uint64_t count);

}  // namespace moxie::cli
