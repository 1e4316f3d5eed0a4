// SPDX-License-Identifier: Apache-2.0
// MXFP4: scales by the exponent of the group's maximum, no global.
#include "moxie/quantize.hpp"
#include "quantize/quantise_rows.hpp"
#include "quantize/row_kernels.hpp"
#include "quantize/source_rows.hpp"

namespace moxie {

std::string_view name_of(Mxfp4Recipe recipe) {
  switch (recipe) {
    case Mxfp4Recipe::ceil:
      return "ceil";
    case Mxfp4Recipe::floor:
      return "floor";
    case Mxfp4Recipe::even:
      return "even";
    case Mxfp4Recipe::mse:
      return "mse";
  }
  return "unknown";
}

Quantised quantise_mxfp4(const MatrixRef& matrix, Mxfp4Recipe recipe, const RowKernels& kernels) {
  require_whole_groups(matrix, BlockFormat::mxfp4);
  finite_amax(matrix, kernels);
  return quantise_rows(matrix, BlockFormat::mxfp4, 1.0F,
                       [&](const QuantRow& row) { kernels.mxfp4(row, recipe); });
}

Quantised quantise_mxfp4(const MatrixRef& matrix, Mxfp4Recipe recipe) {
  return quantise_mxfp4(matrix, recipe, *usable_row_kernels().front());
}

}  // namespace moxie
