// SPDX-License-Identifier: Apache-2.0
// The tensors around the routed experts that a checkpoint holds, by the packed file they go into.
#pragma once

#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "moxie/model.hpp"
#include "moxie/plan.hpp"
#include "moxie/tensors.hpp"

namespace moxie {

// A tensor of the source and how ranks share it.
struct SourceTensor {
  ModelTensor tensor;
  const TensorInfo* source = nullptr;
};

// What a packed file holds beside routed experts: listed tensors in the list's order, then those
// that no list names, whole on every rank.
struct FileTensors {
  std::vector<SourceTensor> tensors;
  std::vector<Finding> problems;  // listed tensors that are absent or of another type or shape
  std::vector<Finding> unlisted;  // warnings
};

// The tensors that an expert is read from; nullptr among them where it has none of a kind.
std::set<const TensorInfo*> tensors_of(const ExpertTensors& expert);

// Looks at headers only. Holds references: the model must outlive it.
class WholeModel {
 public:
  WholeModel(const MoeModel& model, const ShardPlan& plan);

  // A layer is packed whole when any of its tensors is there that is neither of routed experts nor
  // of the router.
  [[nodiscard]] bool holds(int layer) const { return whole_layers_.contains(layer); }
  // Any layer is whole, or a tensor is there that belongs to no layer.
  [[nodiscard]] bool any() const { return !whole_layers_.empty() || holds_top_; }
  // Of whole layers; nothing for others.
  [[nodiscard]] FileTensors of_layer(int layer) const;
  [[nodiscard]] FileTensors of_top() const;
  // Whole layers without routed experts.
  [[nodiscard]] std::vector<Finding> layers_without_experts() const;

 private:
  static constexpr int kTop = -1;

  void sort_by_layer();
  [[nodiscard]] int layer_of(std::string_view name) const;
  void require(const ModelTensor& listed, int layer, FileTensors& file) const;
  void add_unlisted(int layer, const std::set<const TensorInfo*>& known, FileTensors& file) const;

  const MoeModel& model_;
  const V4Config* config_ = nullptr;  // of models that can be packed whole
  std::map<int, std::vector<const TensorInfo*>> by_layer_;
  std::set<int> whole_layers_;
  bool holds_top_ = false;
};

}  // namespace moxie
