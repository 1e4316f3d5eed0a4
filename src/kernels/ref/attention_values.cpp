// SPDX-License-Identifier: Apache-2.0
// Scores, weights and their average, head by head.
#include "kernels/ref/attention_values.hpp"

#include <algorithm>
#include <cmath>

#include "base/checked.hpp"

namespace moxie::ref {

std::vector<double> sink_softmax(std::span<const double> scores, double sink) {
  MOXIE_CHECK(!scores.empty(), "a token attends to itself at least");
  const double most = *std::ranges::max_element(scores);
  double denominator = std::exp(sink - most);
  std::vector<double> weights;
  for (const double score : scores) {
    weights.push_back(std::exp(score - most));
    denominator += weights.back();
  }
  for (double& weight : weights) weight /= denominator;
  return weights;
}

std::vector<double> attention_values(std::span<const double> q, std::span<const double> sinks,
                                     const SharedKeys& keys) {
  const std::uint64_t width = keys.head_dim;
  MOXIE_CHECK(width > 0 && keys.kv.size() % width == 0, "keys are whole");
  MOXIE_CHECK(q.size() == sinks.size() * width, "every head has a query and a sink");
  std::vector<double> values(q.size());
  for (std::uint64_t head = 0; head < sinks.size(); ++head) {
    std::vector<double> scores(keys.kv.size() / width);
    for (std::uint64_t i = 0; i < keys.kv.size(); ++i)
      scores[i / width] += q[head * width + i % width] * keys.kv[i] * keys.score_mul;
    const std::vector<double> weights = sink_softmax(scores, sinks[head]);
    for (std::uint64_t i = 0; i < keys.kv.size(); ++i)
      values[head * width + i % width] += weights[i / width] * keys.kv[i];
  }
  return values;
}

}  // namespace moxie::ref
