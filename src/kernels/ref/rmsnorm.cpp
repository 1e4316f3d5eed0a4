// SPDX-License-Identifier: Apache-2.0
// The mean is over all values of the row.
#include "kernels/ref/rmsnorm.hpp"

#include <cmath>

#include "base/checked.hpp"

namespace moxie::ref {

double rms_factor(std::span<const double> x, double eps) {
  MOXIE_CHECK(!x.empty(), "a mean has terms");
  double sum = 0;
  for (const double value : x) sum += value * value;
  return 1 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
}

std::vector<double> rmsnorm(std::span<const double> x, std::span<const double> weight, double eps) {
  MOXIE_CHECK(weight.empty() || weight.size() == x.size(), "every value has a weight");
  const double factor = rms_factor(x, eps);
  std::vector<double> y;
  for (std::size_t i = 0; i < x.size(); ++i)
    y.push_back(x[i] * factor * (weight.empty() ? 1 : weight[i]));
  return y;
}

}  // namespace moxie::ref
