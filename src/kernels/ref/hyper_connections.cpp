// SPDX-License-Identifier: Apache-2.0
// The steps in the order of the published reference, epsilons included.
#include "kernels/ref/hyper_connections.hpp"

#include <algorithm>
#include <cmath>

#include "base/checked.hpp"
#include "kernels/ref/rmsnorm.hpp"

namespace moxie::ref {

namespace {

double sigmoid(double value) { return 1 / (1 + std::exp(-value)); }

// fn times all copies, under one statistic over all of them.
std::vector<double> projections(std::span<const double> fn, std::span<const double> x, double eps) {
  MOXIE_CHECK(!x.empty() && fn.size() % x.size() == 0, "fn has whole rows");
  const double factor = rms_factor(x, eps);
  std::vector<double> m(fn.size() / x.size());
  for (std::size_t i = 0; i < fn.size(); ++i) m[i / x.size()] += fn[i] * x[i % x.size()];
  for (double& value : m) value *= factor;
  return m;
}

void softmax_rows(std::vector<double>& c, std::uint64_t copies, double eps) {
  for (std::uint64_t j = 0; j < copies; ++j) {
    const auto row = std::span(c).subspan(j * copies, copies);
    const double most = *std::ranges::max_element(row);
    double sum = 0;
    for (double& value : row) {
      value = std::exp(value - most);
      sum += value;
    }
    for (double& value : row) value = value / sum + eps;
  }
}

void normalise_rows(std::vector<double>& c, std::uint64_t copies, double eps) {
  for (std::uint64_t j = 0; j < copies; ++j) {
    double sum = eps;
    for (std::uint64_t k = 0; k < copies; ++k) sum += c[j * copies + k];
    for (std::uint64_t k = 0; k < copies; ++k) c[j * copies + k] /= sum;
  }
}

void normalise_columns(std::vector<double>& c, std::uint64_t copies, double eps) {
  for (std::uint64_t k = 0; k < copies; ++k) {
    double sum = eps;
    for (std::uint64_t j = 0; j < copies; ++j) sum += c[j * copies + k];
    for (std::uint64_t j = 0; j < copies; ++j) c[j * copies + k] /= sum;
  }
}

}  // namespace

Mix mix(const HyperConnection& connection, const HyperParameters& parameters,
        std::span<const double> x) {
  const std::uint64_t copies = parameters.copies;
  const std::uint64_t rows = (2 + copies) * copies;
  MOXIE_CHECK(x.size() % copies == 0 && connection.fn.size() == rows * x.size(),
              "fn has (2 + c) c rows as wide as all copies");
  MOXIE_CHECK(connection.scale.size() == 3 && connection.base.size() == rows,
              "a mix has three scales and a base for each row");
  MOXIE_CHECK(parameters.sinkhorn_iterations > 0, "columns are normalised at least once");

  Mix mix{.m = projections(connection.fn, x, parameters.rms_norm_eps)};
  const auto affine = [&](std::uint64_t i, std::size_t part) {
    return mix.m[i] * connection.scale[part] + connection.base[i];
  };
  for (std::uint64_t j = 0; j < copies; ++j) {
    mix.pre.push_back(sigmoid(affine(j, 0)) + parameters.hc_eps);
    mix.post.push_back(2 * sigmoid(affine(copies + j, 1)));
  }
  for (std::uint64_t i = 2 * copies; i < rows; ++i) mix.c.push_back(affine(i, 2));

  softmax_rows(mix.c, copies, parameters.hc_eps);
  normalise_columns(mix.c, copies, parameters.hc_eps);
  for (std::uint64_t i = 1; i < parameters.sinkhorn_iterations; ++i) {
    normalise_rows(mix.c, copies, parameters.hc_eps);
    normalise_columns(mix.c, copies, parameters.hc_eps);
  }
  return mix;
}

std::vector<double> collapse(std::span<const double> pre, std::span<const double> x) {
  MOXIE_CHECK(!pre.empty() && x.size() % pre.size() == 0, "every copy has a weight");
  const std::uint64_t hidden = x.size() / pre.size();
  std::vector<double> u(hidden);
  for (std::uint64_t i = 0; i < x.size(); ++i) u[i % hidden] += pre[i / hidden] * x[i];
  return u;
}

std::vector<double> expand(const Mix& mix, std::span<const double> x, std::span<const double> s) {
  const std::uint64_t copies = mix.post.size();
  const std::uint64_t hidden = s.size();
  MOXIE_CHECK(x.size() == copies * hidden, "every copy is as wide as the sublayer's output");
  std::vector<double> next(x.size());
  for (std::uint64_t k = 0; k < copies; ++k) {
    for (std::uint64_t i = 0; i < hidden; ++i) {
      double sum = mix.post[k] * s[i];
      for (std::uint64_t j = 0; j < copies; ++j) sum += mix.c[j * copies + k] * x[j * hidden + i];
      next[k * hidden + i] = sum;
    }
  }
  return next;
}

std::vector<double> collapse_head(const HyperConnection& head, const HyperParameters& parameters,
                                  std::span<const double> x) {
  const std::uint64_t copies = parameters.copies;
  MOXIE_CHECK(
      head.fn.size() == copies * x.size() && head.base.size() == copies && head.scale.size() == 1,
      "the head has a row and a base for each copy, and one scale");
  std::vector<double> pre = projections(head.fn, x, parameters.rms_norm_eps);
  for (std::uint64_t j = 0; j < copies; ++j)
    pre[j] = sigmoid(pre[j] * head.scale[0] + head.base[j]) + parameters.hc_eps;
  return collapse(pre, x);
}

}  // namespace moxie::ref
