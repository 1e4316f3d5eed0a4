// SPDX-License-Identifier: Apache-2.0
// Expected names, types and shapes of a layer's expert tensors against what the checkpoint holds.
#include "model/layer_reader.hpp"

#include "formats/block_format.hpp"
#include "model/router_tensors.hpp"
#include "model/stacked_reader.hpp"
#include "model/tensor_requests.hpp"

namespace moxie {

namespace {

// Experts with tensors of their own.
class ExpertReader {
 public:
  ExpertReader(const ModelConfig& config, const LayerRequest& request, TensorRequests& tensors)
      : config_(config), request_(request), tensors_(tensors) {}

  ExpertTensors read(std::uint64_t expert) {
    tensors_.begin_expert(expert);
    ExpertTensors result;
    for (const ProjectionKind kind : projections_of(config_))
      result[kind] = read_projection(expert, kind);
    return result;
  }

  [[nodiscard]] bool is_known(std::string_view leaf) const {
    const DialectNames& names = *request_.names;
    const std::string_view bias = config_.biases ? names.bias : std::string_view();
    for (const ProjectionKind kind : projections_of(config_)) {
      const std::string_view projection = names.projections[static_cast<std::size_t>(kind)];
      if (!leaf.starts_with(projection)) continue;
      const std::string_view part = leaf.substr(projection.size());
      for (const std::string_view known :
           {names.codes, names.block_scales, names.dequant_mul, names.act_dequant_mul, bias}) {
        if (part == known && !known.empty()) return true;
      }
    }
    return false;
  }

 private:
  Projection read_projection(std::uint64_t expert, ProjectionKind kind) {
    const DialectNames& names = *request_.names;
    const bool down = kind == ProjectionKind::down;
    const std::uint64_t rows = down ? config_.hidden : config_.inter;
    const std::uint64_t columns = down ? config_.inter : config_.hidden;
    const std::string stem = request_.prefix + "." + std::to_string(expert) + "." +
                             std::string(names.projections[static_cast<std::size_t>(kind)]);
    const auto require = [&](std::string_view part) {
      return tensors_.require(stem + std::string(part));
    };
    Projection projection;
    projection.codes = codes(require(names.codes), rows, columns);
    projection.block_scales = scales(require(names.block_scales), rows, columns);
    if (!names.dequant_mul.empty()) projection.dequant_mul = scalar(require(names.dequant_mul));
    // Not every checkpoint stores one for every expert; whether it is needed is the plan's
    // question.
    if (!names.act_dequant_mul.empty()) {
      projection.act_dequant_mul = scalar(tensors_.find(stem + std::string(names.act_dequant_mul)));
    }
    if (config_.biases) {
      projection.bias =
          bias(require(names.bias.empty() ? std::string_view(".bias") : names.bias), rows);
    }
    return projection;
  }

  // Packed pairs in one-byte carriers [rows, columns/2], or a 4-bit dtype with the logical shape
  // [rows, columns].
  RowsView codes(const TensorInfo* tensor, std::uint64_t rows, std::uint64_t columns) {
    if (tensor == nullptr) return {};
    const bool carrier = (tensor->dtype == DType::u8 || tensor->dtype == DType::i8) &&
                         tensor->shape == Shape{rows, columns / 2};
    const bool logical = tensor->dtype == DType::f4 && tensor->shape == Shape{rows, columns};
    if (columns % 2 != 0 || (!carrier && !logical)) {
      tensors_.wrong(*tensor, "U8 or I8 " + to_string({rows, columns / 2}) + " packed pairs");
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
      tensors_.wrong(*tensor, (mxfp4 ? "F8_E8M0 or U8 " : "F8_E4M3 ") + to_string(shape));
      return {};
    }
    return rows_of(tensor, rows, columns / group);
  }

  RowsView bias(const TensorInfo* tensor, std::uint64_t rows) {
    if (tensor == nullptr) return {};
    if (is_bias_type(tensor->dtype) && tensor->shape == Shape{rows})
      return bias_rows(tensor, {.first = 0, .rows = rows, .step = 1});
    tensors_.wrong(*tensor, "BF16 or F32 " + to_string({rows}));
    return {};
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
    tensors_.wrong(*tensor, request_.names->reciprocal ? "F32 [1]" : "F32 []");
    return {};
  }

  const ModelConfig& config_;
  const LayerRequest& request_;
  TensorRequests& tensors_;
};

}  // namespace

RowsView bias_rows(const TensorInfo* tensor, BiasRows which) {
  const bool narrow = tensor->dtype == DType::bf16;
  const std::uint64_t bytes = bits_of(tensor->dtype) / 8;
  return {.tensor = tensor,
          .offset = which.first * bytes,
          .rows = which.rows,
          .row_bytes = sizeof(float),
          .row_stride = which.step * bytes,
          .packing = narrow ? RowPacking::bf16 : RowPacking::plain};
}

LayerExperts read_layer(const Checkpoint& checkpoint, const ModelConfig& config,
                        const LayerRequest& request, const ExpertNames& seen) {
  const bool stacked = request.dialect->stacked != nullptr;
  LayerExperts layer{.layer = request.layer,
                     .prefix = request.prefix,
                     .mtp = request.mtp,
                     .stacked = stacked,
                     .dialect = request.dialect->name,
                     .format = request.dialect->format,
                     .experts = {},
                     .router = find_router(checkpoint, request.prefix, config.router),
                     .problems = {}};
  TensorRequests tensors(checkpoint, request);
  if (stacked) {
    layer.experts = read_stacked(config, request, tensors);
    tensors.report_unknown(
        [&](std::string_view leaf) { return is_stacked_leaf(request, config.biases, leaf); });
  } else {
    ExpertReader reader(config, request, tensors);
    for (std::uint64_t expert = 0; expert < request.experts; ++expert)
      layer.experts.push_back(reader.read(expert));
    tensors.report_unknown([&](std::string_view leaf) { return reader.is_known(leaf); });
  }
  layer.problems = tensors.take_problems(seen);
  return layer;
}

}  // namespace moxie
