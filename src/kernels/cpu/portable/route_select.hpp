// SPDX-License-Identifier: Apache-2.0
// From one token's logits to its experts and their final weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "formats/bf16.hpp"
#include "kernels/contract.hpp"
#include "kernels/cpu/portable/sigmoid.hpp"

namespace moxie::cpu::portable {

// sqrt(softplus(z)) without overflow for large z and without cancellation for small z.
inline float sqrt_softplus(float z) {
  return std::sqrt(std::max(z, 0.0F) + std::log1p(std::exp(-std::fabs(z))));
}

constexpr bool is_softmax(RouterKind kind) {
  return kind == RouterKind::softmax_topk || kind == RouterKind::topk_softmax ||
         kind == RouterKind::scaled_softmax;
}

// What experts are selected and weighted by, before the correction bias; a softmax is taken later,
// its order is that of the logits. NaN for a logit that is not finite, which no selection takes.
inline float score(RouterKind kind, float logit) {
  if (!std::isfinite(logit)) return quiet_nan();
  if (is_softmax(kind)) return logit;
  return kind == RouterKind::sigmoid ? sigmoid(logit) : sqrt_softplus(logit);
}

struct Ranked {
  float value = 0;
  std::uint64_t id = 0;
};

// The order of every selection: the larger value first, then the lower id.
constexpr bool is_ahead(const Ranked& a, const Ranked& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// The first of [0, count) in that order that comes after `last` (null: the very first). NaN is in
// no place. Its id is `count` when there is none.
template <class ValueAt>
Ranked next_in_order(std::uint64_t count, const Ranked* last, const ValueAt& value_at) {
  Ranked best{.id = count};
  for (std::uint64_t id = 0; id < count; ++id) {
    const Ranked candidate{.value = value_at(id), .id = id};
    if (std::isnan(candidate.value) || (last != nullptr && !is_ahead(*last, candidate))) continue;
    if (best.id == count || candidate.value > best.value) best = candidate;
  }
  return best;
}

// Sum of the two largest; a group with fewer than two numbers comes last.
template <class ValueAt>
float group_score(std::uint64_t begin, std::uint64_t end, const ValueAt& value_at) {
  float first = -INFINITY;
  float second = -INFINITY;
  for (std::uint64_t id = begin; id < end; ++id) {
    const float value = value_at(id);
    if (value > first) {
      second = first;
      first = value;
    } else if (value > second) {
      second = value;
    }
  }
  return first + second;
}

// Takes the experts of all but the kept groups out of the selection.
template <class ValueAt>
void mask_groups(const RouterShape& shape, const ValueAt& value_at, float* scores,
                 float* group_scores) {
  const std::uint64_t group_experts = shape.experts / shape.expert_groups;
  for (std::uint64_t group = 0; group < shape.expert_groups; ++group) {
    const std::uint64_t begin = group * group_experts;
    group_scores[group] = group_score(begin, begin + group_experts, value_at);
  }
  const auto group_value = [&](std::uint64_t group) { return group_scores[group]; };
  Ranked last{};
  for (std::uint64_t kept = 0; kept < shape.kept_groups; ++kept) {
    last = next_in_order(shape.expert_groups, kept == 0 ? nullptr : &last, group_value);
  }
  for (std::uint64_t group = 0; group < shape.expert_groups; ++group) {
    if (is_ahead(last, {.value = group_scores[group], .id = group})) {
      std::fill_n(scores + group * group_experts, group_experts, quiet_nan());
    }
  }
}

// Fills `ids` with the token's experts, best first; false when fewer than top_k can be chosen.
// Scores of groups that are not kept are lost.
inline bool select_experts(const RouterShape& shape, const float* bias,
                           float* scores,        // [experts]
                           float* group_scores,  // [expert_groups], scratch
                           std::int32_t* ids) {  // [top_k]
  const auto biased = [&](std::uint64_t expert) {
    return bias == nullptr ? scores[expert] : scores[expert] + bias[expert];
  };
  if (shape.expert_groups > 1) mask_groups(shape, biased, scores, group_scores);
  Ranked last{};
  for (std::uint64_t choice = 0; choice < shape.top_k; ++choice) {
    last = next_in_order(shape.experts, choice == 0 ? nullptr : &last, biased);
    if (last.id == shape.experts) return false;
    ids[choice] = static_cast<std::int32_t>(last.id);
  }
  return true;
}

// Turns the logits of the chosen experts into their softmax, in place: over all experts, or over
// the chosen ones, which is the same after normalising. `scores` are the logits of all.
inline void softmax_weights(const RouterShape& shape, const float* scores,  // [experts]
                            float* weights) {                               // [top_k]
  const bool over_all = shape.kind == RouterKind::softmax_topk && !shape.norm_topk;
  const float largest = weights[0];  // the first choice
  const auto exponential = [&](float logit) { return std::exp(logit - largest); };
  float sum = 0.0F;
  if (over_all) {
    for (std::uint64_t expert = 0; expert < shape.experts; ++expert) {
      if (!std::isnan(scores[expert])) sum += exponential(scores[expert]);
    }
  } else {
    for (std::uint64_t choice = 0; choice < shape.top_k; ++choice)
      sum += exponential(weights[choice]);
  }
  for (std::uint64_t choice = 0; choice < shape.top_k; ++choice)
    weights[choice] = shape.routed_scaling * exponential(weights[choice]) / sum;
}

// Turns the unbiased scores of the chosen experts into final weights, in place.
inline void finish_weights(const RouterShape& shape, float* weights) {  // [top_k]
  constexpr float kLeastSum = 1e-20F;
  float divisor = 1.0F;
  if (shape.norm_topk) {
    float sum = 0.0F;
    for (std::uint64_t choice = 0; choice < shape.top_k; ++choice) sum += weights[choice];
    divisor = shape.kind == RouterKind::sigmoid ? sum + kLeastSum : std::max(sum, kLeastSum);
  }
  for (std::uint64_t choice = 0; choice < shape.top_k; ++choice) {
    weights[choice] = shape.routed_scaling * weights[choice] / divisor;
  }
}

}  // namespace moxie::cpu::portable
