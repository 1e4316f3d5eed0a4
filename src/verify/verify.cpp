// SPDX-License-Identifier: Apache-2.0
// The proof of a packed set: plan hash, completeness, checksums, then every expert of every packed
// layer.
#include "moxie/verify.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "base/errors.hpp"
#include "base/mapped_file.hpp"
#include "base/parallel.hpp"
#include "pack/packed_names.hpp"
#include "pack/packed_set.hpp"
#include "pack/source_config.hpp"
#include "verify/expert_comparison.hpp"
#include "verify/file_check.hpp"
#include "verify/proof.hpp"

namespace moxie {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMaxFindings = 20;
// Pages of the source and of the packed files held at once.
constexpr std::uint64_t kChunkBytes = std::uint64_t{128} << 20;

class SetVerifier {
 public:
  SetVerifier(const fs::path& folder, const MoeModel& source, const Progress& progress)
      : set_(open_packed_set(folder)), progress_(progress) {
    // A set may hold NVFP4 as MXFP4 with globals: it is compared with the source read that way.
    if (set_.plan.recast && !source.recast) recast_ = recast_model(source);
    source_ = recast_ ? &*recast_ : &source;
  }

  VerifyReport verify() {
    report_.plan_hash = set_.plan_hash;
    report_.ranks = static_cast<unsigned>(set_.ranks.size());
    check_plan();
    check_ranks();
    for (const PackedRank& rank : set_.ranks) {
      for (const auto& [name, record] : rank.files)
        total_ += 2 * record.bytes;  // checksum, comparison
    }
    check_files();
    for (const int layer : report_.layers) compare_layer(layer);
    report_.passed = std::ranges::none_of(report_.findings, [](const Finding& finding) {
      return finding.severity == Severity::error;
    });
    if (hidden_findings_ > 0) {
      add({.code = "MOXIE-V002",
           .message = std::to_string(hidden_findings_) + " more differences"});
    }
    if (report_.passed) {
      write_proof(set_);
    } else {
      remove_proof(set_.folder);
    }
    return std::move(report_);
  }

 private:
  void add(Finding finding) { report_.findings.push_back(std::move(finding)); }

  void add_limited(std::vector<Finding> findings) {
    for (Finding& finding : findings) {
      if (report_.findings.size() < kMaxFindings) {
        add(std::move(finding));
      } else {
        ++hidden_findings_;
      }
    }
  }

  void advance(std::uint64_t bytes) {
    done_ += bytes;
    report_progress(progress_, std::min(done_, total_), total_);
  }

  // The plan is a claim: its text must be the one that was hashed, and its widths the source's.
  void check_plan() {
    const std::string file = (set_.folder / kPlanFile).string();
    if (set_.actual_plan_hash != set_.plan_hash) {
      add({.code = "MOXIE-V005",
           .message = "plan does not match its hash",
           .where = {.file = file},
           .expected = set_.plan_hash,
           .got = set_.actual_plan_hash});
    }
    for (const std::string_view name : kConfigFiles) check_config(name);
    const ModelConfig& config = source_->config;
    const auto number = [](std::uint64_t value) { return std::to_string(value); };
    require_same("model", config.model_type, set_.plan.model);
    require_same("hidden", number(config.hidden), number(set_.plan.hidden));
    require_same("the intermediate size", number(config.inter),
                 number(set_.plan.inter().original.value));
    require_same("gating", config.gated ? "gated" : "not gated",
                 set_.plan.gated ? "gated" : "not gated");
    require_same("the number of experts", number(config.experts), number(set_.plan.experts));
    const bool held = std::ranges::any_of(source_->layers, [&](const LayerExperts& layer) {
      return layer.format == set_.plan.format;  // a checkpoint may hold layers of both formats
    });
    if (source_->format && !held)
      require_same("format", std::string(name_of(*source_->format)),
                   std::string(name_of(set_.plan.format)));
  }

