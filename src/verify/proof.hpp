// SPDX-License-Identifier: Apache-2.0
// moxie-proof.json: says that a packed set was proven, and which files that was.
#pragma once

#include <filesystem>

#include "pack/packed_set.hpp"

namespace moxie {

void write_proof(const PackedSet& set);
// Removes the proof of a packed set; leaves other folders alone.
void remove_proof(const std::filesystem::path& folder);

}  // namespace moxie
