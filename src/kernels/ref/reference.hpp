// SPDX-License-Identifier: Apache-2.0
// The judge: the routed experts of one layer in double precision, and how far a correct engine with
// fp32 accumulation may be from it. Shares nothing with any kernel but the formats.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "moxie/types.hpp"

namespace moxie::ref {

// One projection at its full size. Rows lie `*_stride` bytes apart.
struct Matrix {
  const std::uint8_t* codes = nullptr;  // [rows, cols/2] packed pairs
  std::uint64_t codes_stride = 0;
  const std::uint8_t* scales = nullptr;  // [rows, cols/group]
  std::uint64_t scales_stride = 0;
  double dequant_mul = 1;              // 1 where the format has none
  const std::uint8_t* bias = nullptr;  // f32 [rows]; null: none
  float act_dequant_mul = 0;  // the stored activation scale, where policy checkpoint uses it
};

struct Expert {
  Matrix gate;  // [inter, hidden]; without codes for functions that have no gate
  Matrix up;    // [inter, hidden]
  Matrix down;  // [hidden, inter]
};

// Global scales of nvfp4 activations. Ranks are those of the engine: rank r has part r % parts of
// the intermediate axis, and the slots of group r / parts.
struct ActScaling {
  ActScale policy = ActScale::checkpoint;
  struct Frozen {
    float x = 0;
    float act = 0;
  };
  std::vector<Frozen> frozen;  // policy warmup: [groups * parts]
  // Groups of ranks compute different slots: group_of_slot[s] computes slot s.
  std::vector<std::uint32_t> group_of_slot;  // [tokens * top_k]; empty: all in group 0
  std::uint32_t groups = 1;
};

struct Problem {
  BlockFormat format = BlockFormat::mxfp4;
  ActFormat act_format = ActFormat::bf16;
  ActScaling act_scaling;  // of nvfp4
  Activation activation = Activation::silu;
  double activation_limit = 0;
  std::uint64_t hidden = 0;
  std::uint64_t inter = 0;
  std::uint64_t experts = 0;
  std::uint64_t tokens = 0;
  std::uint64_t top_k = 0;
  // Roundings between one product and the finished, dequantised sum of the engine that is judged;
  // 0: as many as there are terms, which covers every order of summation.
  std::uint64_t gate_up_roundings = 0;
  std::uint64_t down_roundings = 0;
  bool flushes_subnormals = false;  // the engine that is judged, on the way through its sums
  // First columns of the ranks' parts of the intermediate axis, ascending, the first one 0: where
  // activation groups start anew.
  std::vector<std::uint64_t> part_starts = {0};
  const float* x = nullptr;                // [tokens, hidden], before quantisation
  const std::int32_t* topk_ids = nullptr;  // [tokens, top_k]; ids outside [0, experts) are masked
  const float* topk_weights = nullptr;     // [tokens, top_k]
  // [tokens, top_k, inter]: the engine's own values between the products, where they are known.
  // They are held against what they may be, and the down product starts from them, so that its
  // bound knows the sums' errors alone. Null: everything starts from x.
  const float* act = nullptr;
  // Called once for each expert that has a slot, in ascending order, from the calling thread; nvfp4
  // with dynamic scales goes through the experts twice. The memory stays valid until the next call,
  // or until run() returns.
  std::function<Expert(std::uint64_t expert)> expert;
};

// An engine's value between the products outside its interval: how many, and the farthest.
struct ActDeviation {
  std::uint64_t outside = 0;
  std::uint64_t slot = 0;
  std::uint64_t column = 0;
  double least = 0;
  double most = 0;
  double got = 0;
};

// All arrays are [tokens, hidden].
struct Result {
  std::vector<double> y;
  std::vector<double> bound;        // without the sum over ranks and the rounding of the output
  std::vector<double> magnitude;    // sum over slots of |weight| * sum |w2| |a|
  std::vector<double> unquantised;  // y with activations that are not quantised
  ActDeviation act;                 // of Problem::act
  std::uint64_t clamped = 0;        // gates and ups that reached the activation limit
};

bool supports(Activation activation);
bool supports(ActFormat act_format);

// A token without a valid slot gets exact zeros. The numbers do not depend on the threads.
Result run(const Problem& problem);

}  // namespace moxie::ref
