// SPDX-License-Identifier: Apache-2.0
// The byte proof: what a packed set holds, joined over its ranks, is what the checkpoint holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "moxie/model.hpp"
#include "moxie/status.hpp"

namespace moxie {

struct VerifyReport {
  bool passed = false;
  std::string plan_hash;
  unsigned ranks = 0;
  std::vector<int> layers;
  std::uint64_t tensors = 0;     // source tensors compared
  std::uint64_t real_bytes = 0;  // bytes found equal to the source
  std::uint64_t tail_bytes = 0;  // bytes found zero
  std::uint64_t files = 0;
  std::vector<Finding>
      findings;  // errors name tensor, rank, unit and offset of the first difference
};

// Checks a folder written by pack_to_folder against its source: the real parts of all ranks, joined
// in rank order, cover and equal every source tensor; every tail is zero; file sizes, checksums and
// the plan's hash hold. When everything passes writes DIR/moxie-proof.json; when not, removes an
// old one. Errors: Error(input) when DIR is no packed set;
// Error(verdict) MOXIE-V007 when it is one of another model.
MOXIE_API VerifyReport verify_packed(const std::filesystem::path& dir, const MoeModel& source,
                                     const Progress& progress = {});

}  // namespace moxie
