// SPDX-License-Identifier: Apache-2.0
// The tensors around the routed experts of one DeepSeek-V4 layer as the reference reads them: of a
// whole checkpoint, or of one rank of a packed set.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/ref/fp8_matrix.hpp"
#include "kernels/ref/output_path.hpp"
#include "kernels/ref/shared_expert.hpp"
#include "kernels/ref/vocabulary.hpp"
#include "moxie/model.hpp"

namespace moxie {

// Entries of each axis that the tensors hold: a model's own, or a rank's with its padding.
struct V4Widths {
  std::uint64_t heads = 0;
  std::uint64_t sinks = 0;  // heads that an attention backend allocates
  std::uint64_t output_groups = 0;
  std::uint64_t shared_inter = 0;
  std::uint64_t vocab = 0;
};

// Views of the checkpoint's bytes, which must outlive them. Errors: Error(unsupported) MOXIE-V011
// for a tensor that is absent or of another type or shape.
class V4Weights {
 public:
  V4Weights(const Checkpoint& checkpoint, const V4Config& config, const V4Widths& widths,
            std::uint64_t layer);

  [[nodiscard]] ref::Fp8Matrix wq_b() const;
  [[nodiscard]] std::vector<float> sinks() const;  // [sinks]
  [[nodiscard]] ref::OutputPath output_path(std::span<const double> frequencies) const;
  [[nodiscard]] ref::SharedExpert shared_expert(double limit) const;
  [[nodiscard]] std::vector<std::uint16_t> bf16_rows(const std::string& name) const;  // of vocab
  [[nodiscard]] bool has(const std::string& name) const;

 private:
  [[nodiscard]] const TensorInfo& require(const std::string& name, DType dtype,
                                          const Shape& shape) const;
  [[nodiscard]] ref::Fp8Matrix fp8(const std::string& name, std::uint64_t rows,
                                   std::uint64_t cols) const;

  const Checkpoint& checkpoint_;
  const V4Config& config_;
  V4Widths widths_;
  std::string prefix_;
};

// Radians per position of each pair of the layer's rotary table, by the keys of its config.
std::vector<double> rotary_of(const Json& config, const V4Config& v4, std::uint64_t layer);

}  // namespace moxie
