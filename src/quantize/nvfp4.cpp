// SPDX-License-Identifier: Apache-2.0
// NVFP4: global = amax / reach, scale = UE4M3(block amax / (6 global)), code = value / (scale *
// global). All of it fp32, round to nearest even; errors of candidate scales are double.
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <limits>
#include <span>
#include <string>

#include "formats/e4m3.hpp"
#include "moxie/quantize.hpp"
#include "moxie/status.hpp"
#include "quantize/nvfp4_scales.hpp"
#include "quantize/quantise_rows.hpp"
#include "quantize/row_kernels.hpp"
#include "quantize/source_rows.hpp"

namespace moxie {

namespace {

float global_of(float amax, Nvfp4Recipe recipe) {
  if (amax == 0) return 1.0F;
  return std::max(amax / limits_of(recipe).global_reach, kNvfp4LeastGlobal);
}

std::string shortest(float value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end.ptr};
}

void require_global(float global, Nvfp4Recipe recipe) {
  const float most = decode_ue4m3(limits_of(recipe).most) * global;
  if (global >= kNvfp4LeastGlobal && most <= std::numeric_limits<float>::max()) return;
  throw Error(ErrorCode::input,
              {.code = "MOXIE-Q003",
               .message = "a global scale that can not be used",
               .expected = "a number from 2^-117 on whose product with the largest block scale is "
                           "finite in fp32",
               .got = shortest(global)});
}

}  // namespace

std::string_view name_of(Nvfp4Recipe recipe) {
  switch (recipe) {
    case Nvfp4Recipe::amax:
      return "amax";
    case Nvfp4Recipe::mse:
      return "mse";
    case Nvfp4Recipe::four_over_six:
      return "46";
    case Nvfp4Recipe::fp8_closed:
      return "fp8-closed";
  }
  return "unknown";
}

float nvfp4_dequant_mul(std::span<const MatrixRef> matrices, Nvfp4Recipe recipe) {
  float amax = 0;
  for (const MatrixRef& matrix : matrices) {
    require_whole_groups(matrix, BlockFormat::nvfp4);
    amax = std::max(amax, finite_amax(matrix, *usable_row_kernels().front()));
  }
  return global_of(amax, recipe);
}

Quantised quantise_nvfp4(const MatrixRef& matrix, const Nvfp4Options& options,
                         const RowKernels& kernels) {
  require_whole_groups(matrix, BlockFormat::nvfp4);
  const Nvfp4Recipe recipe = options.recipe;
  if (options.dequant_mul) require_global(*options.dequant_mul, recipe);
  const float own_amax = finite_amax(matrix, kernels);
  const float global = options.dequant_mul.value_or(global_of(own_amax, recipe));

  // The global is itself rounded: a maximum that it was made of is no saturation.
  const auto global_above =
      static_cast<double>(std::bit_cast<float>(std::bit_cast<std::uint32_t>(global) + 1));
  const double most_scale = static_cast<double>(decode_ue4m3(limits_of(recipe).most));
  const Nvfp4Settings settings = {
      .recipe = recipe,
      .global = global,
      .global_above = global_above,
      .tensor_reach = static_cast<double>(kE2m1Max) * most_scale * global_above};
  Quantised result = quantise_rows(matrix, BlockFormat::nvfp4, global,
                                   [&](const QuantRow& row) { kernels.nvfp4(row, settings); });
  result.stats.raised_globals = global == kNvfp4LeastGlobal ? 1 : 0;
  return result;
}

Quantised quantise_nvfp4(const MatrixRef& matrix, const Nvfp4Options& options) {
  return quantise_nvfp4(matrix, options, *usable_row_kernels().front());
}

}  // namespace moxie
