// SPDX-License-Identifier: Apache-2.0
// Twice: mix, collapse, norm, sublayer, expand with the same mix.
#include "kernels/ref/block.hpp"

#include "base/checked.hpp"
#include "kernels/ref/rmsnorm.hpp"

namespace moxie::ref {

namespace {

void add(std::vector<double>& sum, std::span<const double> part) {
  MOXIE_CHECK(part.size() == sum.size(), "ranks give outputs of one width");
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
}

}  // namespace

BlockResult block(const Block& block, std::span<const double> x, std::uint64_t position) {
  const double eps = block.parameters.rms_norm_eps;
  BlockResult result;

  result.attn_mix = mix(block.hc_attn, block.parameters, x);
  result.attn_input = rmsnorm(collapse(result.attn_mix.pre, x), block.attn_norm, eps);
  result.attn_output.resize(result.attn_input.size());
  for (const BlockRank& rank : block.ranks) {
    const std::vector<double> o = rank.attention(result.attn_input);
    add(result.attn_output, output_path(rank.output_path, o, position).y);
  }
  result.middle = expand(result.attn_mix, x, result.attn_output);

  result.ffn_mix = mix(block.hc_ffn, block.parameters, result.middle);
  result.ffn_input = rmsnorm(collapse(result.ffn_mix.pre, result.middle), block.ffn_norm, eps);
  result.ffn_output.resize(result.ffn_input.size());
  for (const BlockRank& rank : block.ranks) {
    if (rank.routed) add(result.ffn_output, rank.routed(result.ffn_input));
    add(result.ffn_output, shared_expert(rank.shared, result.ffn_input).y);
  }
  result.x = expand(result.ffn_mix, result.middle, result.ffn_output);
  return result;
}

}  // namespace moxie::ref
