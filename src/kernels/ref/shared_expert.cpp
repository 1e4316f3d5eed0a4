// SPDX-License-Identifier: Apache-2.0
// Two products, the function, one product.
#include "kernels/ref/shared_expert.hpp"

#include <algorithm>

#include "base/checked.hpp"

namespace moxie::ref {

SharedExpertResult shared_expert(const SharedExpert& expert, std::span<const double> x) {
  for (const Fp8Matrix* matrix : {&expert.gate, &expert.up, &expert.down}) check_shape(*matrix);
  MOXIE_CHECK(expert.gate.rows == expert.up.rows && expert.gate.rows == expert.down.cols,
              "the products meet in one intermediate axis");
  SharedExpertResult result;
  for (std::uint64_t row = 0; row < expert.gate.rows; ++row) {
    const Product gate = row_product(expert.gate, row, x);
    const Product up = row_product(expert.up, row, x);
    result.gate.push_back(gate.sum);
    result.up.push_back(up.sum);
    result.gate_up_magnitude.push_back(std::max(gate.magnitude, up.magnitude));
    result.act.push_back(activate(expert.function, gate.sum, up.sum));
  }
  for (std::uint64_t row = 0; row < expert.down.rows; ++row) {
    const Product output = row_product(expert.down, row, result.act);
    result.y.push_back(output.sum);
    result.magnitude.push_back(output.magnitude);
  }
  return result;
}

}  // namespace moxie::ref
