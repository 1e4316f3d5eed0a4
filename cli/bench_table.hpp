// SPDX-License-Identifier: Apache-2.0
// The points of one command as a table, and what it says above it.
#pragma once

#include <optional>
#include <string>

#include "cli/bench_record.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

class BenchTable {
 public:
  // Calls are held against `ceilings`.
  BenchTable(BenchWay way, std::optional<BenchPeer> peer, const Ceilings& ceilings);

  void add(const BenchPoint& point);
  // Problem, method, ceilings and the table; the last point's plan speaks for all.
  [[nodiscard]] std::string text(const BenchSetting& setting) const;

 private:
  [[nodiscard]] std::string method(const BenchSetting& setting) const;

  BenchWay way_;
  std::optional<BenchPeer> peer_;
  Ceilings ceilings_;
  Table table_;
  const ShardPlan* last_ = nullptr;
};

}  // namespace moxie::cli