  // What runs the set takes limits and sizes from its config: it is part of the proof.
  void check_config(std::string_view name) {
    const fs::path copy = set_.folder / name;
    const auto text = source_config(source_->checkpoint, name);
    if (!text || source_->checkpoint.config_path() == set_.folder / kConfigFiles[0]) return;
    if (!fs::is_regular_file(copy)) {
      add({.code = "MOXIE-V004", .message = "config is absent", .where = {.file = copy.string()}});
    } else if (read_text_file(copy) != *text) {
      add({.code = "MOXIE-V002",
           .message = "config differs from the source's",
           .where = {.file = copy.string()},
           .expected = "the " + std::string(name) + " of " + source_->checkpoint.path().string()});
    }
  }

  void require_same(std::string_view what, const std::string& expected,
                    const std::string& got) const {
    if (expected == got) return;
    throw Error(
        ErrorCode::verdict,
        {.code = "MOXIE-V007",
         .message = "the packed set was made from another model: " + std::string(what) + " differs",
         .where = {.file = (set_.folder / kPlanFile).string()},
         .expected = expected,
         .got = got});
  }

  // Every rank of the plan must be there, with the same layers and files of this plan.
  void check_ranks() {
    std::set<int> layers;
    for (const PackedRank& rank : set_.ranks) {
      for (const auto& [name, record] : rank.files) {
        if (const auto layer = layer_of_file(name)) layers.insert(*layer);
      }
      if (rank.plan_hash != set_.plan_hash) {
        add({.code = "MOXIE-V005",
             .message = "rank was packed under another plan",
             .where = {.file = (rank.folder / kFilesFile).string(), .rank = rank.rank},
             .expected = set_.plan_hash,
             .got = rank.plan_hash});
      }
    }
    for (const int layer : layers) check_source_has(layer);
    std::erase_if(layers, [&](int layer) { return !source_has(layer); });
    report_.layers.assign(layers.begin(), layers.end());
    note_unpacked_layers();
    if (layers.empty()) {
      add({.code = "MOXIE-V004",
           .message = "the packed set holds no layer",
           .where = {.file = set_.folder.string()}});
    }
    for (const RankPlan& rank : set_.plan.ranks) {
      const auto packed = std::ranges::find(set_.ranks, rank.rank, &PackedRank::rank);
      if (packed == set_.ranks.end()) {
        add({.code = "MOXIE-V004",
             .message = "rank is absent",
             .where = {.file = (set_.folder / rank_folder_name(rank.rank)).string(),
                       .rank = rank.rank}});
        continue;
      }
      for (const Finding& problem : packed->problems) add(problem);
      for (const int layer : layers) check_layer_file(*packed, layer);
    }
    for (const std::string& name : names_in(set_.folder)) {
      const bool known = std::ranges::any_of(set_.plan.ranks, [&](const RankPlan& rank) {
        return name == rank_folder_name(rank.rank);
      });
      if (!name.starts_with("rank-") || known) continue;
      add({.code = "MOXIE-V004",
           .message = "folder belongs to no rank of the plan",
           .where = {.file = (set_.folder / name).string()}});
    }
  }

  [[nodiscard]] bool source_has(int layer) const {
    return std::ranges::find(source_->layers, layer, &LayerExperts::layer) != source_->layers.end();
  }

  void check_source_has(int layer) {
    if (source_has(layer)) return;
    add({.code = "MOXIE-V004",
         .message = "the set holds a layer that the source does not",
         .where = {.file = set_.folder.string(), .layer = layer}});
  }

  // A set may hold some layers only; the verdict speaks of those.
  void note_unpacked_layers() {
    const auto main = std::ranges::count(source_->layers, false, &LayerExperts::mtp);
    const auto packed = std::ranges::count_if(source_->layers, [&](const LayerExperts& layer) {
      return !layer.mtp && std::ranges::find(report_.layers, layer.layer) != report_.layers.end();
    });
    if (packed == main) return;
    add({.code = "MOXIE-V008",
         .severity = Severity::note,
         .message = "the set holds " + std::to_string(packed) + " of the source's " +
                    std::to_string(main) + " layers",
         .where = {.file = set_.folder.string()}});
  }

  void check_layer_file(const PackedRank& rank, int layer) {
    const std::string name = layer_file_name(layer);
    const auto record = rank.files.find(name);
    if (record != rank.files.end() && fs::exists(rank.folder / name)) return;
    add({.code = "MOXIE-V004",
         .message = record == rank.files.end() ? "layer is absent on this rank" : "file is absent",
         .where = {.file = (rank.folder / name).string(), .layer = layer, .rank = rank.rank}});
  }

