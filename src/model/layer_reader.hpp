// SPDX-License-Identifier: Apache-2.0
// Reads the expert tensors of one layer under one dialect into canonical form, and says what is
// wrong with them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/dialects/dialect.hpp"
#include "model/expert_names.hpp"
#include "moxie/model.hpp"

namespace moxie {

struct LayerRequest {
  int layer = 0;
  bool mtp = false;
  std::string prefix;
  std::uint64_t experts = 0;
  const Dialect* dialect = nullptr;
  const DialectNames* names = nullptr;
  const ExpertGroup* group = nullptr;  // nullptr: nothing of the layer is on disk
  std::vector<Finding> problems{};     // known before reading
};

// Types in which block scales of a format are stored: F8_E8M0 or its byte for MXFP4, F8_E4M3 for
// NVFP4.
constexpr bool is_scale_type(BlockFormat format, DType dtype) {
  if (format == BlockFormat::mxfp4) return dtype == DType::f8_e8m0 || dtype == DType::u8;
  return dtype == DType::f8_e4m3;
}

// Types that can hold E2M1 codes: one-byte carriers of two, or a 4-bit type.
constexpr bool is_code_type(DType dtype) {
  return dtype == DType::u8 || dtype == DType::i8 || dtype == DType::f4;
}

constexpr bool is_bias_type(DType dtype) { return dtype == DType::bf16 || dtype == DType::f32; }

// Values of a bias tensor: every `step`-th from `first` on.
struct BiasRows {
  std::uint64_t first = 0;
  std::uint64_t rows = 0;
  std::uint64_t step = 1;
};
// As canonical rows. The tensor is of a bias type.
RowsView bias_rows(const TensorInfo* tensor, BiasRows which);

// Headers only. What is absent, or of a wrong type or shape, goes into `problems`.
LayerExperts read_layer(const Checkpoint& checkpoint, const ModelConfig& config,
                        const LayerRequest& request, const ExpertNames& seen);

}  // namespace moxie
