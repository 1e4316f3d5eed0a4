// SPDX-License-Identifier: Apache-2.0
// Root-mean-square normalisation of one row.
#pragma once

#include <span>
#include <vector>

namespace moxie::ref {

// x / sqrt(mean(x^2) + eps) * weight; an empty weight is 1 everywhere.
std::vector<double> rmsnorm(std::span<const double> x, std::span<const double> weight, double eps);

// 1 / sqrt(mean(x^2) + eps), the factor by itself.
double rms_factor(std::span<const double> x, double eps);

}  // namespace moxie::ref
