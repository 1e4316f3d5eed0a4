// SPDX-License-Identifier: Apache-2.0
// One DeepSeek-V4 block for one token, over any number of ranks, from attention values that are
// given.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/ref/hyper_connections.hpp"
#include "kernels/ref/output_path.hpp"
#include "kernels/ref/shared_expert.hpp"

namespace moxie::ref {

// What one rank adds to the sums of the block.
struct BlockRank {
  OutputPath output_path;
  SharedExpert shared;
  // [heads of the rank, head_dim] from the normalised input; any values will do.
  std::function<std::vector<double>(std::span<const double> x)> attention;
  // [hidden] the rank's part of the routed experts, weights applied; null: none.
  std::function<std::vector<double>(std::span<const double> x)> routed;
};

// Held by every rank alike.
struct Block {
  HyperParameters parameters;
  HyperConnection hc_attn;
  HyperConnection hc_ffn;
  std::span<const double> attn_norm;  // [hidden]
  std::span<const double> ffn_norm;   // [hidden]
  std::span<const BlockRank> ranks;
};

struct BlockResult {
  Mix attn_mix;
  std::vector<double> attn_input;   // [hidden] normalised
  std::vector<double> attn_output;  // [hidden] summed over ranks
  std::vector<double> middle;       // [c, hidden] between the sublayers
  Mix ffn_mix;
  std::vector<double> ffn_input;   // [hidden] normalised
  std::vector<double> ffn_output;  // [hidden] routed and shared, summed over ranks
  std::vector<double> x;           // [c, hidden] after the block
};

// Ranks are summed in ascending order; nothing is rounded on the way.
BlockResult block(const Block& block, std::span<const double> x,  // [c, hidden]
                  std::uint64_t position);

}  // namespace moxie::ref
