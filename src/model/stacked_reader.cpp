// SPDX-License-Identifier: Apache-2.0
// A projection's rows inside a stacked tensor: all experts one after another, gate and up row by
// row in turn where they share it.
#include "model/stacked_reader.hpp"

#include <algorithm>
#include <string>

#include "formats/block_format.hpp"
#include "formats/gguf_block.hpp"

namespace moxie {

namespace {

class StackedReader {
 public:
  StackedReader(const ModelConfig& config, const LayerRequest& request, TensorRequests& tensors)
      : config_(config),
        request_(request),
        names_(*request.dialect->stacked),
        tensors_(tensors),
        experts_(request.experts) {}

  std::vector<ExpertTensors> read() {
    for (const ProjectionKind kind : projections_of(config_)) read_projection(kind);
    return std::move(experts_);
  }

 private:
  // Where the rows of one projection lie among those of its tensor: expert by expert, every
  // `step`-th from `first` on.
  struct Rows {
    std::uint64_t rows = 0;
    std::uint64_t columns = 0;
    std::uint64_t first = 0;
    std::uint64_t step = 1;

    [[nodiscard]] std::uint64_t in_tensor() const { return rows * step; }
  };

  [[nodiscard]] Rows rows_of(ProjectionKind kind) const {
    if (kind == ProjectionKind::down) return {config_.hidden, config_.inter};
    const bool shared = names_.codes[0] == names_.codes[1];
    const bool second = shared && kind == ProjectionKind::up;
    return {config_.inter, config_.hidden, second ? 1U : 0U, shared ? 2U : 1U};
  }

  void read_projection(ProjectionKind kind) {
    const auto at = static_cast<std::size_t>(kind);
    const Rows rows = rows_of(kind);
    const TensorInfo* codes = require(names_.codes[at]);
    if (names_.kind == StackKind::blocks) {
      read_blocks(kind, rows, codes, require(names_.block_scales[at]));
    } else {
      read_gguf(kind, rows, codes);
    }
    if (config_.biases) read_biases(kind, rows, require(names_.biases[at]));
    if (block_spec(request_.dialect->format).has_global) {
      const ScalarRef one{.one = true};
      read_scalars(find(names_.dequant_muls[at]), one, [&](std::uint64_t expert) -> ScalarRef& {
        return experts_[expert][kind].dequant_mul;
      });
      read_scalars(find(names_.act_dequant_muls[at]), {}, [&](std::uint64_t expert) -> ScalarRef& {
        return experts_[expert][kind].act_dequant_mul;
      });
    }
  }

  [[nodiscard]] std::string full(std::string_view leaf) const {
    return request_.prefix + "." + std::string(leaf);
  }
  const TensorInfo* require(std::string_view leaf) { return tensors_.require(full(leaf)); }
  [[nodiscard]] const TensorInfo* find(std::string_view leaf) const {
    return leaf.empty() ? nullptr : tensors_.find(full(leaf));
  }

  void read_blocks(ProjectionKind kind, Rows rows, const TensorInfo* codes,
                   const TensorInfo* scales) {
    constexpr std::uint64_t kGroup = scale_group(BlockFormat::mxfp4);
    const std::uint64_t groups = rows.columns / kGroup;
    const Shape code_shape{experts_.size(), rows.in_tensor(), groups, kGroup / 2};
    const Shape scale_shape{experts_.size(), rows.in_tensor(), groups};
    const bool whole = rows.columns % kGroup == 0;
    if (codes != nullptr) {
      if (whole && codes->dtype == DType::u8 && codes->shape == code_shape) {
        place(rows, codes, {.stored = rows.columns / 2, .canonical = rows.columns / 2},
              [&](ExpertTensors& expert) -> RowsView& { return expert[kind].codes; });
      } else {
        tensors_.wrong(*codes, "U8 " + to_string(code_shape));
      }
    }
    if (scales != nullptr) {
      if (whole && is_scale_type(BlockFormat::mxfp4, scales->dtype) &&
          scales->shape == scale_shape) {
        place(rows, scales, {.stored = groups, .canonical = groups},
              [&](ExpertTensors& expert) -> RowsView& { return expert[kind].block_scales; });
      } else {
        tensors_.wrong(*scales, "U8 or F8_E8M0 " + to_string(scale_shape));
      }
    }
  }

