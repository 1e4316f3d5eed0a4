// SPDX-License-Identifier: Apache-2.0
// All scales are read before anything is written: they are few beside the weights.
#include "convert/scales.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "convert/expert.hpp"
#include "model/dense_experts.hpp"

namespace moxie::convert {

namespace {

std::string text_of(float value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

class ScaleChecker {
 public:
  ScaleChecker(const Source& source, const Target& target) : source_(source), target_(target) {}

  void check() {
    for (const SourceLayer& layer : source_.layers) {
      layer_ = layer.layer;
      for (expert_ = 0; expert_ < layer.experts; ++expert_) {
        for (const ProjectionKind kind : source_.kinds) {
          if (layer.dense != nullptr) {
            check_tiles(layer.dense->experts[expert_][static_cast<std::size_t>(kind)]);
          } else if (source_.fp4 == BlockFormat::nvfp4) {
            check_scalar(layer.fp4->experts[expert_][kind].dequant_mul);
            if (target_.format == ConvertFormat::nvfp4)
              check_scalar(layer.fp4->experts[expert_][kind].act_dequant_mul);
          }
        }
      }
    }
  }

 private:
  [[nodiscard]] const Checkpoint& checkpoint() const { return source_.model->checkpoint; }

  [[noreturn]] void refuse(const TensorInfo& tensor, Finding finding) const {
    finding.code = "MOXIE-M007";
    finding.where = {.file = checkpoint().files()[tensor.file].path.string(),
                     .tensor = tensor.name,
                     .layer = layer_,
                     .expert = expert_};
    throw Error(ErrorCode::input, std::move(finding));
  }

  void check_tiles(const DenseMatrix& matrix) const {
    const auto bad = find_bad_scale(checkpoint(), matrix);
    if (!bad) return;
    refuse(*matrix.scales,
           {.message = "the scale of a tile is no multiplier: row " + std::to_string(bad->row) +
                       ", column " + std::to_string(bad->col) + " of the scales",
            .expected = "a finite number greater than zero",
            .got = text_of(bad->value),
            .hint = "the checkpoint is corrupt; download the file again"});
  }

  void check_scalar(const ScalarRef& scalar) const {
    if (scalar.tensor == nullptr) return;
    float value = 0;
    try {
      value = read_scalar(checkpoint(), scalar);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::input) throw;
      refuse(*scalar.tensor, error.findings().front());
    }
    if (target_.format != ConvertFormat::nvfp4 || scalar.reciprocal || !target_.reciprocal())
      return;
    if (std::isfinite(reciprocal_of(value))) return;
    refuse(*scalar.tensor, {.message = "the reciprocal of the scale, which the dialect stores, is "
                                       "not finite",
                            .expected = "at least 2.94e-39",
                            .got = text_of(value),
                            .hint = "use --dialect modelopt"});
  }

  const Source& source_;
  const Target& target_;
  int layer_ = 0;
  std::uint64_t expert_ = 0;
};

}  // namespace

void require_scales(const Source& source, const Target& target) {
  ScaleChecker(source, target).check();
}

}  // namespace moxie::convert
