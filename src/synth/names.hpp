// SPDX-License-Identifier: Apache-2.0
// The tensors of one layer, under the names, types and shapes of a dialect.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/safetensors_writer.hpp"
#include "moxie/model.hpp"
#include "synth/recipe.hpp"

namespace moxie::synth {

// What the bytes of a tensor mean.
enum class Content : std::uint8_t {
  router_weight,  // bf16 [experts, hidden]; f32 in GGUF
  router_bias,    // f32 [experts]
  token_table,    // i64 [vocab, top_k], expert ids; i32 in GGUF
  dense_weight,   // BF16 or E4M3 [n, k]
  tile_scales,    // f32 [ceil(n/128), ceil(k/128)]
  codes,          // pairs of E2M1 [n, k/2]
  block_scales,   // E8M0 or UE4M3 [n, k/group]
  weight_global,  // f32, multiplier of the weight; compressed-tensors: its reciprocal
  input_global,   // f32, multiplier of the activations; compressed-tensors: its reciprocal
  expert_bias,    // bf16 [experts, n]
  logit_bias,     // bf16 [experts], part of the router's logits
  // Of a whole model:
  tile_exponents,  // E8M0 [row tiles, column tiles]
  norm,            // bf16, factors near 1
  mix_weight,      // f32 [mixes, copies * hidden], of hyper-connections
  mix_base,        // f32 [mixes]; the first are of the sum over the copies
  mix_scale,       // f32 [1 or 3]
  sink,            // f32 [heads]
  position_bias,   // f32 [ratio, channels], of a compressor
  // GGUF's, of all experts one after another:
  blocks,          // codes and scales [experts, n, k]
  weight_globals,  // f32 [experts]
  input_globals,   // f32 [experts]
  biases           // f32 [experts, n]
};

struct Tensor {
  TensorEntry entry;
  Content content = Content::codes;
  std::uint64_t layer = 0;
  std::uint64_t expert = 0;
  ProjectionKind projection = ProjectionKind::gate;
  std::uint64_t number = 0;  // running number in the checkpoint
  // Names the random stream where layer, expert and projection do not; 0 elsewhere.
  std::uint64_t stream = 0;
  std::optional<BlockFormat> format{};  // when it is not the recipe's
};

// In file order: the router, then the experts by id, gate before up before down. The first one has
// the running number `first_number`.
std::vector<Tensor> tensors_of_layer(const Recipe& recipe, std::uint64_t layer,
                                     std::uint64_t first_number);

// "layers.3.ffn.experts"
std::string experts_prefix(const Recipe& recipe, std::uint64_t layer);

}  // namespace moxie::synth
