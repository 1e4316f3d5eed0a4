// SPDX-License-Identifier: Apache-2.0
// One side of a comparison of DeepSeek-V4 blocks: the checkpoint, or the ranks of a packed set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/bf16.hpp"
#include "kernels/ref/block.hpp"
#include "kernels/ref/rmsnorm.hpp"
#include "kernels/ref/vocabulary.hpp"
#include "moxie/checkpoint.hpp"
#include "moxie/plan.hpp"
#include "verify/padding_probe.hpp"
#include "verify/v4_weights.hpp"

namespace moxie::test {

inline constexpr int kBlockLayer = 1;  // of "tiny" the first one with a router and with YaRN

// An f32 or bf16 tensor.
inline std::vector<double> numbers_of(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo& tensor = *checkpoint.find(name);
  const std::span<const std::byte> bytes = checkpoint.bytes(tensor);
  std::vector<double> values;
  for (std::size_t at = 0; at < bytes.size(); at += tensor.dtype == DType::f32 ? 4 : 2) {
    float value = 0;
    std::uint16_t half = 0;
    if (tensor.dtype == DType::f32) {
      std::memcpy(&value, &bytes[at], sizeof value);
    } else {
      std::memcpy(&half, &bytes[at], sizeof half);
      value = decode_bf16(half);
    }
    values.push_back(static_cast<double>(value));
  }
  return values;
}

struct HyperTensors {
  HyperTensors(const Checkpoint& checkpoint, const std::string& name)
      : fn(numbers_of(checkpoint, name + "_fn")),
        scale(numbers_of(checkpoint, name + "_scale")),
        base(numbers_of(checkpoint, name + "_base")) {}
  ref::HyperConnection view() const { return {.fn = fn, .scale = scale, .base = base}; }
  std::vector<double> fn;
  std::vector<double> scale;
  std::vector<double> base;
};

class BlockSide {
 public:
  // `rows` are the ranks' parts of the vocabulary.
  BlockSide(const MoeModel& model, std::vector<Checkpoint> ranks, const V4Widths& widths,
            std::vector<UnitRange<Elems>> rows)
      : v4_(*model.config.v4),
        ranks_(std::move(ranks)),
        widths_(widths),
        rows_(std::move(rows)),
        frequencies_(rotary_of(model.checkpoint.config(), v4_, kBlockLayer)),
        prefix_(layer_prefix(v4_, kBlockLayer)),
        hc_attn_(ranks_[0], prefix_ + "hc_attn"),
        hc_ffn_(ranks_[0], prefix_ + "hc_ffn"),
        hc_head_(ranks_[0], "hc_head"),
        attn_norm_(numbers_of(ranks_[0], prefix_ + "attn_norm.weight")),
        ffn_norm_(numbers_of(ranks_[0], prefix_ + "ffn_norm.weight")),
        norm_(numbers_of(ranks_[0], "norm.weight")) {
    for (const Checkpoint& checkpoint : ranks_) {
      weights_.emplace_back(checkpoint, v4_, widths_, kBlockLayer);
      head_.push_back(weights_.back().bf16_rows("head.weight"));
    }
    limit_ = model.config.activation_limit.value();
  }
  BlockSide(const BlockSide&) = delete;
  BlockSide& operator=(const BlockSide&) = delete;

  // `attention` has the values of all heads, virtual ones behind the real ones; `routed` is what
  // the routed experts of all ranks add, or nothing.
  ref::BlockResult run(std::span<const double> x, std::span<const double> attention,
                       std::uint64_t position, std::span<const double> routed) const {
    std::vector<ref::BlockRank> ranks;
    const std::uint64_t share = widths_.heads * v4_.head_dim;
    for (const V4Weights& weights : weights_) {
      const auto own = attention.subspan(ranks.size() * share, share);
      ranks.push_back({.output_path = weights.output_path(frequencies_),
                       .shared = weights.shared_expert(limit_),
                       .attention = [own](std::span<const double>) {
                         return std::vector<double>(own.begin(), own.end());
                       }});
    }
    if (!routed.empty()) {
      ranks[0].routed = [routed](std::span<const double>) {
        return std::vector<double>(routed.begin(), routed.end());
      };
    }
    return ref::block({.parameters = parameters(),
                       .hc_attn = hc_attn_.view(),
                       .hc_ffn = hc_ffn_.view(),
                       .attn_norm = attn_norm_,
                       .ffn_norm = ffn_norm_,
                       .ranks = ranks},
                      x, position);
  }

  // The token with the largest logit after the last norm.
  std::optional<std::uint64_t> choose(std::span<const double> x) const {
    return ref::argmax(logits(x));
  }

