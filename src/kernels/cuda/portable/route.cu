// SPDX-License-Identifier: Apache-2.0
// cuda.portable.route: logits of all experts into the workspace, sixteen threads a logit; then one
// thread a token from logits to weights, as on the host and with the same bits. Assumes a table of
// ids in [0, experts) and a bias of numbers, which whoever binds the tensors has checked.
#include <cuda_runtime.h>

#include "base/align.hpp"
#include "base/checked.hpp"
#include "formats/bf16.hpp"
#include "kernels/cuda/portable/kernels.hpp"
#include "kernels/route_select.hpp"

namespace moxie::cuda::portable {

namespace {

constexpr std::uint64_t kRowAlignment = 64;
constexpr unsigned kLogitLanes = 16;  // thread l sums the columns c with c % 16 == l
constexpr unsigned kThreads = 256;
constexpr unsigned kLogits = kThreads / kLogitLanes;  // of one block
constexpr unsigned kSelectThreads = 64;

struct RouteCall {
  RouteArgs args;
  float* rows = nullptr;  // [tokens, row_floats], logits that become scores
};

// Logits of one token, which become scores in place, and the scores of its groups.
MOXIE_HD std::uint64_t row_floats(const RouterShape& shape) {
  return shape.experts + (shape.expert_groups > 1 ? shape.expert_groups : 0);
}

__device__ float element_at(const MatrixRef& matrix, std::uint64_t row, std::uint64_t column) {
  const std::uint64_t at = row * matrix.row_stride + column;
  return matrix.dtype == DType::f32
             ? static_cast<const float*>(matrix.data)[at]
             : decode_bf16(static_cast<const std::uint16_t*>(matrix.data)[at]);
}

// One logit by sixteen threads, in all of them: every lane in ascending order, a short last step
// filled with zeros, then the tree of the host's kernel.
__device__ float logit_of(const RouteArgs& args, std::uint64_t token, std::uint64_t expert) {
  const unsigned lane = threadIdx.x % kLogitLanes;
  float sum = 0.0F;
  for (std::uint64_t first = 0; first < args.shape.hidden; first += kLogitLanes) {
    const std::uint64_t column = first + lane;
    const bool inside = column < args.shape.hidden;
    const float weight = inside ? element_at(args.weight, expert, column) : 0.0F;
    const float x = inside ? element_at(args.x, token, column) : 0.0F;
    sum += weight * x;
  }
  for (const int step : {8, 1, 4, 2}) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, step);
  return sum;
}

// Grid: tokens x experts / kLogits; with a token table tokens x top_k / kLogits.
__global__ void __launch_bounds__(kThreads) compute_logits(const __grid_constant__ RouteCall call) {
  const RouteArgs& args = call.args;
  const std::uint64_t token = blockIdx.x;
  const std::uint64_t index = std::uint64_t{blockIdx.y} * kLogits + threadIdx.x / kLogitLanes;
  std::uint64_t expert = index;
  bool needed = index < args.shape.experts;
  if (args.token_table != nullptr) {
    const std::int64_t id = args.token_ids[token];
    needed =
        index < args.shape.top_k && id >= 0 && static_cast<std::uint64_t>(id) < args.shape.vocab;
    if (needed) {
      expert = static_cast<std::uint64_t>(
          args.token_table[static_cast<std::uint64_t>(id) * args.shape.top_k + index]);
    }
  }
  // The last logit again for threads without one: all of a warp take part in the sum.
  const float logit = logit_of(args, token, needed ? expert : 0);
  if (needed && threadIdx.x % kLogitLanes == 0)
    call.rows[token * row_floats(args.shape) + index] = logit;
}

__device__ void mask(const RouteArgs& args, std::uint64_t token, std::uint32_t flag) {
  for (std::uint64_t choice = 0; choice < args.shape.top_k; ++choice) {
    args.topk_ids[token * args.shape.top_k + choice] = -1;
    args.topk_weights[token * args.shape.top_k + choice] = 0.0F;
  }
  if (flag != 0) atomicOr(args.flags, flag);
}

// One over the root of the row's mean square. Doubles hold the square of every fp32.
__device__ float inverse_norm(const RouteArgs& args, std::uint64_t token) {
  double sum = 0;
  for (std::uint64_t h = 0; h < args.shape.hidden; ++h) {
    const auto value = static_cast<double>(element_at(args.x, token, h));
    sum += value * value;
  }
  const double mean = sum / static_cast<double>(args.shape.hidden);
  return static_cast<float>(1.0 / sqrt(mean + static_cast<double>(args.shape.norm_eps)));
}

__device__ void by_table(const RouteCall& call, std::uint64_t token) {
  const RouteArgs& args = call.args;
  const std::uint64_t top_k = args.shape.top_k;
  const auto id = static_cast<std::uint64_t>(args.token_ids[token]);
  if (id >= args.shape.vocab) return mask(args, token, kFlagBadTokenId);
  const float* logits = call.rows + token * row_floats(args.shape);
  float* weights = args.topk_weights + token * top_k;
  for (std::uint64_t choice = 0; choice < top_k; ++choice) {
    weights[choice] = route::score(args.shape.kind, logits[choice]);
    if (weights[choice] != weights[choice]) return mask(args, token, kFlagBadLogits);
  }
  for (std::uint64_t choice = 0; choice < top_k; ++choice)
    args.topk_ids[token * top_k + choice] = args.token_table[id * top_k + choice];
  route::finish_weights(args.shape, weights);
}

__device__ void by_score(const RouteCall& call, std::uint64_t token) {
  const RouteArgs& args = call.args;
  const RouterShape& shape = args.shape;
  float* scores = call.rows + token * row_floats(shape);
  const bool of_logits = route::is_softmax(shape.kind);
  const float* logit_bias = of_logits ? args.bias : nullptr;
  const float factor = shape.kind == RouterKind::scaled_softmax ? inverse_norm(args, token) : 1.0F;
  for (std::uint64_t expert = 0; expert < shape.experts; ++expert) {
    const float bias = logit_bias == nullptr ? 0.0F : logit_bias[expert];
    scores[expert] = route::score(shape.kind, factor * scores[expert] + bias);
  }
  std::int32_t* ids = args.topk_ids + token * shape.top_k;
  float* weights = args.topk_weights + token * shape.top_k;
  if (!route::select_experts(shape, of_logits ? nullptr : args.bias, scores, scores + shape.experts,
                             ids)) {
    return mask(args, token, kFlagBadLogits);
  }
  for (std::uint64_t choice = 0; choice < shape.top_k; ++choice)
    weights[choice] = scores[ids[choice]];
  if (of_logits) {
    route::softmax_weights(shape, scores, weights);
  } else {
    route::finish_weights(shape, weights);
  }
  if (args.expert_scale == nullptr) return;
  for (std::uint64_t choice = 0; choice < shape.top_k; ++choice)
    weights[choice] *= args.expert_scale[ids[choice]];
}

// Grid: tokens / kSelectThreads.
__global__ void __launch_bounds__(kSelectThreads) select(const __grid_constant__ RouteCall call) {
  const std::uint64_t token = std::uint64_t{blockIdx.x} * kSelectThreads + threadIdx.x;
  if (token >= call.args.tokens) return;
  if (call.args.token_ids != nullptr && call.args.token_ids[token] < 0)
    return mask(call.args, token, 0);
  if (call.args.token_table != nullptr) {
    by_table(call, token);
  } else {
    by_score(call, token);
  }
}

void run(const RouteArgs& args) {
  if (args.tokens == 0) return;
  const RouteCall call{.args = args,
                       .rows = reinterpret_cast<float*>(align_up(args.workspace, kRowAlignment))};
  auto* stream = static_cast<cudaStream_t>(args.stream);
  const std::uint64_t logits = args.token_table != nullptr ? args.shape.top_k : args.shape.experts;
  const dim3 grid(static_cast<unsigned>(args.tokens),
                  static_cast<unsigned>(divide_up(logits, kLogits)));
  compute_logits<<<grid, kThreads, 0, stream>>>(call);
  select<<<static_cast<unsigned>(divide_up(args.tokens, kSelectThreads)), kSelectThreads, 0,
           stream>>>(call);
  const cudaError_t code = cudaGetLastError();
  if (code != cudaSuccess && args.launch_error != nullptr && *args.launch_error == 0)
    *args.launch_error = code;
}

// The largest number for what no memory holds.
std::uint64_t workspace_bytes(const RouterShape& shape, std::uint64_t tokens) {
  const auto bytes = checked_multiply(tokens, row_floats(shape) * sizeof(float));
  const auto aligned = bytes ? checked_add(*bytes, kRowAlignment) : std::nullopt;
  return aligned.value_or(~std::uint64_t{0});
}

bool supports(RouterKind /*kind*/) { return true; }

constexpr RouteKernel kRoute{.run = run, .workspace_bytes = workspace_bytes, .supports = supports};

}  // namespace

const RouteKernel* route_kernel() { return &kRoute; }

}  // namespace moxie::cuda::portable
