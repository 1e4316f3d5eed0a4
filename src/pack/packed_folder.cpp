// SPDX-License-Identifier: Apache-2.0
// Packed files back into blobs, bit for bit what pack() makes of the source.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/hash.hpp"
#include "base/mapped_file.hpp"
#include "moxie/pack.hpp"
#include "pack/layer_loader.hpp"
#include "pack/packed_names.hpp"
#include "pack/packed_set.hpp"
#include "pack/page_budget.hpp"
#include "pack/set_refusal.hpp"

namespace moxie {

namespace fs = std::filesystem;

namespace {

// Layers of which files.json lists a file.
std::vector<int> layers_of(const PackedRank& rank) {
  std::vector<int> layers;
  for (const auto& [name, record] : rank.files) {
    if (const auto layer = layer_of_file(name)) layers.push_back(*layer);
  }
  std::ranges::sort(layers);
  return layers;
}

// The rank's files are the plan's, whole, and readable.
void check_rank(const PackedSet& set, const PackedRank& rank) {
  const fs::path list = rank.folder / kFilesFile;
  if (rank.plan_hash != set.plan_hash) {
    refuse_set({.file = list.string(), .rank = rank.rank}, "the rank was packed under another plan",
               set.plan_hash, rank.plan_hash, "pack the rank again");
  }
  for (const auto& [name, record] : rank.files) {
    const fs::path file = rank.folder / name;
    std::error_code absent;
    const std::uint64_t bytes = fs::file_size(file, absent);
    if (absent || bytes != record.bytes) {
      refuse_set({.file = file.string(), .rank = rank.rank}, "file is not as files.json states it",
                 std::to_string(record.bytes) + " bytes", absent ? "none" : std::to_string(bytes),
                 "pack the rank again");
    }
  }
  if (!rank.checkpoint) throw Error::of(ErrorCode::input, rank.problems);
}

// Why moxie-proof.json does not vouch for this set; empty when it does.
std::string proof_gap(const PackedSet& set) {
  const fs::path path = set.folder / kProofFile;
  if (!fs::is_regular_file(path)) return "the set was not verified";
  Json proof;
  try {
    proof = Json::parse(read_text_file(path), path.string());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::input) throw;
    return "the set's proof can not be read";
  }
  const Json* hash = proof.find("plan_hash");
  if (hash == nullptr || hash->as_string() != set.plan_hash) return "the proof is of another plan";
  const Json* files = proof.find("files");
  for (const PackedRank& rank : set.ranks) {
    for (const auto& [name, record] : rank.files) {
      const Json* proven =
          files != nullptr ? files->find(rank_folder_name(rank.rank) + "/" + name) : nullptr;
      const Json* checksum = proven != nullptr ? proven->find("xxh3_128") : nullptr;
      if (checksum == nullptr || checksum->as_string() != record.checksum)
        return "the proof does not cover every file";
    }
  }
  for (const std::string_view name : kConfigFiles) {
    const fs::path config = set.folder / name;
    if (!fs::is_regular_file(config)) continue;
    const Json* proven = files != nullptr ? files->find(name) : nullptr;
    const Json* checksum = proven != nullptr ? proven->find("xxh3_128") : nullptr;
    if (checksum == nullptr || checksum->as_string() != hash_hex(read_text_file(config)))
      return std::string(name) + " is not the one that was verified";
  }
  return {};
}

void check_config(const PackedFolder& folder) {
  const ShardPlan& plan = folder.plan;
  const ModelConfig& config = folder.config;
  const bool same = config.hidden == plan.hidden && config.inter == plan.inter().original.value &&
                    config.experts == plan.experts && config.gated == plan.gated &&
                    config.model_type == plan.model;
  if (same) return;
  refuse_set({.file = (folder.path / "config.json").string()},
             "config.json is not of the model that was planned",
             plan.model + ", hidden " + std::to_string(plan.hidden) + ", inter " +
                 std::to_string(plan.inter().original.value) + ", experts " +
                 std::to_string(plan.experts),
             config.model_type + ", hidden " + std::to_string(config.hidden) + ", inter " +
                 std::to_string(config.inter) + ", experts " + std::to_string(config.experts));
}

// Lets go of the pages that it has read.
std::string hash_of_file(const MappedFile& file) {
  StreamHash hash;
  for (std::uint64_t at = 0; at < file.bytes().size(); at += PageBudget::kBytes) {
    const std::uint64_t left = file.bytes().size() - at;
    hash.update(file.bytes().subspan(at, std::min(PageBudget::kBytes, left)));
    file.release();
  }
  return hash.hex();
}

// All bytes of the file are the packed ones.
void check_bytes(const PackedFolder& folder, unsigned rank, std::string_view file,
                 std::optional<int> layer) {
  const std::string name = rank_folder_name(rank) + "/" + std::string(file);
  const auto stated = folder.checksums.find(name);
  const std::string got = hash_of_file(MappedFile(folder.path / name));
  if (stated != folder.checksums.end() && stated->second == got) return;
  refuse_set({.file = (folder.path / name).string(), .layer = layer, .rank = rank},
             "file does not match its checksum",
             stated == folder.checksums.end() ? "a checksum in files.json" : stated->second, got,
             "pack the rank again");
}

}  // namespace

