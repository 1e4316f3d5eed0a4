// SPDX-License-Identifier: Apache-2.0
// Findings of a layer: a few wrong tensors by name, absent shards, and how many are missing.
#include "model/tensor_requests.hpp"

#include <utility>

namespace moxie {

namespace {

constexpr std::size_t kMaxListed = 3;  // names listed in one finding
constexpr std::size_t kMaxWrong = 8;   // findings about wrong types and shapes per layer

}  // namespace

const TensorInfo* TensorRequests::require(const std::string& name) {
  ++expected_;
  const TensorInfo* tensor = checkpoint_.find(name);
  if (tensor != nullptr) {
    ++found_;
    return tensor;
  }
  const std::string_view shard = checkpoint_.absent_shard_of(name);
  if (!shard.empty()) {
    ++absent_[std::string(shard)];
  } else {
    if (missing_ < kMaxListed) missing_names_ += (missing_names_.empty() ? "" : ", ") + name;
    if (missing_++ == 0) first_missing_expert_ = expert_;
  }
  return nullptr;
}

void TensorRequests::wrong(const TensorInfo& tensor, const std::string& expected) {
  if (++wrong_ > kMaxWrong) return;
  problems_.push_back({.code = "MOXIE-M005",
                       .message = "expert tensor has another type or shape than its format needs",
                       .where = {.file = checkpoint_.files()[tensor.file].path.string(),
                                 .tensor = tensor.name,
                                 .layer = request_.layer,
                                 .expert = expert_},
                       .expected = expected,
                       .got = std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape)});
}

void TensorRequests::add_unknown(std::string leaves) {
  problems_.push_back({.code = "MOXIE-M013",
                       .message = "experts have tensors that the dialect " +
                                  std::string(request_.dialect->name) + " does not know",
                       .where = {.file = checkpoint_.path().string(), .layer = request_.layer},
                       .got = std::move(leaves)});
}

std::vector<Finding> TensorRequests::take_problems(const ExpertNames& seen) {
  if (wrong_ > kMaxWrong) {
    problems_.push_back(
        {.code = "MOXIE-M005",
         .message = std::to_string(wrong_ - kMaxWrong) + " more tensors of a wrong type or shape",
         .where = {.layer = request_.layer}});
  }
  for (const auto& [shard, count] : absent_) {
    problems_.push_back(
        {.code = "MOXIE-C010",
         .message = "shard is not on disk; " + std::to_string(count) +
                    " tensors of the layer depend on it",
         .where = {.file = (checkpoint_.path() / shard).string(), .layer = request_.layer},
         .hint = "download the shard"});
  }
  if (missing_ > 0) {
    std::string unmatched;
    for (const std::string_view name : seen.unmatched)
      unmatched += (unmatched.empty() ? "" : ", ") + std::string(name);
    problems_.push_back(
        {.code = "MOXIE-M004",
         .message = std::to_string(found_) + " of " + std::to_string(expected_) +
                    " expected expert tensors found; first missing: " + missing_names_,
         .where = {.file = checkpoint_.path().string(),
                   .layer = request_.layer,
                   .expert = first_missing_expert_},
         .hint = unmatched.empty() ? "" : "names seen that match no dialect: " + unmatched});
  }
  return std::move(problems_);
}

}  // namespace moxie
