// SPDX-License-Identifier: Apache-2.0
// cpu.portable.route. Two stages: logits of all experts into the workspace, cut into tiles of
// tokens and experts; then one token at a time from logits to weights. Tokens with a token table
// need one stage, because only the logits of their own experts count. Assumes a table of ids in
// [0, experts) and a bias of numbers, which whoever binds the tensors has checked.
#include "kernels/cpu/portable/route.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/align.hpp"
#include "base/checked.hpp"
#include "base/parallel.hpp"
#include "formats/bf16.hpp"
#include "kernels/cpu/portable/route_logits.hpp"
#include "kernels/route_select.hpp"

namespace moxie::cpu::portable {

using route::finish_weights;
using route::is_softmax;
using route::score;
using route::select_experts;
using route::softmax_weights;

namespace {

// A tile's rows of x and of the weight stay in a second-level cache: at 7168 columns of bf16, 16
// tokens take 229 KB and 8 experts 115 KB.
constexpr std::uint64_t kTileTokens = 16;
constexpr std::uint64_t kTileExperts = 8;
static_assert(kTileTokens % kTokenTile == 0, "only the last pass over a weight row is short");

// Tokens that one thread takes through the selection at a time.
constexpr std::uint64_t kSelectTokens = 8;

// Multiply-adds that pay for one more thread: some tens of microseconds.
constexpr std::uint64_t kThreadWork = std::uint64_t{1} << 17;

constexpr std::uint64_t kRowAlignment = 64;

// Logits of one token, which become scores in place, and the scores of its groups.
std::uint64_t row_floats(const RouterShape& shape) {
  return shape.experts + (shape.expert_groups > 1 ? shape.expert_groups : 0);
}

float element_of(const std::byte* row, DType dtype, std::uint64_t column) {
  if (dtype == DType::f32) {
    float value = 0;
    std::memcpy(&value, row + column * sizeof value, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, row + column * sizeof bits, sizeof bits);
  return decode_bf16(bits);
}

class Routing {
 public:
  explicit Routing(const RouteArgs& args)
      : args_(args),
        shape_(args.shape),
        dot_row_(choose_dot_row(args.weight.dtype, args.x.dtype)),
        weight_stride_(args.weight.row_stride * bits_of(args.weight.dtype) / 8),
        x_stride_(args.x.row_stride * bits_of(args.x.dtype) / 8) {
    rows_ = reinterpret_cast<float*>(align_up(args.workspace, kRowAlignment));
  }

  void run() const {
    const bool by_table = args_.token_table != nullptr;
    const std::uint64_t logits = by_table ? shape_.top_k : shape_.experts;
    const std::uint64_t helpers = args_.tokens * logits * shape_.hidden / kThreadWork;
    const auto threads = static_cast<unsigned>(std::min<std::uint64_t>(args_.threads, helpers + 1));
    parallel_team(threads, [&](Team& team) {
      if (by_table) {
        team.for_each(args_.tokens, [&](std::uint64_t token) { route_by_table(token); });
        return;
      }
      const std::uint64_t expert_tiles = divide_up(shape_.experts, kTileExperts);
      team.for_each(divide_up(args_.tokens, kTileTokens) * expert_tiles, [&](std::uint64_t item) {
        compute_tile(item / expert_tiles * kTileTokens, item % expert_tiles * kTileExperts);
      });
      team.for_each(divide_up(args_.tokens, kSelectTokens), [&](std::uint64_t item) {
        const std::uint64_t begin = item * kSelectTokens;
        const std::uint64_t end = std::min(begin + kSelectTokens, args_.tokens);
        for (std::uint64_t token = begin; token < end; ++token) route_by_score(token);
      });
    });
  }

 private:
  [[nodiscard]] const std::byte* x_row(std::uint64_t token) const {
    return static_cast<const std::byte*>(args_.x.data) + token * x_stride_;
  }
  [[nodiscard]] const std::byte* weight_row(std::uint64_t expert) const {
    return static_cast<const std::byte*>(args_.weight.data) + expert * weight_stride_;
  }

  void compute_tile(std::uint64_t token_begin, std::uint64_t expert_begin) const {
    const std::uint64_t token_end = std::min(token_begin + kTileTokens, args_.tokens);
    const std::uint64_t expert_end = std::min(expert_begin + kTileExperts, shape_.experts);
    const std::uint64_t stride = row_floats(shape_);
    for (std::uint64_t expert = expert_begin; expert < expert_end; ++expert) {
      for (std::uint64_t token = token_begin; token < token_end; token += kTokenTile) {
        const auto tokens = std::min<std::uint64_t>(kTokenTile, token_end - token);
        dot_row_(weight_row(expert), x_row(token), x_stride_, tokens, shape_.hidden,
                 rows_ + token * stride + expert, stride);
      }
    }
  }

  void route_by_score(std::uint64_t token) const {
    if (is_masked(token)) return mask(token, 0);
    float* scores = rows_ + token * row_floats(shape_);
    // A bias of the logits counts in the weights, a correction bias in the selection alone.
    const bool of_logits = is_softmax(shape_.kind);
    const float* logit_bias = of_logits ? args_.bias : nullptr;
    const float factor = shape_.kind == RouterKind::scaled_softmax ? inverse_norm(token) : 1.0F;
    for (std::uint64_t expert = 0; expert < shape_.experts; ++expert) {
      const float bias = logit_bias == nullptr ? 0.0F : logit_bias[expert];
      scores[expert] = score(shape_.kind, factor * scores[expert] + bias);
    }
    std::int32_t* ids = args_.topk_ids + token * shape_.top_k;
    float* weights = args_.topk_weights + token * shape_.top_k;
    if (!select_experts(shape_, of_logits ? nullptr : args_.bias, scores, scores + shape_.experts,
                        ids)) {
      return mask(token, kFlagBadLogits);
    }
    for (std::uint64_t choice = 0; choice < shape_.top_k; ++choice) {
      weights[choice] = scores[ids[choice]];
    }
    if (of_logits) {
      softmax_weights(shape_, scores, weights);
    } else {
      finish_weights(shape_, weights);
    }
    if (args_.expert_scale == nullptr) return;
    for (std::uint64_t choice = 0; choice < shape_.top_k; ++choice)
      weights[choice] *= args_.expert_scale[ids[choice]];
  }

  void route_by_table(std::uint64_t token) const {
    if (is_masked(token)) return mask(token, 0);
    const auto token_id = static_cast<std::uint64_t>(args_.token_ids[token]);
    if (token_id >= shape_.vocab) return mask(token, kFlagBadTokenId);
    const std::int32_t* chosen = args_.token_table + token_id * shape_.top_k;
    float* weights = args_.topk_weights + token * shape_.top_k;
    for (std::uint64_t choice = 0; choice < shape_.top_k; ++choice) {
      const auto expert = static_cast<std::uint64_t>(chosen[choice]);
      float logit = 0.0F;
      dot_row_(weight_row(expert), x_row(token), x_stride_, 1, shape_.hidden, &logit, 1);
      weights[choice] = score(shape_.kind, logit);
      if (std::isnan(weights[choice])) return mask(token, kFlagBadLogits);
    }
    std::copy_n(chosen, shape_.top_k, args_.topk_ids + token * shape_.top_k);
    finish_weights(shape_, weights);
  }

  // One over the root of the row's mean square. Doubles hold the square of every fp32.
  [[nodiscard]] float inverse_norm(std::uint64_t token) const {
    double sum = 0;
    for (std::uint64_t h = 0; h < shape_.hidden; ++h) {
      const auto value = static_cast<double>(element_of(x_row(token), args_.x.dtype, h));
      sum += value * value;
    }
    const double mean = sum / static_cast<double>(shape_.hidden);
    return static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(shape_.norm_eps)));
  }

