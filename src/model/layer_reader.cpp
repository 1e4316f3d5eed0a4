// SPDX-License-Identifier: Apache-2.0
// Expected names, types and shapes of a layer's expert tensors against what the checkpoint holds.
#include "model/layer_reader.hpp"

#include <map>
#include <utility>

#include "formats/block_format.hpp"
#include "model/router_tensors.hpp"

namespace moxie {

namespace {

constexpr std::size_t kMaxListed = 3;  // names listed in one finding
constexpr std::size_t kMaxWrong = 8;   // findings about wrong types and shapes per layer

class LayerReader {
 public:
  LayerReader(const Checkpoint& checkpoint, const ModelConfig& config, const LayerRequest& request)
      : checkpoint_(checkpoint), config_(config), request_(request) {}

  LayerExperts read(const ExpertNames& seen) {
    problems_ = request_.problems;
    LayerExperts layer{.layer = request_.layer,
                       .prefix = request_.prefix,
                       .mtp = request_.mtp,
                       .dialect = request_.dialect->name,
                       .format = request_.dialect->format,
                       .experts = {},
                       .router = find_router(checkpoint_, request_.prefix),
                       .problems = {}};
    layer.experts.resize(request_.experts);
    for (std::uint64_t expert = 0; expert < request_.experts; ++expert) {
      expert_ = expert;
      for (const ProjectionKind kind : projections_of(config_))
        layer.experts[expert][kind] = read_projection(kind);
    }
    report_missing(seen);
    if (problems_.empty()) report_unknown();
    layer.problems = std::move(problems_);
    return layer;
  }

 private:
  Projection read_projection(ProjectionKind kind) {
    const DialectNames& names = *request_.names;
    const bool down = kind == ProjectionKind::down;
    const std::uint64_t rows = down ? config_.hidden : config_.inter;
    const std::uint64_t columns = down ? config_.inter : config_.hidden;
    const std::string stem = request_.prefix + "." + std::to_string(expert_) + "." +
                             std::string(names.projections[static_cast<std::size_t>(kind)]);
    Projection projection;
    projection.codes = codes(require(stem, names.codes), rows, columns);
    projection.block_scales = scales(require(stem, names.block_scales), rows, columns);
    if (!names.dequant_mul.empty())
      projection.dequant_mul = scalar(require(stem, names.dequant_mul));
    // Not every checkpoint stores one for every expert; whether it is needed is the plan's
    // question.
    if (!names.act_dequant_mul.empty()) {
      projection.act_dequant_mul =
          scalar(checkpoint_.find(stem + std::string(names.act_dequant_mul)));
    }
    return projection;
  }

  // The tensor, or nullptr after noting that it is missing.
  const TensorInfo* require(const std::string& stem, std::string_view part) {
    std::string name = stem + std::string(part);
    ++expected_;
    const TensorInfo* tensor = checkpoint_.find(name);
    if (tensor != nullptr) {
      ++found_;
      return tensor;
    }
    const std::string_view shard = checkpoint_.absent_shard_of(name);
    if (!shard.empty()) {
      ++absent_[std::string(shard)];
    } else {
      if (missing_ < kMaxListed) missing_names_ += (missing_names_.empty() ? "" : ", ") + name;
      if (missing_++ == 0) first_missing_expert_ = expert_;
    }
    return nullptr;
  }

  void wrong(const TensorInfo& tensor, const std::string& expected) {
    if (++wrong_ > kMaxWrong) return;
    problems_.push_back(
        {.code = "MOXIE-M005",
         .message = "expert tensor has another type or shape than its format needs",
         .where = place(tensor),
         .expected = expected,
         .got = std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape)});
  }

  // Packed pairs in one-byte carriers [rows, columns/2], or a 4-bit dtype with the logical shape
  // [rows, columns].
  RowsView codes(const TensorInfo* tensor, std::uint64_t rows, std::uint64_t columns) {
    if (tensor == nullptr) return {};
    const bool carrier = (tensor->dtype == DType::u8 || tensor->dtype == DType::i8) &&
                         tensor->shape == Shape{rows, columns / 2};
    const bool logical = tensor->dtype == DType::f4 && tensor->shape == Shape{rows, columns};
    if (columns % 2 != 0 || (!carrier && !logical)) {
      wrong(*tensor, "U8 or I8 " + to_string({rows, columns / 2}) + " packed pairs");
      return {};
    }
    return rows_of(tensor, rows, columns / 2);
  }

