// SPDX-License-Identifier: Apache-2.0
// Group by group, so that each group's share of the output is known by itself.
#include "kernels/ref/output_path.hpp"

#include <cmath>

#include "base/checked.hpp"
#include "kernels/ref/rotary.hpp"

namespace moxie::ref {

namespace {

void check(const OutputPath& path, std::span<const double> o) {
  const std::uint64_t group_width = path.heads_per_group * path.head_dim;
  check_shape(path.wo_a);
  check_shape(path.wo_b);
  MOXIE_CHECK(o.size() == path.groups * group_width, "every head has values");
  MOXIE_CHECK(path.wo_a.rows == path.groups * path.group_rank && path.wo_a.cols == group_width,
              "wo_a has r rows per group and the columns of one");
  MOXIE_CHECK(path.wo_b.cols == path.groups * path.group_rank, "wo_b has r columns per group");
}

// [heads, head_dim] and the magnitudes of the terms.
std::vector<double> rotate_heads(const OutputPath& path, std::uint64_t position,
                                 OutputPathResult& result) {
  std::vector<double> magnitude = result.rotated;
  for (std::uint64_t first = 0; first < result.rotated.size(); first += path.head_dim) {
    rotate(std::span(result.rotated).subspan(first, path.head_dim), path.frequencies, position,
           Rotation::inverse);
    rotate_magnitude(std::span(magnitude).subspan(first, path.head_dim), path.frequencies,
                     position);
  }
  return magnitude;
}

void add_group(const OutputPath& path, std::uint64_t group, OutputPathResult& result) {
  const std::uint64_t first = group * path.group_rank;
  const auto z = std::span<const double>(result.z).subspan(first, path.group_rank);
  const auto z_magnitude =
      std::span<const double>(result.z_magnitude).subspan(first, path.group_rank);
  std::vector<double> z_abs;
  for (const double value : z) z_abs.push_back(std::abs(value));
  for (std::uint64_t row = 0; row < path.wo_b.rows; ++row) {
    const Product output = row_product(path.wo_b, row, first, z, z_abs);
    result.contributions.push_back(output.sum);
    result.y[row] += output.sum;
    result.magnitude[row] += output.magnitude;
    result.terms_magnitude[row] += row_product(path.wo_b, row, first, z, z_magnitude).magnitude;
  }
}

}  // namespace

OutputPathResult output_path(const OutputPath& path, std::span<const double> o,
                             std::uint64_t position) {
  check(path, o);
  OutputPathResult result;
  result.rotated.assign(o.begin(), o.end());
  for (auto* array : {&result.y, &result.magnitude, &result.terms_magnitude})
    array->assign(path.wo_b.rows, 0);
  const std::vector<double> magnitude = rotate_heads(path, position, result);

  const std::uint64_t width = path.heads_per_group * path.head_dim;
  for (std::uint64_t group = 0; group < path.groups; ++group) {
    const auto v = std::span<const double>(result.rotated).subspan(group * width, width);
    const auto v_magnitude = std::span<const double>(magnitude).subspan(group * width, width);
    for (std::uint64_t row = group * path.group_rank; row < (group + 1) * path.group_rank; ++row) {
      const Product product = row_product(path.wo_a, row, 0, v, v_magnitude);
      result.z.push_back(product.sum);
      result.z_magnitude.push_back(product.magnitude);
    }
    add_group(path, group, result);
  }
  return result;
}

}  // namespace moxie::ref
