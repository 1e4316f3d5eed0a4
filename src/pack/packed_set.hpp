// SPDX-License-Identifier: Apache-2.0
// A folder written by pack_to_folder, opened for reading.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "moxie/checkpoint.hpp"
#include "moxie/pack.hpp"
#include "moxie/plan.hpp"

namespace moxie {

struct PackedFileRecord {
  std::uint64_t bytes = 0;
  std::string checksum;
};

// What a rank was given, as files.json states it; its files may have been lost since.
struct PackedScope {
  std::vector<int> layers;
  bool top = false;  // tensors that belong to no layer
};

struct PackedRank {
  unsigned rank = 0;
  std::filesystem::path folder;
  std::optional<Checkpoint> checkpoint;           // nothing when a strict reader refuses the files
  std::vector<Finding> problems;                  // why it does
  std::string plan_hash;                          // as files.json states it
  std::map<std::string, PackedFileRecord> files;  // by name, as files.json states them
  std::optional<PackedScope> packed{};            // nothing where files.json does not say
};

struct PackedSet {
  std::filesystem::path folder;
  ShardPlan plan;
  FileLayout layout = FileLayout::logical;
  std::string plan_hash;          // as moxie-plan.json states it
  std::string actual_plan_hash;   // of its text
  std::vector<PackedRank> ranks;  // those present, ascending
};

// True when the folder holds moxie-plan.json.
bool is_packed_set(const std::filesystem::path& folder);

// Reads plan, file lists and headers; no tensor byte. Error(input) for a folder that is no packed
// set: without a usable plan, or with a rank that has no usable files.json.
PackedSet open_packed_set(const std::filesystem::path& folder);

// xxh3_128 of a plan document's text without its plan_hash.
std::string plan_hash_of(Json document);

}  // namespace moxie
