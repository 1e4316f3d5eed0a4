// SPDX-License-Identifier: Apache-2.0
// Dense values are quantised; FP4 codes stay where they can, and are decoded and quantised anew
// where not.
#include "convert/expert.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "base/checked.hpp"
#include "formats/block_format.hpp"
#include "formats/e2m1.hpp"
#include "formats/nibble_order.hpp"
#include "model/dense_experts.hpp"

namespace moxie::convert {

namespace {

// An FP4 projection of the source with rows that have no gaps.
struct Fp4Source {
  std::vector<std::uint8_t> codes;  // owned only where the rows have gaps
  std::vector<std::uint8_t> scales;
  Fp4MatrixRef matrix;
};

// Adds to the first finding of an error where it applies.
[[noreturn]] void rethrow_at(const Error& error, const Source& source, const TensorInfo& tensor,
                             int layer, std::uint64_t expert) {
  Finding finding = error.findings().front();
  finding.where.file = source.model->checkpoint.files()[tensor.file].path.string();
  finding.where.tensor = tensor.name;
  finding.where.layer = layer;
  finding.where.expert = expert;
  throw Error(error.code(), std::move(finding));
}

const std::uint8_t* rows_without_gaps(const Checkpoint& checkpoint, const RowsView& view,
                                      std::vector<std::uint8_t>& owned) {
  if (view.packing == RowPacking::plain && view.row_stride == view.row_bytes) {
    const std::byte* data = checkpoint.bytes(*view.tensor).data() + view.offset;
    return reinterpret_cast<const std::uint8_t*>(data);
  }
  owned.resize(view.rows * view.row_bytes);
  const std::span<std::byte> rows = std::as_writable_bytes(std::span(owned));
  for (std::uint64_t row = 0; row < view.rows; ++row)
    read_row(checkpoint, view, row, 0, rows.subspan(row * view.row_bytes, view.row_bytes));
  return owned.data();
}

Fp4Source read_fp4(const Source& source, const Projection& projection, Extent extent) {
  const Checkpoint& checkpoint = source.model->checkpoint;
  const BlockFormat format = *source.fp4;
  Fp4Source read;
  read.matrix = {.format = format,
                 .rows = extent.rows,
                 .cols = extent.cols,
                 .codes = rows_without_gaps(checkpoint, projection.codes, read.codes),
                 .scales = rows_without_gaps(checkpoint, projection.block_scales, read.scales),
                 .dequant_mul = 1.0F};
  const std::uint64_t groups = to_scale_groups(Elems{extent.cols}, format).value;
  for (std::uint64_t i = 0; i < extent.rows * groups; ++i) {
    if (scale_is_valid(format, read.matrix.scales[i])) continue;
    throw Error(ErrorCode::input,
                {.code = "MOXIE-Q002",
                 .message = "a block scale is no number at row " + std::to_string(i / groups) +
                            ", group " + std::to_string(i % groups),
                 .hint = "the checkpoint is corrupt; download the file again"});
  }
  if (format == BlockFormat::nvfp4)
    read.matrix.dequant_mul = read_scalar(checkpoint, projection.dequant_mul);
  return read;
}

struct Comparison {
  QuantStats stats;
  std::uint64_t changed = 0;
};

// What became of the values of `from`: 16 elements at a time, which share a scale in both.
Comparison compare(const Fp4MatrixRef& from, const Fp4MatrixRef& to) {
  constexpr std::uint64_t kElems = 16;
  Comparison result;
  QuantStats& stats = result.stats;
  const std::uint64_t blocks = from.rows * from.cols / kElems;
  const auto multiplier = [](const Fp4MatrixRef& matrix, std::uint64_t block) {
    const std::uint64_t group = block * kElems / scale_group(matrix.format);
    return decode_scale(matrix.format, matrix.scales[group]) *
           static_cast<double>(matrix.dequant_mul);
  };
  for (std::uint64_t block = 0; block < blocks; ++block) {
    const double before_mul = multiplier(from, block);
    const double after_mul = multiplier(to, block);
    for (std::uint64_t i = 0; i < kElems; ++i) {
      const std::uint64_t byte = (block * kElems + i) / 2;
      const auto code = [&](const Fp4MatrixRef& matrix) {
        return i % 2 == 0 ? low_nibble(matrix.codes[byte]) : high_nibble(matrix.codes[byte]);
      };
      const double before = static_cast<double>(decode_e2m1(code(from))) * before_mul;
      const double after = static_cast<double>(decode_e2m1(code(to))) * after_mul;
      const double error = std::abs(after - before);
      result.changed += before != after ? 1U : 0U;
      stats.flushed_elems += before != 0 && after == 0 ? 1U : 0U;
      stats.signal += before * before;
      stats.noise += error * error;
      stats.max_error = std::max(stats.max_error, error);
    }
  }
  stats.elems = from.rows * from.cols;
  stats.blocks = stats.elems / scale_group(to.format);
  return result;
}

ConvertedProjection converted(Fp4Matrix matrix) {
  ConvertedProjection result;
  result.rows = matrix.rows;
  result.codes = std::move(matrix.codes);
  result.scales = std::move(matrix.scales);
  return result;
}

// A cast of `from`, held against it.
ConvertedProjection cast_of(const Fp4MatrixRef& from, Fp4Matrix to) {
  const Comparison comparison = compare(from, to.ref());
  ConvertedProjection result = converted(std::move(to));
  result.stats = comparison.stats;
  result.changed = comparison.changed;
  return result;
}

float in_convention(const Target& target, float multiplier) {
  return target.reciprocal() ? reciprocal_of(multiplier) : multiplier;
}

// A stored scalar in the target's convention; unchanged where it is the source's.
float scalar_for(const Target& target, const Checkpoint& checkpoint, const ScalarRef& scalar) {
  read_scalar(checkpoint, scalar);  // refuses what is no scale
  const float stored = stored_scalar(checkpoint, scalar);
  return scalar.reciprocal == target.reciprocal() ? stored : reciprocal_of(stored);
}

class ExpertConverter {
 public:
  ExpertConverter(const Source& source, const Target& target, const SourceLayer& layer,
                  std::uint64_t expert)
      : source_(source), target_(target), layer_(layer), expert_(expert) {}

