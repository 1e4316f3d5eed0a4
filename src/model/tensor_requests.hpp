// SPDX-License-Identifier: Apache-2.0
// Asks a checkpoint for the tensors that a layer should have, and collects what is wrong with them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/expert_names.hpp"
#include "model/layer_reader.hpp"

namespace moxie {

class TensorRequests {
 public:
  TensorRequests(const Checkpoint& checkpoint, const LayerRequest& request)
      : checkpoint_(checkpoint), request_(request), problems_(request.problems) {}

  // The expert whose tensors are asked for from now on.
  void begin_expert(std::uint64_t expert) { expert_ = expert; }

  // The tensor, or nullptr after noting that it is missing.
  const TensorInfo* require(const std::string& name);
  // The tensor, or nullptr: whether it is needed is another's question.
  [[nodiscard]] const TensorInfo* find(const std::string& name) const {
    return checkpoint_.find(name);
  }
  // The tensor has another type or shape than `expected`.
  void wrong(const TensorInfo& tensor, const std::string& expected);

  // A tensor that is not understood may change what the others mean (a bias, a scale of the input);
  // `is_known` tells for a leaf of the group. Only where nothing else is wrong.
  template <class IsKnown>
  void report_unknown(const IsKnown& is_known) {
    if (request_.group == nullptr || has_problems()) return;
    std::string unknown;
    for (const auto& [leaf, dtype] : request_.group->leaves) {
      if (!is_known(leaf)) unknown += (unknown.empty() ? "" : ", ") + leaf;
    }
    if (!unknown.empty()) add_unknown(std::move(unknown));
  }

  // What was wrong, missing tensors last.
  std::vector<Finding> take_problems(const ExpertNames& seen);

 private:
  [[nodiscard]] bool has_problems() const {
    return !problems_.empty() || missing_ > 0 || !absent_.empty();
  }
  void add_unknown(std::string leaves);

  const Checkpoint& checkpoint_;
  const LayerRequest& request_;
  std::uint64_t expert_ = 0;
  std::uint64_t expected_ = 0;
  std::uint64_t found_ = 0;
  std::uint64_t missing_ = 0;
  std::uint64_t wrong_ = 0;
  std::uint64_t first_missing_expert_ = 0;
  std::string missing_names_;
  std::map<std::string, std::uint64_t> absent_;  // tensors by shard that is not on disk
  std::vector<Finding> problems_;
};

}  // namespace moxie
