// SPDX-License-Identifier: Apache-2.0
// What a run runs: one layer of a checkpoint or of a packed set, its plans, its experts, its probe.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/verbs.hpp"
#include "moxie/layer.hpp"
#include "moxie/probe.hpp"
#include "moxie/verify.hpp"

namespace moxie::cli {

class RunSubject {
 public:
  // Reads headers; makes every plan asked for. A packed set has its own plan: Error(usage)
  // MOXIE-R013 for an option that contradicts it.
  explicit RunSubject(const RunArgs& args);

  [[nodiscard]] const ModelConfig& config() const;
  [[nodiscard]] int layer() const { return layer_; }
  [[nodiscard]] const LayerSpec& spec() const { return spec_; }
  [[nodiscard]] const std::vector<ShardPlan>& plans() const { return plans_; }
  // The same with all ranks, where one is held alone.
  [[nodiscard]] const std::vector<ShardPlan>& whole_plans() const { return whole_plans_; }
  [[nodiscard]] bool is_packed() const { return folder_.has_value(); }
  // Warnings and notes of opening and planning.
  [[nodiscard]] const std::vector<Finding>& findings() const { return findings_; }

  // Refuses a place in the subject's folder, or a file that it is made of.
  void require_not_own(const std::filesystem::path& file, const std::string& flag) const;

  // Where the experts of every rank of a plan come from; the plan must outlive the answer.
  // `progress` counts packed bytes of all of them.
  [[nodiscard]] std::vector<BlobSource> sources(const ShardPlan& plan,
                                                const Progress& progress = {}) const;
  // From the checkpoint's own tensors; a packed set has none but those that `layer` holds. .
  [[nodiscard]] LayerReference reference(const MoeLayer& layer, const Probe& probe,
                                         const ReferenceOptions& options) const;
  // The layer's own router. Error(input) MOXIE-M016 for a packed set and for random weights, which
  // have none.
  [[nodiscard]] Router router() const;

 private:
  void open_folder(const RunArgs& args);
  void open_checkpoint_folder(const RunArgs& args);
  void choose_layer(const RunArgs& args);
  void follow_layer();
  void release_source() const;
  // Refuses experts that are not the model's, and leaves one rank of every plan.
  void keep_rank(unsigned rank);

  std::filesystem::path path_;
  std::optional<OpenedModel> opened_;
  std::optional<std::uint64_t> weights_seed_;  // the model then is a config alone
  std::optional<PackedFolder> folder_;
  std::vector<ShardPlan> plans_;
  std::vector<ShardPlan> whole_plans_;
  std::vector<Finding> findings_;
  LayerSpec spec_;
  int layer_ = 0;
};

// The routed probe of a run and how its routing came about.
struct RunProbe {
  Probe probe;
  std::string routing;            // "uniform", "zipf:1.2", "one:7", "model", "file:PATH" or "input"
  std::vector<Finding> findings;  // what routing flagged
};
RunProbe make_run_probe(const RunArgs& args, const RunSubject& subject);

// A warning for each flag that a call set.
std::vector<Finding> flag_findings(std::uint32_t flags);

}  // namespace moxie::cli