bool is_packed_folder(const fs::path& path) { return is_packed_set(path); }

PackedFolder open_packed_folder(const fs::path& path) {
  PackedSet set = open_packed_set(path);
  if (set.plan_hash != set.actual_plan_hash) {
    refuse_set({.file = (path / kPlanFile).string()}, "the plan does not match its hash",
               set.plan_hash, set.actual_plan_hash, "pack again");
  }
  if (set.ranks.empty()) refuse_set({.file = path.string()}, "the set holds no rank");
  const Checkpoint config = open_checkpoint(path / "config.json");
  PackedFolder folder{.path = path,
                      .plan = {},
                      .config = read_config(config.config(), config.quant_config()),
                      .layout = set.layout,
                      .plan_hash = set.plan_hash,
                      .ranks = {},
                      .checksums = {},
                      .layers = layers_of(set.ranks.front()),
                      .findings = {}};
  for (const PackedRank& rank : set.ranks) {
    check_rank(set, rank);
    folder.ranks.push_back(rank.rank);
    for (const auto& [name, record] : rank.files)
      folder.checksums[rank_folder_name(rank.rank) + "/" + name] = record.checksum;
    const std::vector<int> layers = layers_of(rank);
    std::erase_if(folder.layers,
                  [&](int layer) { return !std::ranges::binary_search(layers, layer); });
  }
  if (const std::string gap = proof_gap(set); !gap.empty()) {
    folder.findings.push_back({.code = "MOXIE-K009",
                               .severity = Severity::warning,
                               .message = gap,
                               .where = {.file = path.string()},
                               .hint = "moxie verify DIR --against MODEL"});
  }
  folder.plan = std::move(set.plan);
  check_config(folder);
  return folder;
}

BlobSource blob_source(const PackedFolder& folder, unsigned rank, int layer) {
  if (!std::ranges::binary_search(folder.ranks, rank)) {
    refuse_set({.file = folder.path.string(), .rank = rank}, "the set does not hold this rank", {},
               {}, "pack it with --rank " + std::to_string(rank));
  }
  require_layer(folder, layer);
  const auto loader = std::make_shared<const LayerLoader>(folder, rank, layer);
  const auto pages = std::make_shared<PageBudget>();
  return {.rank = rank,
          .layout = loader->plan().layout,
          .experts = loader->plan().ranks[rank].experts,
          .pack_expert =
              [loader, pages](std::uint64_t expert, std::span<std::byte> blob) {
                loader->load(expert, blob);
                if (pages->spend(blob.size())) loader->release();
              },
          // Last: what is wrong with a tensor says more than a checksum.
          .finish =
              [&folder, rank, layer, loader] {
                loader->release();
                check_bytes(folder, rank, layer_file_name(layer), layer);
              },
          .in_file = loader->in_file()};
}

void check_packed_top(const PackedFolder& folder, unsigned rank) {
  if (folder.checksums.contains(rank_folder_name(rank) + "/" + std::string(kTopFile)))
    check_bytes(folder, rank, kTopFile, std::nullopt);
}

PackedExperts load_packed(const PackedFolder& folder, unsigned rank, int layer) {
  return pack(blob_source(folder, rank, layer));
}

}  // namespace moxie
