// SPDX-License-Identifier: Apache-2.0
// The proof of a packed set: plan hash, completeness, checksums, then every tensor of every packed
// file.
#include "moxie/verify.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "base/errors.hpp"
#include "base/parallel.hpp"
#include "pack/packed_names.hpp"
#include "pack/packed_set.hpp"
#include "pack/whole_model.hpp"
#include "verify/expert_comparison.hpp"
#include "verify/file_check.hpp"
#include "verify/plan_check.hpp"
#include "verify/proof.hpp"
#include "verify/tensor_comparison.hpp"

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
    whole_.emplace(*source_, set_.plan);
  }

  // True after `further` refused what it was asked of a set whose bytes passed.
  [[nodiscard]] bool refused() const { return refused_; }

  VerifyReport verify(const FurtherCheck& further) {
    report_.plan_hash = set_.plan_hash;
    report_.ranks = static_cast<unsigned>(set_.ranks.size());
    for (Finding& finding : check_plan(set_, *source_)) add(std::move(finding));
    check_ranks();
    for (const PackedRank& rank : set_.ranks) {
      for (const auto& [name, record] : rank.files)
        total_ += 2 * record.bytes;  // checksum, comparison
    }
    check_files();
    for (const int layer : report_.layers) compare_layer(layer);
    if (holds_top_) compare_top();
    report_.passed = std::ranges::none_of(report_.findings, [](const Finding& finding) {
      return finding.severity == Severity::error;
    });
    if (hidden_findings_ > 0) {
      add({.code = "MOXIE-V002",
           .message = std::to_string(hidden_findings_) + " more differences"});
    }
    const bool all = !further || passes(further);  // asked of a set that did not pass, too
    if (report_.passed && all) {
      keep_proof();
    } else {
      remove_proof(set_.folder);
    }
    return std::move(report_);
  }

 private:
  // What is refused of a set whose bytes passed is the question, not the set: an older proof
  // stands.
  bool passes(const FurtherCheck& further) {
    try {
      return further(report_);
    } catch (const Error& error) {
      refused_ = report_.passed && error.code() == ErrorCode::unsupported;
      throw;
    }
  }

  // The verdict does not depend on whether there is room for it.
  void keep_proof() {
    try {
      write_proof(set_);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::environment) throw;
      add({.code = "MOXIE-V012",
           .severity = Severity::warning,
           .message = "the proof could not be written: " + error.findings().front().message,
           .where = error.findings().front().where,
           .hint = "the verdict stands; run and bench will say that the set was not verified"});
    }
  }

  // Whatever becomes of the rest, the first difference ends what an older proof says.
  void add(Finding finding) {
    if (finding.severity == Severity::error) remove_proof(set_.folder);
    report_.findings.push_back(std::move(finding));
  }

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

  // Every rank of the plan must be there, with the same layers and files of this plan.
  void check_ranks() {
    std::set<int> layers;
    for (const PackedRank& rank : set_.ranks) {
      for (const auto& [name, record] : rank.files) {
        if (const auto layer = layer_of_file(name)) layers.insert(*layer);
        holds_top_ = holds_top_ || name == kTopFile;
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
    check_lost(layers);
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
      for (const int layer : layers) check_file_of(*packed, layer_file_name(layer), layer);
      if (holds_top_) check_file_of(*packed, std::string(kTopFile), std::nullopt);
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
    const auto is_due = [&](const LayerExperts& layer) { return !layer.mtp || whole_->any(); };
    const auto due = std::ranges::count_if(source_->layers, is_due);
    const auto packed = std::ranges::count_if(source_->layers, [&](const LayerExperts& layer) {
      return is_due(layer) && std::ranges::binary_search(report_.layers, layer.layer);
    });
    if (packed != due) {
      note("the set holds " + std::to_string(packed) + " of the source's " + std::to_string(due) +
           " layers");
    }
    if (whole_->any() && !holds_top_)
      note("the set does not hold the tensors that belong to no layer");
    if (!whole_->any() && holds_top_) {
      add({.code = "MOXIE-V004",
           .message = "the set holds tensors of no layer, and the source does not",
           .where = {.file = set_.folder.string()}});
    }
  }

  // What files.json says was packed, and no rank lists any more.
  void check_lost(const std::set<int>& held) {
    std::set<int> lost;
    bool lost_top = false;
    for (const PackedRank& rank : set_.ranks) {
      if (!rank.packed) continue;
      for (const int layer : rank.packed->layers) {
        if (!held.contains(layer) && source_has(layer)) lost.insert(layer);
      }
      lost_top = lost_top || (rank.packed->top && !holds_top_);
    }
    for (const int layer : lost) {
      add({.code = "MOXIE-V004",
           .message = "a layer that was packed is absent on every rank",
           .where = {.file = set_.folder.string(), .layer = layer}});
    }
    if (!lost_top) return;
    add({.code = "MOXIE-V004",
         .message = "the tensors that belong to no layer were packed and are absent on every rank",
         .where = {.file = (set_.folder / rank_folder_name(0) / kTopFile).string()}});
  }

  void note(std::string message) {
    add({.code = "MOXIE-V008",
         .severity = Severity::note,
         .message = std::move(message),
         .where = {.file = set_.folder.string()}});
  }

  void check_file_of(const PackedRank& rank, const std::string& name, std::optional<int> layer) {
    const auto record = rank.files.find(name);
    if (record != rank.files.end() && fs::exists(rank.folder / name)) return;
    const std::string_view what = layer ? "layer" : "file";
    add({.code = "MOXIE-V004",
         .message = record == rank.files.end() ? std::string(what) + " is absent on this rank"
                                               : "file is absent",
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
    const ShardPlan plan = planned_layer(set_, *source_, layer);
    const std::uint64_t experts = layer.experts.size();
    const std::uint64_t held = plan.layout.stride * plan.tp + plan.layout.expert_bytes;
    const std::uint64_t chunk = std::max<std::uint64_t>(kChunkBytes / held, 1);
    for (std::uint64_t first = 0; first < experts; first += chunk) {
      const std::uint64_t count = std::min(chunk, experts - first);
      std::vector<Tally> tallies(count);
      parallel_for(count, [&](std::uint64_t i) {
        tallies[i] = compare_expert(set_, plan, *source_, layer, first + i);
      });
      release_pages();
      for (Tally& tally : tallies) {
        advance(tally.real_bytes + tally.tail_bytes);
        take(std::move(tally));
      }
    }
    const FileTensors around = whole_->of_layer(number);
    const FilePlace file{.name = layer_file_name(number), .layer = number};
    for (const PackedRank& rank : set_.ranks) {
      if (!rank.checkpoint) continue;
      const std::uint64_t of_experts =
          expected_tensors(set_, plan, plan.ranks[rank.rank], *source_, layer);
      check_tensor_count(rank, file, of_experts + around.tensors.size());
    }
    compare_around(file, around);
  }

  void compare_top() {
    const FileTensors around = whole_->of_top();
    const FilePlace file{.name = std::string(kTopFile), .layer = {}};
    for (const PackedRank& rank : set_.ranks) {
      if (rank.checkpoint) check_tensor_count(rank, file, around.tensors.size());
    }
    compare_around(file, around);
  }

  // The tensors around the experts.
  void compare_around(const FilePlace& file, const FileTensors& around) {
    if (!around.problems.empty()) throw Error::of(ErrorCode::input, around.problems);
    take(compare_tensors(set_, *source_, file, around.tensors, [&](std::uint64_t bytes) {
      release_pages();
      advance(bytes);
    }));
  }

  void take(Tally tally) {
    report_.tensors += tally.tensors;
    report_.real_bytes += tally.real_bytes;
    report_.tail_bytes += tally.tail_bytes;
    add_limited(std::move(tally.findings));
  }

  // A rank's file must hold the expected tensors and nothing else.
  void check_tensor_count(const PackedRank& rank, const FilePlace& file, std::uint64_t expected) {
    std::uint64_t found = 0;
    std::string unknown;
    for (const TensorInfo& tensor : rank.checkpoint->tensors()) {
      if (rank.checkpoint->files()[tensor.file].path.filename() != file.name) continue;
      ++found;
      if (unknown.empty() && !is_known(tensor.name, file.layer)) unknown = tensor.name;
    }
    if (found == expected) return;
    add({.code = "MOXIE-V004",
         .message = "file holds another number of tensors",
         .where = {.file = (rank.folder / file.name).string(),
                   .tensor = std::move(unknown),
                   .layer = file.layer,
                   .rank = rank.rank},
         .expected = std::to_string(expected),
         .got = std::to_string(found)});
  }

  // Stacked experts get names that the source does not have.
  [[nodiscard]] bool is_known(const std::string& name, std::optional<int> layer) const {
    return source_->checkpoint.find(name) != nullptr ||
           (layer && (name == blobs_tensor_name(*layer) || source_->require_layer(*layer).stacked));
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
  std::optional<WholeModel> whole_;
  bool holds_top_ = false;
  bool refused_ = false;
  const Progress& progress_;
  VerifyReport report_;
  std::uint64_t hidden_findings_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace

VerifyReport verify_packed(const fs::path& dir, const MoeModel& source, const Progress& progress,
                           const FurtherCheck& further) {
  std::optional<SetVerifier> verifier;
  try {
    verifier.emplace(dir, source, progress);
    return verifier->verify(further);
  } catch (const fs::filesystem_error& error) {
    raise_system("look at", error.path1(), error.code().value());
  } catch (const Error& error) {
    // What can not be read or computed is not proven. A stop, a full disk, a source that is another
    // model's and a further question that can not be asked say nothing of the set.
    const bool speaks = error.code() == ErrorCode::input || error.code() == ErrorCode::unsupported;
    if (speaks && !(verifier && verifier->refused())) remove_proof(dir);
    throw;
  }
}

}  // namespace moxie
