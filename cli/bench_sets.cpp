// SPDX-License-Identifier: Apache-2.0
// Probes of consecutive seeds, with the preferred experts moved.
#include "cli/bench_sets.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "cli/figures.hpp"

namespace moxie::cli {

namespace {

constexpr std::uint64_t kMostTries = 1000;  // seeds, for one set

[[noreturn]] void refuse(std::string message, std::string expected, std::string got) {
  throw Error(ErrorCode::usage, {.code = "MOXIE-B005",
                                 .message = std::move(message),
                                 .expected = std::move(expected),
                                 .got = std::move(got)});
}

// The given experts in another order, the same on every machine; the others as they are.
std::vector<std::int32_t> permuted(std::uint64_t experts, const RankExperts& moved,
                                   std::uint64_t seed) {
  std::vector<std::int32_t> order(experts);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed);
  for (std::uint64_t left = moved.count(); left > 1; --left)
    std::swap(order[moved.id(left - 1)], order[moved.id(random() % left)]);
  return order;
}

void move_preferred(Probe& probe, const ShardPlan& plan, RoutingKind kind, std::uint64_t seed) {
  if (kind == RoutingKind::uniform) return;
  const bool alone = plan.ranks.size() == 1 && kind != RoutingKind::zipf;
  const RankExperts all(ExpertRange{.first = 0, .end = plan.experts});
  const std::vector<std::int32_t> order =
      permuted(plan.experts, alone ? plan.ranks.front().experts : all, seed);
  for (std::int32_t& id : probe.topk_ids) {
    if (id >= 0) id = order[static_cast<std::size_t>(id)];
  }
}

bool has_slot(const ShardPlan& plan, const Probe& probe) {
  return std::ranges::any_of(probe.topk_ids, [&](std::int32_t id) { return holds(plan, id); });
}

}  // namespace

std::uint64_t default_sets(std::uint64_t tokens) {
  return tokens <= 64 ? 8 : tokens <= 512 ? 4 : 2;
}

BenchSets make_set(const RunArgs& args, const RunSubject& subject) {
  RunProbe made = make_run_probe(args, subject);
  BenchSets sets{.probes = {}, .seeds = {args.seed}, .routing = {}, .findings = {}};
  sets.probes.push_back(std::move(made.probe));
  sets.routing = std::move(made.routing);
  sets.findings = std::move(made.findings);
  return sets;
}

BenchSets make_sets(const RunArgs& args, const RunSubject& subject, std::uint64_t count) {
  if (args.tokens == 0) refuse("a graph of calls without tokens", "at least one token", "0");
  const GivenRouting routing = args.routing.value_or(GivenRouting{});
  if (routing.source == RoutingSource::file && count > 1) {
    refuse("a file holds the routing of one set", "--sets 1, or a routing that is drawn",
           std::to_string(count) + " sets");
  }
  const ShardPlan& plan = subject.plans().front();
  BenchSets sets{.probes = {}, .seeds = {}, .routing = {}, .findings = {}};
  RunArgs of_set = args;
  std::uint64_t tries = 0;
  for (; sets.probes.size() < count; ++of_set.seed) {
    RunProbe made = make_run_probe(of_set, subject);
    const bool first = sets.probes.empty();
    if (!first && routing.source == RoutingSource::drawn)
      move_preferred(made.probe, plan, routing.drawn.kind, of_set.seed);
    if (!has_slot(plan, made.probe)) {
      if (++tries < kMostTries && routing.source != RoutingSource::file) continue;
      refuse("no token goes to an expert of the ranks that are held", "at least one slot in a set",
             "none in " + std::to_string(tries) + " sets");
    }
    sets.probes.push_back(std::move(made.probe));
    sets.seeds.push_back(of_set.seed);
    sets.routing = made.routing;
    if (first) sets.findings = std::move(made.findings);
    tries = 0;
  }
  return sets;
}

}  // namespace moxie::cli
