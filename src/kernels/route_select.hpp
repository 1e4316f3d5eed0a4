// SPDX-License-Identifier: Apache-2.0
// From one token's logits to its experts and their final weights, on host and device alike.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/host_device.hpp"
#include "formats/activation.hpp"
#include "formats/elementary.hpp"
#include "kernels/contract.hpp"

namespace moxie::route {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// sqrt(softplus(z)) without overflow for large z and without cancellation for small z.
MOXIE_HD inline float sqrt_softplus(float z) {
  return std::sqrt((z < 0.0F ? 0.0F : z) + log1p_f32(exp_f32(-magnitude_of(z))));
}

MOXIE_HD constexpr bool is_softmax(RouterKind kind) {
  return kind == RouterKind::softmax_topk || kind == RouterKind::topk_softmax ||
         kind == RouterKind::scaled_softmax;
}

// What experts are selected and weighted by, before the correction bias; a softmax is taken later,
// its order is that of the logits. NaN for a logit that is not finite, which no selection takes.
MOXIE_HD inline float score(RouterKind kind, float logit) {
  if (!(magnitude_of(logit) < kInfinity)) return quiet_nan();
  if (is_softmax(kind)) return logit;
  return kind == RouterKind::sigmoid ? sigmoid(logit) : sqrt_softplus(logit);
}

// Passed by value and captured by copy, so that a GPU keeps all of it in registers.
struct Ranked {
  float value = 0;
  std::uint64_t id = 0;
};
inline constexpr Ranked kNobody{.value = 0, .id = ~std::uint64_t{0}};

// The order of every selection: the larger value first, then the lower id.
MOXIE_HD constexpr bool is_ahead(const Ranked& a, const Ranked& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// The first of [0, count) in that order that comes after `last` (kNobody: the very first). NaN is
// in no place. Its id is `count` when there is none.
template <class ValueAt>
MOXIE_HD Ranked next_in_order(std::uint64_t count, Ranked last, ValueAt value_at) {
  Ranked best{.id = count};
  for (std::uint64_t id = 0; id < count; ++id) {
    const Ranked candidate{.value = value_at(id), .id = id};
    if (candidate.value != candidate.value || (last.id != kNobody.id && !is_ahead(last, candidate)))
      continue;
    if (best.id == count || candidate.value > best.value) best = candidate;
  }
  return best;
}

// Sum of the two largest; a group with fewer than two numbers comes last.
template <class ValueAt>
MOXIE_HD float group_score(std::uint64_t begin, std::uint64_t end, ValueAt value_at) {
  float first = -kInfinity;
  float second = -kInfinity;
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
MOXIE_HD void mask_groups(const RouterShape& shape, ValueAt value_at, float* scores,
                          float* group_scores) {
  const std::uint64_t group_experts = shape.experts / shape.expert_groups;
  for (std::uint64_t group = 0; group < shape.expert_groups; ++group) {
    const std::uint64_t begin = group * group_experts;
    group_scores[group] = group_score(begin, begin + group_experts, value_at);
  }
  const auto group_value = [=](std::uint64_t group) { return group_scores[group]; };
  Ranked last = kNobody;
  for (std::uint64_t kept = 0; kept < shape.kept_groups; ++kept) {
    last = next_in_order(shape.expert_groups, last, group_value);
  }
  for (std::uint64_t group = 0; group < shape.expert_groups; ++group) {
    if (is_ahead(last, {.value = group_scores[group], .id = group})) {
      for (std::uint64_t i = 0; i < group_experts; ++i)
        scores[group * group_experts + i] = quiet_nan();
    }
  }
}

// Fills `ids` with the token's experts, best first; false when fewer than top_k can be chosen.
// Scores of groups that are not kept are lost.
MOXIE_HD inline bool select_experts(const RouterShape& shape, const float* bias,
                                    float* scores,        // [experts]
                                    float* group_scores,  // [expert_groups], scratch
                                    std::int32_t* ids) {  // [top_k]
  const auto biased = [=](std::uint64_t expert) {
    return bias == nullptr ? scores[expert] : scores[expert] + bias[expert];
  };
  if (shape.expert_groups > 1) mask_groups(shape, biased, scores, group_scores);
  Ranked last = kNobody;
  for (std::uint64_t choice = 0; choice < shape.top_k; ++choice) {
    last = next_in_order(shape.experts, last, biased);
    if (last.id == shape.experts) return false;
    ids[choice] = static_cast<std::int32_t>(last.id);
  }
  return true;
}

// Turns the logits of the chosen experts into their softmax, in place: over all experts, or over
// the chosen ones, which is the same after normalising. `scores` are the logits of all.
MOXIE_HD inline void softmax_weights(const RouterShape& shape, const float* scores,  // [experts]
                                     float* weights) {                               // [top_k]
  const bool over_all = shape.kind == RouterKind::softmax_topk && !shape.norm_topk;
  const float largest = weights[0];  // the first choice
  const auto exponential = [=](float logit) { return exp_f32(logit - largest); };
  float sum = 0.0F;
  if (over_all) {
    for (std::uint64_t expert = 0; expert < shape.experts; ++expert) {
      if (scores[expert] == scores[expert]) sum += exponential(scores[expert]);
    }
  } else {
    for (std::uint64_t choice = 0; choice < shape.top_k; ++choice)
      sum += exponential(weights[choice]);
  }
  for (std::uint64_t choice = 0; choice < shape.top_k; ++choice)
    weights[choice] = shape.routed_scaling * exponential(weights[choice]) / sum;
}

// Turns the unbiased scores of the chosen experts into final weights, in place.
MOXIE_HD inline void finish_weights(const RouterShape& shape, float* weights) {  // [top_k]
  constexpr float kLeastSum = 1e-20F;
  float divisor = 1.0F;
  if (shape.norm_topk) {
    float sum = 0.0F;
    for (std::uint64_t choice = 0; choice < shape.top_k; ++choice) sum += weights[choice];
    divisor =
        shape.kind == RouterKind::sigmoid ? sum + kLeastSum : (sum < kLeastSum ? kLeastSum : sum);
  }
  for (std::uint64_t choice = 0; choice < shape.top_k; ++choice) {
    weights[choice] = shape.routed_scaling * weights[choice] / divisor;
  }
}

}  // namespace moxie::route