  // Sizes and checksums of every listed file; files that no list names.
  void check_files() {
    for (const PackedRank& rank : set_.ranks) {
      for (Finding& finding : check_names(rank)) add(std::move(finding));
      std::vector<std::pair<std::string, PackedFileRecord>> files(rank.files.begin(),
                                                                  rank.files.end());
      std::vector<std::optional<Finding>> wrong(files.size());
      parallel_for(files.size(), [&](std::uint64_t i) {
        wrong[i] = check_file(rank, files[i].first, files[i].second);
      });
      for (std::size_t i = 0; i < files.size(); ++i) {
        if (wrong[i]) add(std::move(*wrong[i]));
        ++report_.files;
        advance(files[i].second.bytes);
      }
    }
  }

  void compare_layer(int number) {
    const LayerExperts& layer = source_->require_layer(number);
    const std::uint64_t experts = layer.experts.size();
    const std::string which = " of layer " + std::to_string(number);
    require_same("the number of experts" + which, std::to_string(experts),
                 std::to_string(set_.plan.experts));
    require_same("the format" + which, std::string(name_of(layer.format)),
                 std::string(name_of(set_.plan.format)));
    const std::uint64_t held =
        set_.plan.layout.stride * set_.plan.tp + set_.plan.layout.expert_bytes;
    const std::uint64_t chunk = std::max<std::uint64_t>(kChunkBytes / held, 1);
    check_tensor_count(layer);
    for (std::uint64_t first = 0; first < experts; first += chunk) {
      const std::uint64_t count = std::min(chunk, experts - first);
      std::vector<ExpertTally> tallies(count);
      parallel_for(count, [&](std::uint64_t i) {
        tallies[i] = compare_expert(set_, *source_, layer, first + i);
      });
      std::uint64_t bytes = 0;
      for (ExpertTally& tally : tallies) {
        report_.tensors += tally.tensors;
        report_.real_bytes += tally.real_bytes;
        report_.tail_bytes += tally.tail_bytes;
        bytes += tally.real_bytes + tally.tail_bytes;
        add_limited(std::move(tally.findings));
      }
      release_pages();
      advance(bytes);
    }
  }

  // A rank's file must hold the expected tensors and nothing else.
  void check_tensor_count(const LayerExperts& layer) {
    for (const PackedRank& rank : set_.ranks) {
      if (!rank.checkpoint) continue;
      const std::uint64_t expected =
          expected_tensors(set_, set_.plan.ranks[rank.rank], *source_, layer);
      std::uint64_t found = 0;
      for (const TensorInfo& tensor : rank.checkpoint->tensors()) {
        if (rank.checkpoint->files()[tensor.file].path.filename() == layer_file_name(layer.layer))
          ++found;
      }
      if (found == expected) continue;
      add({.code = "MOXIE-V004",
           .message = "file holds another number of tensors",
           .where = {.file = (rank.folder / layer_file_name(layer.layer)).string(),
                     .layer = layer.layer,
                     .rank = rank.rank},
           .expected = std::to_string(expected),
           .got = std::to_string(found)});
    }
  }

  void release_pages() const {
    for (std::uint32_t i = 0; i < source_->checkpoint.files().size(); ++i)
      source_->checkpoint.release(i);
    for (const PackedRank& rank : set_.ranks) {
      if (!rank.checkpoint) continue;
      for (std::uint32_t i = 0; i < rank.checkpoint->files().size(); ++i)
        rank.checkpoint->release(i);
    }
  }

  PackedSet set_;
  std::optional<MoeModel> recast_;
  const MoeModel* source_ = nullptr;
  const Progress& progress_;
  VerifyReport report_;
  std::uint64_t hidden_findings_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace

VerifyReport verify_packed(const fs::path& dir, const MoeModel& source, const Progress& progress) {
  try {
    return SetVerifier(dir, source, progress).verify();
  } catch (const fs::filesystem_error& error) {
    raise_system("look at", error.path1(), error.code().value());
  } catch (const Error& error) {
    // Bytes that can not be read are bytes that are not proven.
    if (error.code() == ErrorCode::input) remove_proof(dir);
    throw;
  }
}

}  // namespace moxie
