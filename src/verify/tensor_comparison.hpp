// SPDX-License-Identifier: Apache-2.0
// The byte proof of the tensors around the routed experts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "moxie/model.hpp"
#include "pack/packed_set.hpp"
#include "pack/whole_model.hpp"
#include "verify/tally.hpp"

namespace moxie {

// A packed file by name, and its layer where it has one.
struct FilePlace {
  std::string name;
  std::optional<int> layer;
};

// Holds these tensors of a file on all ranks against the source: real parts joined in rank order
// over each group of ranks that share the axes, tails, and whole copies. As with experts a part's
// place follows from the counts before it. `release` is called each time that many pages have been
// touched that they should go. Error(input) MOXIE-K003 for a bad scale in the source.
Tally compare_tensors(const PackedSet& set, const MoeModel& source, const FilePlace& file,
                      const std::vector<SourceTensor>& tensors,
                      const std::function<void(std::uint64_t bytes)>& release);

}  // namespace moxie
