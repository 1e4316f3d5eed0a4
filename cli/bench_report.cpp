// SPDX-License-Identifier: Apache-2.0
// One line or one row a point, and the comparison with an earlier run.
#include "cli/bench_report.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "cli/open_file.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

// Records of an earlier run by identity.
std::map<std::string, double> read_baseline(const std::filesystem::path& path) {
  std::ifstream stream = open_file(path);
  if (!stream) {
    throw Error(ErrorCode::usage, {.code = "MOXIE-B002",
                                   .message = "the baseline can not be read",
                                   .where = {.file = path.string()}});
  }
  std::map<std::string, double> medians;
  for (std::string line; std::getline(stream, line);) {
    if (line.empty()) continue;
    const Json record = Json::parse(line, path.string());
    const Json* schema = record.find("schema");
    const bool ours = schema != nullptr && schema->as_string() == "moxie.bench/1";
    if (const double median = median_us_of(record); ours && median > 0)
      medians[identity_of(record)] = median;
  }
  if (medians.empty()) {
    throw Error(ErrorCode::input, {.code = "MOXIE-B002",
                                   .message = "the baseline holds no record",
                                   .where = {.file = path.string()},
                                   .expected = "lines of moxie bench --json",
                                   .got = "none with a time"});
  }
  return medians;
}

}  // namespace

BenchReport::BenchReport(const BenchArgs& args, const BenchSetting& setting, const Console& console)
    : args_(args), setting_(setting), console_(console) {
  if (args.baseline) baseline_ = read_baseline(*args.baseline);
}

void BenchReport::print_table() const {
  if (table_) console_.print_text(table_->text(setting_));
}

void BenchReport::add(const BenchPoint& point) {
  Json record = record_of(setting_, point);
  const auto name =
      fmt::format("{} tokens, tp {}, {}", point.tokens, point.whole->tp, name_of(point.mode));
  std::vector<Finding> findings = point.findings;
  if (point.passes_differ_pct > kMostPassesDiffer) {
    findings.push_back({.code = "MOXIE-B003",
                        .severity = Severity::warning,
                        .message = name + ": two passes differ, the machine was not quiet",
                        .expected = fmt::format("at most {} %", kMostPassesDiffer),
                        .got = fmt::format("{:.1f} %", point.passes_differ_pct)});
  }
  if (point.paired && !point.paired->quiet) {
    findings.push_back({.code = "MOXIE-B008",
                        .severity = Severity::warning,
                        .message = name + ": threads waited for a core in most calls; the "
                                          "quietest ones count",
                        .expected = fmt::format("less than {} % of a call", 100 * kMostCoreWait),
                        .got = fmt::format("{} samples left out", point.paired->rejected_samples)});
  }
  const bool slower = compare(record, name, findings);
  const bool ok = point.check.passed && !slower;
  passed_ = passed_ && ok;
  record.set("ok", ok).set("findings", to_json(findings));
  console_.print_line(record);
  console_.talk(findings);
  if (!table_) table_.emplace(setting_.way, setting_.peer, setting_.ceilings);
  table_->add(point);
}

// Whether the record is slower than its baseline by more than is allowed.
bool BenchReport::compare(const Json& record, const std::string& name,
                          std::vector<Finding>& findings) {
  const auto known = baseline_.find(identity_of(record));
  const double median = median_us_of(record);
  if (known == baseline_.end() && args_.baseline && median > 0) {
    findings.push_back({.code = "MOXIE-B002",
                        .severity = Severity::warning,
                        .message = name + ": the baseline has no record of this point",
                        .where = {.file = args_.baseline->string()}});
  }
  if (known == baseline_.end() || !(median > 0)) return false;
  const double slower_pct = 100 * (median / known->second - 1);
  if (slower_pct <= args_.fail_over_pct) return false;
  findings.push_back({.code = "MOXIE-B004",
                      .message = name + ": slower than the baseline",
                      .expected = fmt::format("{:.1f} us and at most {} % more", known->second,
                                              args_.fail_over_pct),
                      .got = fmt::format("{:.1f} us, {:+.1f} %", median, slower_pct)});
  return true;
}

}  // namespace moxie::cli