  // How many times the lead of the largest logit is what both logits may move by when every value
  // of x moves by up to `change`; the smallest over all others. One rank holds all rows.
  double lead_over_change(std::span<const double> x, std::span<const double> change) const {
    const ref::ShardLogits all = logits(x).front();
    const std::uint64_t best = *ref::argmax({&all, 1});
    const std::vector<double> moved = normed_change(x, change);
    const auto at = [&](std::uint64_t row, std::uint64_t i) {
      return static_cast<double>(decode_bf16(head_[0][row * v4_.hidden + i]));
    };
    double least = HUGE_VAL;
    for (std::uint64_t row = 0; row < v4_.vocab; ++row) {
      if (row == best) continue;
      double may_change = 0;
      for (std::uint64_t i = 0; i < v4_.hidden; ++i)
        may_change += std::abs(at(best, i) - at(row, i)) * moved[i];
      least = std::min(least, (all.logits[best] - all.logits[row]) / may_change);
    }
    return least;
  }

 private:
  ref::HyperParameters parameters() const { return {.copies = v4_.copies}; }

  std::vector<ref::ShardLogits> logits(std::span<const double> x) const {
    const std::vector<double> normed = ref::rmsnorm(
        ref::collapse_head(hc_head_.view(), parameters(), x), norm_, parameters().rms_norm_eps);
    std::vector<ref::ShardLogits> shards;
    for (std::size_t rank = 0; rank < head_.size(); ++rank) {
      shards.push_back(ref::logits({.first = rank * rows_[rank].dst.value,
                                    .real_rows = rows_[rank].count.value,
                                    .hidden = v4_.hidden,
                                    .rows = head_[rank]},
                                   normed));
    }
    return shards;
  }

  static double norm(std::span<const double> values) {
    double squares = 0;
    for (const double value : values) squares += value * value;
    return std::sqrt(squares);
  }

  // How far the input of the head may move, [hidden]. The root mean square of n values moves by at
  // most |change| / sqrt(n), a sigmoid by a quarter of its argument, and a quotient a / r by
  // (da + |a / r| dr) / (r - dr).
  std::vector<double> normed_change(std::span<const double> x,
                                    std::span<const double> change) const {
    const double eps = parameters().rms_norm_eps;
    const std::uint64_t hidden = v4_.hidden;
    const double root = 1 / ref::rms_factor(x, eps);
    const double root_moved = norm(change) / std::sqrt(static_cast<double>(x.size()));
    std::vector<double> u(hidden);
    std::vector<double> moved(hidden);
    for (std::uint64_t copy = 0; copy < v4_.copies; ++copy) {
      double product = 0;
      double product_moved = 0;
      for (std::uint64_t i = 0; i < x.size(); ++i) {
        const double weight = hc_head_.fn[copy * x.size() + i];
        product += weight * x[i];
        product_moved += std::abs(weight) * change[i];
      }
      const double m = product / root;
      const double m_moved = (product_moved + std::abs(m) * root_moved) / (root - root_moved);
      const double share =
          1 / (1 + std::exp(-(m * hc_head_.scale[0] + hc_head_.base[copy]))) + parameters().hc_eps;
      const double share_moved = std::abs(hc_head_.scale[0]) / 4 * m_moved;
      for (std::uint64_t i = 0; i < hidden; ++i) {
        const std::uint64_t at = copy * hidden + i;
        u[i] += share * x[at];
        moved[i] += share * change[at] + share_moved * (std::abs(x[at]) + change[at]);
      }
    }
    const double scale = 1 / ref::rms_factor(u, eps);
    const double scale_moved = norm(moved) / std::sqrt(static_cast<double>(hidden));
    for (std::uint64_t i = 0; i < hidden; ++i) {
      moved[i] = std::abs(norm_[i]) * (moved[i] + std::abs(u[i]) / scale * scale_moved) /
                 (scale - scale_moved);
    }
    return moved;
  }

  const V4Config& v4_;
  std::vector<Checkpoint> ranks_;
  V4Widths widths_;
  std::vector<UnitRange<Elems>> rows_;
  std::vector<double> frequencies_;
  std::string prefix_;
  HyperTensors hc_attn_;
  HyperTensors hc_ffn_;
  HyperTensors hc_head_;
  std::vector<double> attn_norm_;
  std::vector<double> ffn_norm_;
  std::vector<double> norm_;
  std::vector<V4Weights> weights_{};
  std::vector<std::vector<std::uint16_t>> head_{};
  double limit_ = 0;
};

}  // namespace moxie::test
