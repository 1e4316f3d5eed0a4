// SPDX-License-Identifier: Apache-2.0
// Names, types and values of one packed file against the plan that its layer follows.
#include "pack/layer_loader.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "formats/act_quant.hpp"
#include "model/dialects/choice.hpp"
#include "model/expert_names.hpp"
#include "model/layer_reader.hpp"
#include "pack/bands.hpp"
#include "pack/layer_plan.hpp"
#include "pack/logical_tensor.hpp"
#include "pack/packed_names.hpp"
#include "pack/scale_check.hpp"
#include "pack/segment_source.hpp"
#include "pack/set_refusal.hpp"

namespace moxie {

namespace fs = std::filesystem;

namespace {

fs::path path_of(const PackedFolder& folder, unsigned rank, int layer) {
  return folder.path / rank_folder_name(rank) / layer_file_name(layer);
}

// The one group of experts in a logical file, which keeps the names of its source.
struct NamedExperts {
  std::string prefix;
  const DialectNames* names = nullptr;
  BlockFormat format = BlockFormat::mxfp4;
};

std::optional<NamedExperts> names_of(const PackedFolder& folder, const Checkpoint& file) {
  const ExpertNames seen = find_expert_names(file);
  if (seen.groups.size() != 1) return std::nullopt;
  const auto& [prefix, group] = *seen.groups.begin();
  const DialectChoice choice = choose_dialect(
      prefix, group, {.format = folder.plan.format, .quantization = folder.config.quantization});
  if (choice.dialect == nullptr || choice.names == nullptr) return std::nullopt;
  return NamedExperts{prefix, choice.names, choice.dialect->format};
}

// What the first rank with any of the layer's experts holds them in.
BlockFormat format_of(const PackedFolder& folder, int layer) {
  for (const unsigned rank : folder.ranks) {
    if (const auto named = names_of(folder, open_checkpoint(path_of(folder, rank, layer))))
      return named->format;
  }
  return folder.plan.format;
}

// One layer's file of one rank, copied expert by expert.
class LayerFile {
 public:
  LayerFile(const PackedFolder& folder, unsigned rank, int layer)
      : plan_(plan_of_layer(folder, layer)),
        rank_(plan_.ranks[rank]),
        layer_(layer),
        path_(path_of(folder, rank, layer)),
        file_(open_checkpoint(path_)) {
    if (rank_.experts.count() == 0) return;  // more groups than experts
    if (folder.layout == FileLayout::kernel) {
      blobs_ = &require(blobs_tensor_name(layer), rank_.experts.id(0));
      check_type(*blobs_, rank_.experts.id(0), blobs_->dtype == DType::u8, "U8",
                 {rank_.experts.count(), plan_.layout.stride});
    } else {
      named_ = names_of(folder, file_);
      if (!named_ || named_->format != plan_.format) refuse_names();
    }
  }

  LayerFile(const LayerFile&) = delete;  // `rank_` lies in `plan_`
  LayerFile& operator=(const LayerFile&) = delete;
  ~LayerFile() = default;

  [[nodiscard]] const ShardPlan& plan() const { return plan_; }
  [[nodiscard]] std::optional<BlobSource::InFile> in_file() const {
    if (blobs_ == nullptr) return std::nullopt;
    return BlobSource::InFile{.path = path_, .offset = blobs_->offset, .layer = layer_};
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
          put_scalar({.tensor = tensor, .reciprocal = named_->names->reciprocal}, part);
        } else if (source.part == Part::bias) {
          std::ranges::copy(canonical_biases(tensor->dtype, file_.bytes(*tensor)), part.begin());
        } else {
          place_rows(plan_.layout.kind, segment, file_.bytes(*tensor).data(), segment.row_bytes,
                     part);
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
    if (tensor == nullptr) refuse_set(place(name, expert), "tensor is absent");
    return *tensor;
  }

  void check_type(const TensorInfo& tensor, std::uint64_t expert, bool type_fits,
                  std::string_view type, const Shape& shape) const {
    if (type_fits && tensor.shape == shape) return;
    refuse_set(place(tensor.name, expert),
               "tensor has another type or shape than the plan gives it",
               std::string(type) + " " + to_string(shape),
               std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape));
  }