  ConvertedExpert convert() {
    if (layer_.dense != nullptr) {
      convert_dense();
    } else {
      convert_fp4();
    }
    return std::move(result_);
  }

 private:
  [[nodiscard]] static std::size_t index(ProjectionKind kind) {
    return static_cast<std::size_t>(kind);
  }
  [[nodiscard]] bool has_gate() const { return source_.kinds.size() == 3; }

  // Runs `body`, whose errors are about this projection.
  template <class Body>
  auto at(ProjectionKind kind, const Body& body) {
    const TensorInfo& tensor = layer_.dense != nullptr
                                   ? *layer_.dense->experts[expert_][index(kind)].weight
                                   : *layer_.fp4->experts[expert_][kind].codes.tensor;
    try {
      return body();
    } catch (const Error& error) {
      rethrow_at(error, source_, tensor, layer_.layer, expert_);
    }
  }

  MatrixRef dense_matrix(ProjectionKind kind, std::vector<float>& values) {
    const DenseMatrix& matrix = layer_.dense->experts[expert_][index(kind)];
    if (const auto in_place = matrix_in_place(source_.model->checkpoint, matrix)) return *in_place;
    values.resize(matrix.rows * matrix.cols);
    read_values(source_.model->checkpoint, matrix, values.data());
    return {.data = values.data(),
            .dtype = DType::f32,
            .rows = matrix.rows,
            .cols = matrix.cols,
            .row_stride = matrix.cols};
  }

  void take(ProjectionKind kind, Quantised quantised) {
    const float global = quantised.matrix.dequant_mul;
    const QuantStats stats = quantised.stats;
    ConvertedProjection& result = result_[index(kind)];
    result = converted(std::move(quantised.matrix));
    result.stats = stats;
    if (target_.format == ConvertFormat::nvfp4) result.global = in_convention(target_, global);
  }

  // Gate and up get one global: the larger of the two that they would have.
  void convert_dense() {
    std::array<std::vector<float>, 3> values;
    std::array<MatrixRef, 3> matrices;
    for (const ProjectionKind kind : source_.kinds)
      matrices[index(kind)] = dense_matrix(kind, values[index(kind)]);
    std::array<float, 3> globals{};
    if (target_.format == ConvertFormat::nvfp4) {
      for (const ProjectionKind kind : source_.kinds) {
        globals[index(kind)] = at(kind, [&] {
          return nvfp4_dequant_mul(std::span(&matrices[index(kind)], 1), target_.nvfp4_recipe);
        });
      }
      share_global(matrices, globals);
    }
    for (const ProjectionKind kind : source_.kinds) {
      take(kind, at(kind, [&] {
             const MatrixRef& matrix = matrices[index(kind)];
             return target_.format == ConvertFormat::mxfp4
                        ? quantise_mxfp4(matrix, target_.mxfp4_recipe)
                        : quantise_nvfp4(matrix, {.recipe = target_.nvfp4_recipe,
                                                  .dequant_mul = globals[index(kind)]});
           }));
    }
  }

  void share_global(const std::array<MatrixRef, 3>& matrices, std::array<float, 3>& globals) const {
    if (!has_gate()) return;
    const float both = nvfp4_dequant_mul(std::span(matrices).first(2), target_.nvfp4_recipe);
    globals[0] = globals[1] = both;
  }

