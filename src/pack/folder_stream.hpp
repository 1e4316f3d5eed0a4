// SPDX-License-Identifier: Apache-2.0
// Streams a source into the files of all ranks: reads, packs and writes at the same time.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "moxie/model.hpp"
#include "moxie/pack.hpp"
#include "pack/pack_steps.hpp"
#include "pack/rank_files.hpp"
#include "pack/read_ahead.hpp"
#include "pack/write_behind.hpp"

namespace moxie {

// How memory is divided between buffers and as many windows of the source.
struct StreamBudget {
  StepLimits step;
  std::size_t buffers = 1;
};

// Half of the memory; the other half is slack for what lies around what is read, headers and lists.
// Two of each where they fit. Error(usage) MOXIE-K004 when even one piece and its source do not.
StreamBudget budget_of(const MoeModel& model, const std::vector<PackedFile>& files,
                       const PackOptions& options);

class FolderStream {
 public:
  // `advance` is told on the calling thread how many bytes of files were packed.
  FolderStream(const MoeModel& model, const std::vector<PackedFile>& files,
               const PackOptions& options, std::function<void(std::uint64_t)> advance);

  // Writes every file of these ranks into their folders. By file, then by rank.
  std::vector<std::vector<WrittenFile>> write(const std::vector<unsigned>& ranks,
                                              const std::vector<std::filesystem::path>& folders);

 private:
  std::optional<NextStep> next_step(const std::vector<unsigned>& ranks);
  void pack(const Step& step, const SourceWindow& window, const RankFiles& files,
            std::span<std::byte> buffer);

  const MoeModel& model_;
  const std::vector<PackedFile>& files_;
  const PackOptions& options_;
  std::function<void(std::uint64_t)> advance_;
  StreamBudget budget_;
  std::size_t next_file_ = 0;
  std::deque<Step> steps_;  // of the file before next_file_, not yet read
};

}  // namespace moxie
