// SPDX-License-Identifier: Apache-2.0
// moxie bench --load: how fast a layer gets to where it computes, and what memory that takes.
#pragma once

#include <cstdint>

#include "cli/bench_record.hpp"
#include "cli/run_subject.hpp"

namespace moxie::cli {

// One record for each plan. The first load reads the files into the page cache and is not counted;
// the next is watched for its memory, the next has to lock its own staging, and `samples` more have
// a staging that is kept.
class LoadBench {
 public:
  LoadBench(const RunSubject& subject, const BenchSetting& setting, const Console& console)
      : subject_(subject), setting_(setting), console_(console) {}

  void run(std::uint64_t samples) const;

 private:
  const RunSubject& subject_;
  const BenchSetting& setting_;
  const Console& console_;
};

}  // namespace moxie::cli