  void convert_fp4() {
    std::array<Fp4Source, 3> read;
    for (const ProjectionKind kind : source_.kinds) {
      read[index(kind)] = at(kind, [&] {
        return read_fp4(source_, layer_.fp4->experts[expert_][kind],
                        extent_of(source_.model->config, kind));
      });
    }
    if (target_.is_fp8()) {
      for (const ProjectionKind kind : source_.kinds)
        result_[index(kind)] = at(kind, [&] { return exact_fp8(read[index(kind)].matrix); });
      return;
    }
    if (*source_.fp4 == target_.block_format()) {
      for (const ProjectionKind kind : source_.kinds)
        at(kind, [&] { keep(kind, read[index(kind)].matrix); });
    } else if (target_.format == ConvertFormat::nvfp4) {
      const std::size_t first = has_gate() ? 0 : 1;
      cast(read, first, 2 - first);
      cast(read, 2, 1);
    } else {
      for (const ProjectionKind kind : source_.kinds)
        at(kind, [&] { to_mxfp4(kind, read[index(kind)].matrix); });
    }
    if (target_.format != ConvertFormat::nvfp4) return;
    for (const ProjectionKind kind : source_.kinds) {
      const ScalarRef& input = layer_.fp4->experts[expert_][kind].act_dequant_mul;
      if (!input.present()) continue;
      result_[index(kind)].input =
          at(kind, [&] { return scalar_for(target_, source_.model->checkpoint, input); });
    }
  }

  // Same format: codes and scales stay.
  void keep(ProjectionKind kind, const Fp4MatrixRef& matrix) {
    ConvertedProjection& result = result_[index(kind)];
    const std::uint64_t groups = matrix.cols / scale_group(matrix.format);
    result.rows = matrix.rows;
    result.codes.assign(matrix.codes, matrix.codes + matrix.rows * matrix.cols / 2);
    result.scales.assign(matrix.scales, matrix.scales + matrix.rows * groups);
    const Comparison same = compare(matrix, matrix);
    result.stats = same.stats;
    result.changed = same.changed;
    if (matrix.format == BlockFormat::nvfp4) {
      result.global = scalar_for(target_, source_.model->checkpoint,
                                 layer_.fp4->experts[expert_][kind].dequant_mul);
    }
  }

  // Of `count` projections from `first` on, with one global.
  void cast(const std::array<Fp4Source, 3>& read, std::size_t first, std::size_t count) {
    const auto kind = static_cast<ProjectionKind>(first);
    std::vector<Fp4MatrixRef> matrices;
    for (std::size_t i = first; i < first + count; ++i) matrices.push_back(read[i].matrix);
    Nvfp4Cast made = at(kind, [&] { return mxfp4_to_nvfp4(matrices); });
    for (std::size_t i = 0; i < count; ++i) {
      const float global = made.matrices[i].dequant_mul;
      result_[first + i] = cast_of(matrices[i], std::move(made.matrices[i]));
      result_[first + i].global = in_convention(target_, global);
    }
  }

  void to_mxfp4(ProjectionKind kind, const Fp4MatrixRef& matrix) {
    ConvertedProjection& result = result_[index(kind)];
    if (auto exact = nvfp4_to_mxfp4(matrix); exact && exact->dequant_mul == 1.0F) {
      result = cast_of(matrix, std::move(*exact));
      return;
    }
    std::vector<float> values(matrix.rows * matrix.cols);
    for (std::uint64_t row = 0; row < matrix.rows; ++row) {
      const std::uint8_t* codes = matrix.codes + row * matrix.cols / 2;
      const std::uint8_t* scales = matrix.scales + row * (matrix.cols / scale_group(matrix.format));
      for (std::uint64_t col = 0; col < matrix.cols; ++col) {
        values[row * matrix.cols + col] = static_cast<float>(
            dequantise_element(codes, scales, col, matrix.format, matrix.dequant_mul));
      }
    }
    Quantised quantised = quantise_mxfp4({.data = values.data(),
                                          .dtype = DType::f32,
                                          .rows = matrix.rows,
                                          .cols = matrix.cols,
                                          .row_stride = matrix.cols},
                                         target_.mxfp4_recipe);
    const std::uint64_t changed = compare(matrix, quantised.matrix.ref()).changed;
    take(kind, std::move(quantised));
    result.changed = changed;
  }

