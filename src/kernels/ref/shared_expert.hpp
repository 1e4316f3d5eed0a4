// SPDX-License-Identifier: Apache-2.0
// The shared expert with FP8 weights for one token and any part of its intermediate axis.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ref/activation_range.hpp"
#include "kernels/ref/fp8_matrix.hpp"

namespace moxie::ref {

// The function is that of the routed experts of the model, with the same limit. There is no router
// weight, and activations are not quantised.
struct SharedExpert {
  ActivationFunction function = {.kind = Activation::clamped_swiglu, .limit = 10};
  Fp8Matrix gate;  // [inter, hidden] w1
  Fp8Matrix up;    // [inter, hidden] w3
  Fp8Matrix down;  // [hidden, inter] w2
};

struct SharedExpertResult {
  std::vector<double> gate;               // [inter] before the function
  std::vector<double> up;                 // [inter]
  std::vector<double> gate_up_magnitude;  // [inter] the larger one of both products
  std::vector<double> act;                // [inter]
  std::vector<double> y;                  // [hidden]
  std::vector<double> magnitude;          // [hidden] sums of |w2| |act|
};

// Columns whose w1, w3 rows and w2 columns are zero add exact zeros.
SharedExpertResult shared_expert(const SharedExpert& expert, std::span<const double> x);

}  // namespace moxie::ref
