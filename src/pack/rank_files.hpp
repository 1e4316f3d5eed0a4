// SPDX-License-Identifier: Apache-2.0
// One packed file of all ranks while it is filled and written.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/safetensors_writer.hpp"
#include "moxie/model.hpp"
#include "moxie/pack.hpp"
#include "pack/logical_tensor.hpp"
#include "pack/pack_steps.hpp"
#include "pack/source_window.hpp"

namespace moxie {

// The file of one rank as files.json states it.
struct WrittenFile {
  std::uint64_t bytes = 0;
  std::string checksum;
};

class RankFiles {
 public:
  // Begins the file in each rank's folder. What it refers to must outlive it. `direct_bytes` as of
  // StagedFile, of each rank.
  RankFiles(const MoeModel& model, const PackedFile& file, FileLayout layout,
            const std::vector<unsigned>& ranks, const std::vector<std::filesystem::path>& folders,
            std::size_t direct_bytes);

  // Packs a piece into its place in the buffer, from a window that holds its sources. Safe for
  // several pieces at once. Error(input) for a scale or a scalar that no reader may use.
  void fill(const Piece& piece, const SourceWindow& window, std::span<std::byte> buffer) const;
  // What a piece adds to the files of all ranks.
  [[nodiscard]] std::uint64_t file_bytes(const Piece& piece) const;
  // Appends what was filled, ranks in parallel.
  void write(const std::vector<Piece>& pieces, std::span<const std::byte> buffer);
  // Makes the files durable and returns them, by rank.
  std::vector<WrittenFile> commit();

 private:
  void list_logical();
  [[nodiscard]] std::vector<TensorEntry> entries_of(unsigned rank) const;
  void write_piece(const Piece& piece, std::span<const std::byte> bytes,
                   SafetensorsWriter& writer) const;

  const MoeModel& model_;
  const PackedFile& file_;
  ShardPlan plan_;  // under which experts are packed
  FileLayout layout_;
  const std::vector<unsigned>& ranks_;
  std::vector<std::vector<LogicalTensor>> logical_;  // by expert
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
};

}  // namespace moxie
