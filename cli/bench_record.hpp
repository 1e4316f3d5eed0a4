// SPDX-License-Identifier: Apache-2.0
// One measured point and its record, moxie.bench/1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/figures.hpp"

namespace moxie::cli {

// Cold: the caches were overwritten before every call. Warm: calls back to back.
enum class BenchMode : std::uint8_t { cold, warm };
std::string_view name_of(BenchMode mode);

// A word as a shell reads it back.
std::string shell_word(const std::string& word);

// What all points of one command share.
struct BenchSetting {
  std::string command;  // as typed
  std::string model;    // the problem's name
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> kernel_align;  // as given
  unsigned threads = 0;                       // as given; 0: all
  unsigned threads_used = 1;
  Ceilings ceilings;
  Json build;
  Json host;
};

struct BenchPoint {
  const ShardPlan* plan = nullptr;
  std::uint64_t tokens = 0;
  std::uint64_t top_k = 0;
  std::string routing;
  std::vector<std::uint64_t> rank_slots;
  RunWork work;
  CheckFigures check;
  std::vector<Finding> findings;  // of the check
  BenchMode mode = BenchMode::cold;
  std::vector<double> samples_us;  // empty when the check failed
  double passes_differ_pct = 0;    // medians of the two halves of the samples
  std::vector<Trace> traces;
};

// Above this the machine was not quiet and the point says little.
inline constexpr double kMostPassesDiffer = 5.0;

Json record_of(const BenchSetting& setting, const BenchPoint& point);

// What makes two records comparable: problem, kernel, width, threads and mode, as one text.
std::string identity_of(const Json& record);
double median_us_of(const Json& record);

}  // namespace moxie::cli
