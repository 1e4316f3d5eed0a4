// SPDX-License-Identifier: Apache-2.0
// Which files a packed set gets, and what goes into them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moxie/model.hpp"
#include "moxie/pack.hpp"
#include "moxie/plan.hpp"
#include "pack/tensor_part.hpp"
#include "pack/whole_model.hpp"

namespace moxie {

// One file that every rank gets, of a layer or of what belongs to none.
struct PackedFile {
  std::string name;
  const LayerExperts* layer = nullptr;
  ShardPlan plan;  // as the layer follows it
  std::vector<SourceTensor> tensors;

  // Experts of the layer that a rank holds, in the order of its file.
  [[nodiscard]] RankExperts experts_of(unsigned rank) const {
    return layer != nullptr ? plan.ranks[rank].experts : RankExperts{};
  }
  // Bytes of one rank's file, without its header and what pads experts.
  [[nodiscard]] std::uint64_t bytes_of(unsigned rank) const;
};

struct PackedFiles {
  std::vector<PackedFile> files;
  std::vector<int> layers;
  std::vector<Finding> findings;  // notes and warnings
};

// Checks all that headers tell. Errors: Error(input) MOXIE-M011 without a layer to pack, a layer's
// problems, MOXIE-K013 and MOXIE-C010 for tensors of a whole layer, all of them, MOXIE-K015 for a
// model whose experts alone would be packed unasked, MOXIE-K016 for draft blocks beyond the config;
// Error(unsupported) MOXIE-M009 for a layer that does not fit the plan.
PackedFiles choose_files(const MoeModel& model, const ShardPlan& plan, const PackOptions& options);

// The source tensors that these ranks' parts come from, each once.
std::vector<const TensorInfo*> sources_of(const std::vector<PackedFile>& files,
                                          const std::vector<unsigned>& ranks);

}  // namespace moxie
