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

  // A model is whole when any listed tensor is there that is neither of routed experts nor of a
  // router, of a layer or of none. Then every layer has to be.
  [[nodiscard]] bool any() const { return whole_; }
  [[nodiscard]] bool holds(int layer) const { return whole_ && layer < end(); }
  // Of whole layers; nothing for others.
  [[nodiscard]] FileTensors of_layer(int layer) const;
  [[nodiscard]] FileTensors of_top() const;
  // Layers of a whole model without routed experts; a warning for draft blocks of which nothing is
  // there. Draft blocks alone only where they are asked for.
  [[nodiscard]] std::vector<Finding> layers_without_experts(bool drafts) const;
  // Draft blocks among these layers that the config does not count.
  [[nodiscard]] std::vector<Finding> uncounted(const std::vector<int>& layers) const;

 private:
  static constexpr int kTop = -1;

  // Of all layers that the config counts.
  [[nodiscard]] int end() const { return static_cast<int>(config_->layers + config_->drafts); }
  [[nodiscard]] bool is_there(const ModelTensor& tensor) const;
  void sort_by_layer();
  [[nodiscard]] int layer_of(std::string_view name) const;
  void require(const ModelTensor& listed, int layer, FileTensors& file) const;
  void add_unlisted(int layer, FileTensors& file) const;

  const MoeModel& model_;
  const V4Config* config_ = nullptr;  // of models that can be packed whole
  std::map<int, std::vector<const TensorInfo*>> by_layer_;
  std::set<const TensorInfo*> of_experts_;  // of all layers
  std::set<int> begun_;                     // layers with listed tensors around their experts
  bool whole_ = false;
};

}  // namespace moxie
