// SPDX-License-Identifier: Apache-2.0
// Everything that headers tell is checked before a byte is written.
#include "pack/packed_files.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "pack/experts_alone.hpp"
#include "pack/layer_plan.hpp"
#include "pack/packed_names.hpp"

namespace moxie {

namespace {

class FileChoice {
 public:
  FileChoice(const MoeModel& model, const ShardPlan& plan, const PackOptions& options)
      : model_(model), plan_(plan), options_(options), whole_(model, plan) {}

  PackedFiles choose() {
    choose_layers();
    if (whole_.any()) {
      append(problems_, whole_.uncounted(chosen_.layers));
    } else {
      sort(experts_alone(model_, !options_.layers.empty()));
    }
    if (!problems_.empty()) throw Error::of(ErrorCode::input, std::move(problems_));
    for (const int number : chosen_.layers) {
      const LayerExperts& layer = model_.require_layer(number);
      add({.name = layer_file_name(number),
           .layer = &layer,
           .plan = plan_of_layer(model_, plan_, layer, options_.layout),
           .tensors = {}},
          whole_.of_layer(number));
    }
    if (options_.layers.empty() && whole_.any()) {
      sort(whole_.layers_without_experts(options_.drafts));
      add({.name = std::string(kTopFile), .layer = nullptr, .plan = plan_, .tensors = {}},
          whole_.of_top());
    }
    if (!problems_.empty()) throw Error::of(ErrorCode::input, std::move(problems_));
    return std::move(chosen_);
  }

 private:
  static void append(std::vector<Finding>& to, std::vector<Finding> from) {
    std::ranges::move(from, std::back_inserter(to));
  }

  // Errors are problems.
  void sort(std::vector<Finding> findings) {
    for (Finding& finding : findings) {
      std::vector<Finding>& to = finding.severity == Severity::error ? problems_ : chosen_.findings;
      to.push_back(std::move(finding));
    }
  }

  void choose_layers() {
    std::set<int> layers(options_.layers.begin(), options_.layers.end());
    if (layers.empty()) {
      for (const LayerExperts& layer : model_.layers) {
        if (!layer.mtp || (whole_.any() && options_.drafts)) layers.insert(layer.layer);
      }
      note_draft_blocks();
    }
    if (layers.empty()) {
      throw Error(ErrorCode::input, {.code = "MOXIE-M011",
                                     .message = "there is no layer with expert tensors to pack",
                                     .where = {.file = model_.checkpoint.path().string()}});
    }
    chosen_.layers.assign(layers.begin(), layers.end());
  }

  void note_draft_blocks() {
    if (whole_.any() || !std::ranges::any_of(model_.layers, &LayerExperts::mtp)) return;
    chosen_.findings.push_back(
        {.code = "MOXIE-K007",
         .severity = Severity::note,
         .message = "multi-token-prediction blocks are packed only when --layers names them"});
  }

  void add(PackedFile file, FileTensors around) {
    append(problems_, std::move(around.problems));
    append(chosen_.findings, std::move(around.unlisted));
    file.tensors = std::move(around.tensors);
    chosen_.files.push_back(std::move(file));
  }

  const MoeModel& model_;
  const ShardPlan& plan_;
  const PackOptions& options_;
  WholeModel whole_;
  PackedFiles chosen_{};
  std::vector<Finding> problems_{};
};

}  // namespace

std::uint64_t PackedFile::bytes_of(unsigned rank) const {
  std::uint64_t bytes = experts_of(rank).count() * plan.layout.expert_bytes;
  for (const SourceTensor& tensor : tensors)
    bytes += part_of(tensor.tensor, plan, plan.ranks[rank].tp_rank).bytes();
  return bytes;
}

PackedFiles choose_files(const MoeModel& model, const ShardPlan& plan, const PackOptions& options) {
  return FileChoice(model, plan, options).choose();
}

std::vector<const TensorInfo*> sources_of(const std::vector<PackedFile>& files,
                                          const std::vector<unsigned>& ranks) {
  std::set<const TensorInfo*> sources;
  for (const PackedFile& file : files) {
    for (const SourceTensor& tensor : file.tensors) sources.insert(tensor.source);
    for (const unsigned rank : ranks) {
      for (const std::uint64_t expert : file.experts_of(rank).ids())
        sources.merge(tensors_of(file.layer->experts[expert]));
    }
  }
  sources.erase(nullptr);
  return {sources.begin(), sources.end()};
}

}  // namespace moxie