  [[nodiscard]] bool is_masked(std::uint64_t token) const {
    return args_.token_ids != nullptr && args_.token_ids[token] < 0;
  }

  void mask(std::uint64_t token, std::uint32_t flag) const {
    std::fill_n(args_.topk_ids + token * shape_.top_k, shape_.top_k, -1);
    std::fill_n(args_.topk_weights + token * shape_.top_k, shape_.top_k, 0.0F);
    if (flag != 0) std::atomic_ref(*args_.flags).fetch_or(flag, std::memory_order_relaxed);
  }

  const RouteArgs& args_;
  const RouterShape& shape_;
  DotRow dot_row_;
  std::uint64_t weight_stride_;  // bytes
  std::uint64_t x_stride_;       // bytes
  float* rows_;                  // [tokens, row_floats]
};

void run(const RouteArgs& args) {
  if (args.tokens > 0) Routing(args).run();
}

// The largest number for what no memory holds.
std::uint64_t workspace_bytes(const RouterShape& shape, std::uint64_t tokens) {
  const auto bytes = checked_multiply(tokens, row_floats(shape) * sizeof(float));
  const auto aligned = bytes ? checked_add(*bytes, kRowAlignment) : std::nullopt;
  return aligned.value_or(~std::uint64_t{0});
}

bool supports(RouterKind /*kind*/) { return true; }

}  // namespace

const RouteKernel kRoute{.run = run, .workspace_bytes = workspace_bytes, .supports = supports};

}  // namespace moxie::cpu::portable