  void read_gguf(ProjectionKind kind, Rows rows, const TensorInfo* weights) {
    if (weights == nullptr) return;
    const BlockFormat format = request_.dialect->format;
    const bool mxfp4 = format == BlockFormat::mxfp4;
    const GgufBlock block = gguf_block(format);
    const DType dtype = mxfp4 ? DType::mxfp4_blocks : DType::nvfp4_blocks;
    const Shape shape{experts_.size(), rows.in_tensor(), rows.columns};
    if (weights->dtype != dtype || weights->shape != shape || rows.columns % block.elems() != 0) {
      tensors_.wrong(*weights, std::string(name_of(dtype)) + " " + to_string(shape));
      return;
    }
    const std::uint64_t stored = rows.columns / block.elems() * block.bytes();
    place(rows, weights,
          {.stored = stored,
           .canonical = rows.columns / 2,
           .packing = mxfp4 ? RowPacking::mxfp4_codes : RowPacking::nvfp4_codes},
          [&](ExpertTensors& expert) -> RowsView& { return expert[kind].codes; });
    place(rows, weights,
          {.stored = stored,
           .canonical = rows.columns / scale_group(format),
           .packing = mxfp4 ? RowPacking::mxfp4_scales : RowPacking::nvfp4_scales},
          [&](ExpertTensors& expert) -> RowsView& { return expert[kind].block_scales; });
  }

  struct RowShape {
    std::uint64_t stored = 0;     // bytes
    std::uint64_t canonical = 0;  // bytes
    RowPacking packing = RowPacking::plain;
  };

  // Every expert's part of a tensor that holds `rows` of each.
  template <class ViewOf>
  void place(Rows rows, const TensorInfo* tensor, RowShape shape, const ViewOf& view_of) {
    for (std::uint64_t expert = 0; expert < experts_.size(); ++expert) {
      view_of(experts_[expert]) = {
          .tensor = tensor,
          .offset = (expert * rows.in_tensor() + rows.first) * shape.stored,
          .rows = rows.rows,
          .row_bytes = shape.canonical,
          .row_stride = rows.step * shape.stored,
          .packing = shape.packing};
    }
  }

  void read_biases(ProjectionKind kind, Rows rows, const TensorInfo* biases) {
    if (biases == nullptr) return;
    const Shape shape{experts_.size(), rows.in_tensor()};
    if (!is_bias_type(biases->dtype) || biases->shape != shape) {
      tensors_.wrong(*biases, "BF16 or F32 " + to_string(shape));
      return;
    }
    for (std::uint64_t expert = 0; expert < experts_.size(); ++expert) {
      experts_[expert][kind].bias = bias_rows(
          biases,
          {.first = expert * rows.in_tensor() + rows.first, .rows = rows.rows, .step = rows.step});
    }
  }

  // One value per expert.
  template <class ScalarOf>
  void read_scalars(const TensorInfo* tensor, ScalarRef absent, const ScalarOf& scalar_of) {
    const Shape shape{experts_.size()};
    if (tensor != nullptr && (tensor->dtype != DType::f32 || tensor->shape != shape)) {
      tensors_.wrong(*tensor, "F32 " + to_string(shape));
      return;
    }
    for (std::uint64_t expert = 0; expert < experts_.size(); ++expert) {
      scalar_of(expert) = tensor == nullptr ? absent : ScalarRef{.tensor = tensor, .index = expert};
    }
  }

  const ModelConfig& config_;
  const LayerRequest& request_;
  const StackedNames& names_;
  TensorRequests& tensors_;
  std::vector<ExpertTensors> experts_;
};

}  // namespace

std::vector<ExpertTensors> read_stacked(const ModelConfig& config, const LayerRequest& request,
                                        TensorRequests& tensors) {
  return StackedReader(config, request, tensors).read();
}

bool is_stacked_leaf(const LayerRequest& request, bool biases, std::string_view leaf) {
  const StackedNames& names = *request.dialect->stacked;
  for (const auto* leaves : {&names.codes, &names.block_scales, &names.biases, &names.dequant_muls,
                             &names.act_dequant_muls}) {
    if (leaves == &names.biases && !biases) continue;
    if (!leaf.empty() && std::ranges::find(*leaves, leaf) != leaves->end()) return true;
  }
  return false;
}

}  // namespace moxie
