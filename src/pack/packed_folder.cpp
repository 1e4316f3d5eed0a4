// SPDX-License-Identifier: Apache-2.0
// Packed files back into blobs, bit for bit what pack() makes of the source.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/hash.hpp"
#include "base/mapped_file.hpp"
#include "formats/act_quant.hpp"
#include "model/dialects/choice.hpp"
#include "model/expert_names.hpp"
#include "model/layer_reader.hpp"
#include "moxie/pack.hpp"
#include "pack/logical_tensor.hpp"
#include "pack/packed_names.hpp"
#include "pack/packed_set.hpp"
#include "pack/page_budget.hpp"
#include "pack/scale_check.hpp"
#include "pack/segment_source.hpp"

namespace moxie {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse(Place where, std::string message, std::string expected = {},
                         std::string got = {}, std::string hint = {}) {
  throw Error(ErrorCode::input, {.code = "MOXIE-K005",
                                 .message = std::move(message),
                                 .where = std::move(where),
                                 .expected = std::move(expected),
                                 .got = std::move(got),
                                 .hint = std::move(hint)});
}

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
    refuse({.file = list.string(), .rank = rank.rank}, "the rank was packed under another plan",
           set.plan_hash, rank.plan_hash, "pack the rank again");
  }
  for (const auto& [name, record] : rank.files) {
    const fs::path file = rank.folder / name;
    std::error_code absent;
    const std::uint64_t bytes = fs::file_size(file, absent);
    if (absent || bytes != record.bytes) {
      refuse({.file = file.string(), .rank = rank.rank}, "file is not as files.json states it",
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
  refuse({.file = (folder.path / "config.json").string()},
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
  refuse({.file = (folder.path / name).string(), .layer = layer, .rank = rank},
         "file does not match its checksum",
         stated == folder.checksums.end() ? "a checksum in files.json" : stated->second, got,
         "pack the rank again");
}

// One layer's file of one rank, copied expert by expert.
class LayerLoader {
 public:
  LayerLoader(const PackedFolder& folder, unsigned rank, int layer)
      : plan_(folder.plan),
        quantization_(folder.config.quantization),
        rank_(folder.plan.ranks[rank]),
        layer_(layer),
        path_(folder.path / rank_folder_name(rank) / layer_file_name(layer)),
        file_(open_checkpoint(path_)) {
    if (folder.layout == FileLayout::kernel) {
      blobs_ = &require(blobs_tensor_name(layer), rank_.experts.id(0));
      check_type(*blobs_, rank_.experts.id(0), blobs_->dtype == DType::u8, "U8",
                 {rank_.experts.count(), plan_.layout.stride});
    } else {
      find_names();
    }
  }

  void load(std::uint64_t expert, std::span<std::byte> blob) const {
    if (blobs_ == nullptr) {
      std::ranges::fill(blob, std::byte{0});
    } else {
      const std::uint64_t local = rank_.experts.slot_of(expert).value();
      std::ranges::copy(file_.bytes(*blobs_).subspan(local * blob.size(), blob.size()),
                        blob.begin());
    }
    for (const PackedSegment& segment : plan_.layout.segments) {
      const SegmentSource source = source_of(segment.segment);
      const auto part = blob.subspan(segment.offset, segment.bytes());
      const TensorInfo* tensor = blobs_;
      if (tensor == nullptr) {
        tensor = find_segment(segment, source, expert);
        if (source.is_scalar()) {
          put_scalar({.tensor = tensor, .reciprocal = names_->reciprocal}, part);
        } else if (source.part == Part::bias) {
          std::ranges::copy(canonical_biases(tensor->dtype, file_.bytes(*tensor)), part.begin());
        } else {
          std::ranges::copy(file_.bytes(*tensor), part.begin());
        }
      }
      check_values(segment, source, expert, tensor, part);
    }
  }

  // Lets go of the pages that were read.
  void release() const { file_.release(0); }

 private:
  [[nodiscard]] Place place(std::string tensor, std::uint64_t expert) const {
    return {.file = path_.string(),
            .tensor = std::move(tensor),
            .layer = layer_,
            .expert = expert,
            .rank = rank_.rank};
  }

  [[nodiscard]] const TensorInfo& require(const std::string& name, std::uint64_t expert) const {
    const TensorInfo* tensor = file_.find(name);
    if (tensor == nullptr) refuse(place(name, expert), "tensor is absent");
    return *tensor;
  }

  void check_type(const TensorInfo& tensor, std::uint64_t expert, bool type_fits,
                  std::string_view type, const Shape& shape) const {
    if (type_fits && tensor.shape == shape) return;
    refuse(place(tensor.name, expert), "tensor has another type or shape than the plan gives it",
           std::string(type) + " " + to_string(shape),
           std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape));
  }

  // Logical files keep the names of their source.
  void find_names() {
    const ExpertNames seen = find_expert_names(file_);
    if (seen.groups.size() == 1) {
      const auto& [prefix, group] = *seen.groups.begin();
      const DialectChoice choice =
          choose_dialect(prefix, group, {.format = plan_.format, .quantization = quantization_});
      if (choice.dialect != nullptr && choice.dialect->format == plan_.format) {
        prefix_ = prefix;
        names_ = choice.names;
        return;
      }
    }
    refuse({.file = path_.string(), .layer = layer_, .rank = rank_.rank},
           "the file holds no experts under the names of a known dialect",
           "one group of " + std::string(name_of(plan_.format)) + " experts",
           std::to_string(seen.groups.size()) + " groups");
  }

  // The segment's own tensor in a logical file; nullptr for a scalar that the source does not have.
  [[nodiscard]] const TensorInfo* find_segment(const PackedSegment& segment, SegmentSource source,
                                               std::uint64_t expert) const {
    const std::string_view part = source.part == Part::codes          ? names_->codes
                                  : source.part == Part::block_scales ? names_->block_scales
                                  : source.part == Part::dequant_mul  ? names_->dequant_mul
                                  : source.part == Part::bias         ? names_->bias
                                                                      : names_->act_dequant_mul;
    std::string name = prefix_ + "." + std::to_string(expert) + ".";
    name += names_->projections[static_cast<std::size_t>(source.projection)];
    name += part;
    if (source.part == Part::act_dequant_mul && file_.find(name) == nullptr) return nullptr;
    const TensorInfo& tensor = require(name, expert);
    if (source.is_scalar()) {
      check_type(tensor, expert, tensor.dtype == DType::f32 && tensor.bytes == sizeof(float), "F32",
                 tensor.shape);
    } else if (source.part == Part::bias) {
      check_type(tensor, expert, is_bias_type(tensor.dtype), "BF16 or F32", {segment.rows});
    } else if (source.part == Part::codes) {
      check_type(tensor, expert, is_code_type(tensor.dtype), "packed pairs",
                 {segment.rows, segment.row_bytes * 8 / bits_of(tensor.dtype)});
    } else {
      check_type(tensor, expert, is_scale_type(plan_.format, tensor.dtype), "block scales",
                 {segment.rows, segment.row_bytes});
    }
    return &tensor;
  }

  // The multiplier that the stored value stands for; NaN for none.
  void put_scalar(const ScalarRef& scalar, std::span<std::byte> part) const {
    float value = std::numeric_limits<float>::quiet_NaN();
    if (scalar.present()) {
      value = scalar.multiplier(stored_scalar(file_, scalar));
    }
    std::memcpy(part.data(), &value, sizeof value);
  }

  void check_values(const PackedSegment& segment, SegmentSource source, std::uint64_t expert,
                    const TensorInfo* tensor, std::span<const std::byte> bytes) const {
    const std::string name =
        tensor != nullptr ? tensor->name : std::string(name_of(segment.segment));
    if (source.part == Part::block_scales) {
      const std::size_t bad = first_bad_scale(plan_.format, bytes);
      if (bad == bytes.size()) return;
      refuse_scale(plan_.format, place(name, expert), bad / segment.row_bytes,
                   bad % segment.row_bytes, bytes[bad]);
    }
    if (source.part == Part::bias) return check_biases(bytes, 0, place(name, expert));
    const bool consumed = source.part == Part::dequant_mul ||
                          (source.part == Part::act_dequant_mul && consumes_act_scales(plan_));
    if (!consumed) return;
    float value = 0;
    std::memcpy(&value, bytes.data(), sizeof value);
    const bool usable =
        source.part == Part::dequant_mul ? std::isfinite(value) && value > 0 : is_act_scale(value);
    if (usable) return;
    throw Error(ErrorCode::input,
                {.code = tensor == nullptr ? "MOXIE-M006" : "MOXIE-M007",
                 .message = std::string(name_of(segment.segment)) + " is no usable scale",
                 .where = place(name, expert),
                 .expected = "a finite number greater than 0",
                 .got = tensor == nullptr ? "none" : std::to_string(value)});
  }

  const ShardPlan& plan_;
  const std::string& quantization_;  // as the config declares it
  const RankPlan& rank_;
  int layer_;
  fs::path path_;
  Checkpoint file_;
  const TensorInfo* blobs_ = nullptr;  // of the kernel layout
  std::string prefix_;                 // of the logical layout
  const DialectNames* names_ = nullptr;
};

}  // namespace

bool is_packed_folder(const fs::path& path) { return is_packed_set(path); }

PackedFolder open_packed_folder(const fs::path& path) {
  PackedSet set = open_packed_set(path);
  if (set.plan_hash != set.actual_plan_hash) {
    refuse({.file = (path / kPlanFile).string()}, "the plan does not match its hash", set.plan_hash,
           set.actual_plan_hash, "pack again");
  }
  if (set.ranks.empty()) refuse({.file = path.string()}, "the set holds no rank");
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

namespace {

std::string packing_hint(const ModelConfig& config, int layer) {
  const std::uint64_t drafts = config.v4 ? config.v4->drafts : 0;
  const bool known = std::ranges::find(config.moe_layers, layer) != config.moe_layers.end();
  const bool draft = layer >= 0 && static_cast<std::uint64_t>(layer) >= config.num_layers &&
                     static_cast<std::uint64_t>(layer) < config.num_layers + drafts;
  if (known || draft || !config.v4) return "pack it with --layers " + std::to_string(layer);
  return "the model has " + std::to_string(config.num_layers + drafts) + " layers, drafts included";
}

}  // namespace

BlobSource blob_source(const PackedFolder& folder, unsigned rank, int layer) {
  if (!std::ranges::binary_search(folder.ranks, rank)) {
    refuse({.file = folder.path.string(), .rank = rank}, "the set does not hold this rank", {}, {},
           "pack it with --rank " + std::to_string(rank));
  }
  if (!std::ranges::binary_search(folder.layers, layer)) {
    refuse({.file = folder.path.string(), .layer = layer}, "the set does not hold this layer", {},
           {}, packing_hint(folder.config, layer));
  }
  const auto loader = std::make_shared<const LayerLoader>(folder, rank, layer);
  const auto pages = std::make_shared<PageBudget>();
  return {.rank = rank,
          .layout = folder.plan.layout,
          .experts = folder.plan.ranks[rank].experts,
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
              }};
}

void check_packed_top(const PackedFolder& folder, unsigned rank) {
  if (folder.checksums.contains(rank_folder_name(rank) + "/" + std::string(kTopFile)))
    check_bytes(folder, rank, kTopFile, std::nullopt);
}

PackedExperts load_packed(const PackedFolder& folder, unsigned rank, int layer) {
  return pack(blob_source(folder, rank, layer));
}

}  // namespace moxie