  const Source& source_;
  const Target& target_;
  const SourceLayer& layer_;
  std::uint64_t expert_;
  ConvertedExpert result_;
};

std::vector<std::uint8_t> bytes_of(float value) {
  const auto bits = std::bit_cast<std::array<std::uint8_t, sizeof value>>(value);
  return {bits.begin(), bits.end()};
}

// The biases of one projection in their stored type.
std::vector<std::uint8_t> stored_biases(const Checkpoint& checkpoint, const RowsView& view) {
  const std::uint64_t width = bits_of(view.tensor->dtype) / 8;
  const auto stored = checkpoint.bytes(*view.tensor);
  std::vector<std::uint8_t> biases(view.rows * width);
  for (std::uint64_t row = 0; row < view.rows; ++row)
    std::memcpy(biases.data() + row * width, stored.data() + view.offset + row * view.row_stride,
                width);
  return biases;
}

// Rows of `a` and `b` in turn.
std::vector<std::uint8_t> interleaved(const std::vector<std::uint8_t>& a,
                                      const std::vector<std::uint8_t>& b, std::uint64_t rows) {
  std::vector<std::uint8_t> both(a.size() + b.size());
  const std::uint64_t row_bytes = a.size() / rows;
  for (std::uint64_t row = 0; row < rows; ++row) {
    std::memcpy(both.data() + 2 * row * row_bytes, a.data() + row * row_bytes, row_bytes);
    std::memcpy(both.data() + (2 * row + 1) * row_bytes, b.data() + row * row_bytes, row_bytes);
  }
  return both;
}

std::vector<Piece> stacked_pieces(const SourceLayer& layer, std::uint64_t expert,
                                  ConvertedExpert& parts) {
  std::vector<Piece> pieces;
  const auto add = [&](std::string_view name, std::vector<std::uint8_t> bytes) {
    const std::uint64_t offset = expert * bytes.size();
    pieces.push_back({layer.prefix + std::string(name), offset, std::move(bytes)});
  };
  add(kGateUpBlocks, interleaved(parts[0].codes, parts[1].codes, parts[0].rows));
  add(kGateUpScales, interleaved(parts[0].scales, parts[1].scales, parts[0].rows));
  add(kDownBlocks, std::move(parts[2].codes));
  add(kDownScales, std::move(parts[2].scales));
  return pieces;
}

}  // namespace

ConvertedExpert convert_expert(const Source& source, const Target& target,
                               const ActivationScales& activations, const SourceLayer& layer,
                               std::uint64_t expert) {
  ConvertedExpert result = ExpertConverter(source, target, layer, expert).convert();
  if (activations.empty() || target.format != ConvertFormat::nvfp4) return result;
  const auto [hidden_mul, inter_mul] = activations.at(layer.layer);
  for (const ProjectionKind kind : source.kinds) {
    result[static_cast<std::size_t>(kind)].input =
        in_convention(target, kind == ProjectionKind::down ? inter_mul : hidden_mul);
  }
  return result;
}

std::uint64_t working_bytes(const Source& source, const Target& target) {
  const ModelConfig& config = source.model->config;
  const std::uint64_t elems = source.kinds.size() * config.hidden * config.inter;
  // Decoded values, the source's pages, the result, and once more while it is put together. A row's
  // statistics stand beside all of it.
  const std::uint64_t decoded = elems * sizeof(float);
  const std::uint64_t read = elems * (source.fp4 ? 1 : sizeof(float));
  const std::uint64_t rows = 2 * config.inter + config.hidden;
  return decoded + read + 2 * elems * (target.is_fp8() ? 2 : 1) + rows * sizeof(QuantStats);
}

float reciprocal_of(float stored) {
  const float nearest = 1.0F / stored;
  for (const float candidate : {nearest, std::nextafter(nearest, 0.0F),
                                std::nextafter(nearest, std::numeric_limits<float>::max())}) {
    if (1.0F / candidate == stored) return candidate;
  }
  return nearest;
}

std::vector<Piece> pieces_of(const Source& source, const Target& target, const SourceLayer& layer,
                             std::uint64_t expert, ConvertedExpert converted) {
  if (!target.is_fp8() && target.dialect == DialectKind::gpt_oss)
    return stacked_pieces(layer, expert, converted);
  std::array<bool, 3> inputs{};
  for (std::size_t i = 0; i < converted.size(); ++i) inputs[i] = converted[i].input.has_value();
  const std::vector<TensorEntry> entries = entries_of_expert(source, target, layer, expert, inputs);
  std::vector<Piece> pieces;
  std::size_t next = 0;
  const auto add = [&](std::vector<std::uint8_t> bytes) {
    MOXIE_CHECK(next < entries.size() && entries[next].bytes() == bytes.size(),
                "a converted projection has the bytes that were announced");
    pieces.push_back({entries[next++].name, 0, std::move(bytes)});
  };
  for (const ProjectionKind kind : source.kinds) {
    ConvertedProjection& projection = converted[static_cast<std::size_t>(kind)];
    add(std::move(projection.codes));
    add(std::move(projection.scales));
    if (projection.global) add(bytes_of(*projection.global));
    if (projection.input) add(bytes_of(*projection.input));
    if (splits_biases(source, target))
      add(stored_biases(source.model->checkpoint, layer.fp4->experts[expert][kind].bias));
  }
  return pieces;
}

}  // namespace moxie::convert