  RowsView scales(const TensorInfo* tensor, std::uint64_t rows, std::uint64_t columns) {
    if (tensor == nullptr) return {};
    const BlockFormat format = request_.dialect->format;
    const std::uint64_t group = scale_group(format);
    const Shape shape{rows, columns / group};
    const bool mxfp4 = format == BlockFormat::mxfp4;
    if (!is_scale_type(format, tensor->dtype) || tensor->shape != shape || columns % group != 0) {
      wrong(*tensor, (mxfp4 ? "F8_E8M0 or U8 " : "F8_E4M3 ") + to_string(shape));
      return {};
    }
    return rows_of(tensor, rows, columns / group);
  }

  static RowsView rows_of(const TensorInfo* tensor, std::uint64_t rows, std::uint64_t row_bytes) {
    return {.tensor = tensor,
            .offset = 0,
            .rows = rows,
            .row_bytes = row_bytes,
            .row_stride = row_bytes};
  }

  ScalarRef scalar(const TensorInfo* tensor) {
    if (tensor == nullptr) return {};
    if (tensor->dtype == DType::f32 && tensor->bytes == sizeof(float))
      return {.tensor = tensor, .reciprocal = request_.names->reciprocal};
    wrong(*tensor, request_.names->reciprocal ? "F32 [1]" : "F32 []");
    return {};
  }

  [[nodiscard]] Place place(const TensorInfo& tensor) const {
    return {.file = checkpoint_.files()[tensor.file].path.string(),
            .tensor = tensor.name,
            .layer = request_.layer,
            .expert = expert_};
  }

  void report_missing(const ExpertNames& seen) {
    if (wrong_ > kMaxWrong) {
      problems_.push_back(
          {.code = "MOXIE-M005",
           .message = std::to_string(wrong_ - kMaxWrong) + " more tensors of a wrong type or shape",
           .where = {.layer = request_.layer}});
    }
    for (const auto& [shard, count] : absent_) {
      problems_.push_back(
          {.code = "MOXIE-C010",
           .message = "shard is not on disk; " + std::to_string(count) +
                      " tensors of the layer depend on it",
           .where = {.file = (checkpoint_.path() / shard).string(), .layer = request_.layer},
           .hint = "download the shard"});
    }
    if (missing_ == 0) return;
    std::string unmatched;
    for (const std::string_view name : seen.unmatched)
      unmatched += (unmatched.empty() ? "" : ", ") + std::string(name);
    problems_.push_back(
        {.code = "MOXIE-M004",
         .message = std::to_string(found_) + " of " + std::to_string(expected_) +
                    " expected expert tensors found; first missing: " + missing_names_,
         .where = {.file = checkpoint_.path().string(),
                   .layer = request_.layer,
                   .expert = first_missing_expert_},
         .hint = unmatched.empty() ? "" : "names seen that match no dialect: " + unmatched});
  }

  [[nodiscard]] bool is_known(std::string_view leaf) const {
    const DialectNames& names = *request_.names;
    for (const ProjectionKind kind : projections_of(config_)) {
      const std::string_view projection = names.projections[static_cast<std::size_t>(kind)];
      if (!leaf.starts_with(projection)) continue;
      const std::string_view part = leaf.substr(projection.size());
      for (const std::string_view known :
           {names.codes, names.block_scales, names.dequant_mul, names.act_dequant_mul}) {
        if (part == known && !known.empty()) return true;
      }
    }
    return false;
  }

  // A tensor that is not understood may change what the others mean (a bias, a scale of the input).
  void report_unknown() {
    if (request_.group == nullptr) return;
    std::string unknown;
    for (const auto& [leaf, dtype] : request_.group->leaves) {
      if (!is_known(leaf)) unknown += (unknown.empty() ? "" : ", ") + leaf;
    }
    if (unknown.empty()) return;
    problems_.push_back({.code = "MOXIE-M013",
                         .message = "experts have tensors that the dialect " +
                                    std::string(request_.dialect->name) + " does not know",
                         .where = {.file = checkpoint_.path().string(), .layer = request_.layer},
                         .got = unknown});
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const LayerRequest& request_;
  std::uint64_t expert_ = 0;
  std::uint64_t expected_ = 0;
  std::uint64_t found_ = 0;
  std::uint64_t missing_ = 0;
  std::uint64_t wrong_ = 0;
  std::uint64_t first_missing_expert_ = 0;
  std::string missing_names_;
  std::map<std::string, std::uint64_t> absent_;
  std::vector<Finding> problems_;
};

}  // namespace

LayerExperts read_layer(const Checkpoint& checkpoint, const ModelConfig& config,
                        const LayerRequest& request, const ExpertNames& seen) {
  return LayerReader(checkpoint, config, request).read(seen);
}

}  // namespace moxie
