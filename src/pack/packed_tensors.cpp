// SPDX-License-Identifier: Apache-2.0
// A packed set has no source to ask: what its files must hold follows from config and plan.
#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moxie/pack.hpp"
#include "pack/around_values.hpp"
#include "pack/packed_names.hpp"
#include "pack/packed_set.hpp"
#include "pack/tensor_part.hpp"

namespace moxie {

namespace {

std::string text_of(DType dtype, const Shape& shape) {
  return std::string(name_of(dtype)) + " " + to_string(shape);
}

class TensorCheck {
 public:
  TensorCheck(const PackedFolder& folder, bool deep)
      : set_(open_packed_set(folder.path)), config_(folder.config), deep_(deep) {}

  std::vector<Finding> check(const std::vector<int>& chosen) {
    for (const int layer : layers()) {
      if (!chosen.empty() && std::ranges::find(chosen, layer) == chosen.end()) continue;
      check_file(layer_file_name(layer), layer);
      if (config_.v4 && layer < static_cast<int>(config_.v4->layers + config_.v4->drafts))
        check_tensors(layer_tensors(*config_.v4, static_cast<std::uint64_t>(layer)), layer);
    }
    if (!chosen.empty()) return std::move(findings_);
    const std::string top(kTopFile);
    const bool due = std::ranges::any_of(set_.ranks, [&](const PackedRank& rank) {
      return rank.files.contains(top) || (rank.packed && rank.packed->top);
    });
    if (due) check_file(top, std::nullopt);
    if (due && config_.v4) check_tensors(top_tensors(*config_.v4), std::nullopt);
    return std::move(findings_);
  }

 private:
  // Held by any rank, or packed.
  [[nodiscard]] std::set<int> layers() const {
    std::set<int> layers;
    for (const PackedRank& rank : set_.ranks) {
      if (rank.packed) layers.insert(rank.packed->layers.begin(), rank.packed->layers.end());
      for (const auto& [name, record] : rank.files) {
        if (const auto layer = layer_of_file(name)) layers.insert(*layer);
      }
    }
    return layers;
  }

  void check_file(const std::string& name, std::optional<int> layer) {
    for (const PackedRank& rank : set_.ranks) {
      if (rank.files.contains(name)) continue;
      findings_.push_back(
          {.code = "MOXIE-V004",
           .message = std::string(layer ? "layer" : "file") + " is absent on this rank",
           .where = {.file = (rank.folder / name).string(), .layer = layer, .rank = rank.rank},
           .hint = "pack the rank again"});
    }
  }

  // A layer of experts alone has none of these on any rank.
  void check_tensors(const std::vector<ModelTensor>& listed, std::optional<int> layer) {
    if (!set_.plan.widths) return;
    const bool whole = std::ranges::any_of(listed, [&](const ModelTensor& tensor) {
      return !is_router_tensor(tensor.name) &&
             std::ranges::any_of(set_.ranks, [&](const PackedRank& rank) {
               return rank.checkpoint && rank.checkpoint->find(tensor.name) != nullptr;
             });
    });
    if (!whole) return;
    for (const PackedRank& rank : set_.ranks) {
      if (!rank.checkpoint) continue;
      for (const ModelTensor& tensor : listed) check_tensor(tensor, rank, layer);
      for (std::uint32_t i = 0; i < rank.checkpoint->files().size(); ++i)
        rank.checkpoint->release(i);
    }
  }

  void check_tensor(const ModelTensor& tensor, const PackedRank& rank, std::optional<int> layer) {
    const std::string file = layer ? layer_file_name(*layer) : std::string(kTopFile);
    if (!rank.files.contains(file)) return;  // said already
    const Place where{.file = (rank.folder / file).string(),
                      .tensor = tensor.name,
                      .layer = layer,
                      .rank = rank.rank};
    const Shape shape = part_shape(tensor, set_.plan);
    const TensorInfo* found = rank.checkpoint->find(tensor.name);
    const bool fits = found != nullptr && found->dtype == tensor.dtype && found->shape == shape;
    if (!fits) {
      findings_.push_back(
          {.code = "MOXIE-V004",
           .message = found == nullptr ? "tensor is absent" : "tensor has another type or shape",
           .where = where,
           .expected = text_of(tensor.dtype, shape),
           .got = found == nullptr ? "none" : text_of(found->dtype, found->shape),
           .hint = "pack the rank again"});
      return;
    }
    if (!deep_) return;
    auto bytes = rank.checkpoint->bytes(*found);
    if (tensor.cut && tensor.cut->tail == Tail::minus_infinity) {
      const unsigned tp_rank = set_.plan.ranks[rank.rank].tp_rank;
      bytes = bytes.first(part_of(tensor, set_.plan, tp_rank).real_bytes());
    }
    const V4Config& v4 = *config_.v4;
    const bool draft = layer && static_cast<std::uint64_t>(*layer) >= v4.layers;
    for (Finding& finding : check_around_values(
             *found, {.where = where, .experts = draft ? v4.draft_experts : v4.experts}, bytes))
      findings_.push_back(std::move(finding));
  }

  PackedSet set_;
  const ModelConfig& config_;
  bool deep_;
  std::vector<Finding> findings_{};
};

}  // namespace

std::vector<Finding> check_packed_tensors(const PackedFolder& folder, bool deep,
                                          const std::vector<int>& layers) {
  return TensorCheck(folder, deep).check(layers);
}

}  // namespace moxie
