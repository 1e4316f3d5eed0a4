// SPDX-License-Identifier: Apache-2.0
// What becomes of a measured point: its record, its findings, its row, and whether it is good
// enough.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_record.hpp"
#include "cli/bench_table.hpp"
#include "cli/console.hpp"

namespace moxie::cli {

class BenchReport {
 public:
  // Reads the baseline. The setting, and what it points to, is looked at when points come. Errors:
  // MOXIE-B002 for a baseline that can not be read (usage) or holds no record (input).
  BenchReport(const BenchArgs& args, const BenchSetting& setting, const Console& console);

  void add(const BenchPoint& point);
  void print_table() const;
  // Every check passed, and no point was slower than its baseline.
  [[nodiscard]] bool passed() const { return passed_; }

 private:
  bool compare(const Json& record, const std::string& name, std::vector<Finding>& findings);

  const BenchArgs& args_;
  const BenchSetting& setting_;
  const Console& console_;
  std::map<std::string, double> baseline_;
  std::optional<BenchTable> table_;
  bool passed_ = true;
};

}  // namespace moxie::cli