  [[noreturn]] void refuse_names() const {
    const std::size_t groups = find_expert_names(file_).groups.size();
    refuse_set({.file = path_.string(), .layer = layer_, .rank = rank_.rank},
               "the file holds no experts under the names of a known dialect",
               "one group of " + std::string(name_of(plan_.format)) + " experts",
               !named_ ? std::to_string(groups) + " groups of none"
                       : "a group of " + std::string(name_of(named_->format)) + " experts");
  }

  // The segment's own tensor in a logical file; nullptr for a scalar that the source does not have.
  [[nodiscard]] const TensorInfo* find_segment(const PackedSegment& segment, SegmentSource source,
                                               std::uint64_t expert) const {
    const std::string_view part = source.part == Part::codes          ? named_->names->codes
                                  : source.part == Part::block_scales ? named_->names->block_scales
                                  : source.part == Part::dequant_mul  ? named_->names->dequant_mul
                                  : source.part == Part::bias         ? named_->names->bias
                                                              : named_->names->act_dequant_mul;
    std::string name = named_->prefix + "." + std::to_string(expert) + ".";
    name += named_->names->projections[static_cast<std::size_t>(source.projection)];
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
      const RowByte at = row_byte_of(plan_.layout.kind, segment, bad);
      refuse_scale(plan_.format, place(name, expert), at.row, at.byte, bytes[bad]);
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

  ShardPlan plan_;  // as the layer follows it
  const RankPlan& rank_;
  int layer_;
  fs::path path_;
  Checkpoint file_;
  const TensorInfo* blobs_ = nullptr;  // of the kernel layout
  std::optional<NamedExperts> named_;  // of the logical layout
};

std::string packing_hint(const ModelConfig& config, int layer) {
  const std::uint64_t drafts = config.v4 ? config.v4->drafts : 0;
  const bool known = std::ranges::find(config.moe_layers, layer) != config.moe_layers.end();
  const bool draft = layer >= 0 && static_cast<std::uint64_t>(layer) >= config.num_layers &&
                     static_cast<std::uint64_t>(layer) < config.num_layers + drafts;
  if (known || draft || !config.v4) return "pack it with --layers " + std::to_string(layer);
  return "the model has " + std::to_string(config.num_layers + drafts) + " layers, drafts included";
}

}  // namespace

ShardPlan plan_of_layer(const PackedFolder& folder, int layer) {
  require_layer(folder, layer);
  const std::optional<V4Config>& v4 = folder.config.v4;
  const bool draft = static_cast<std::uint64_t>(layer) >= folder.config.num_layers;
  const bool own_format = draft && folder.layout == FileLayout::logical;
  return plan_of_layer(folder.plan,
                       {.number = layer,
                        .draft = draft,
                        .experts = draft && v4 ? v4->draft_experts : folder.plan.experts,
                        .format = own_format ? format_of(folder, layer) : folder.plan.format,
                        .recast = folder.plan.recast},
                       folder.layout);
}

ShardPlan plan_to_run(const PackedFolder& folder, int layer) {
  ShardPlan own = plan_of_layer(folder, layer);
  require_plans_format(folder.plan, own, layer);
  return own;
}

void require_layer(const PackedFolder& folder, int layer) {
  if (std::ranges::binary_search(folder.layers, layer)) return;
  refuse_set({.file = folder.path.string(), .layer = layer}, "the set does not hold this layer", {},
             {}, packing_hint(folder.config, layer));
}

struct LayerLoader::File : LayerFile {
  using LayerFile::LayerFile;
};

LayerLoader::LayerLoader(const PackedFolder& folder, unsigned rank, int layer)
    : file_(std::make_unique<const File>(folder, rank, layer)) {}
LayerLoader::~LayerLoader() = default;

std::optional<BlobSource::InFile> LayerLoader::in_file() const { return file_->in_file(); }

const ShardPlan& LayerLoader::plan() const { return file_->plan(); }

void LayerLoader::load(std::uint64_t expert, std::span<std::byte> blob) const {
  file_->load(expert, blob);
}

void LayerLoader::release() const { file_->release(); }

}  // namespace moxie
