// SPDX-License-Identifier: Apache-2.0
// A small model as a GGUF file, and the same weights in safetensors.
#pragma once

#include <filesystem>
#include <string>

#include "moxie/model.hpp"
#include "moxie/synth.hpp"
#include "support/temp_folder.hpp"

namespace moxie::test {

// A config.json whose family GGUF has an architecture for.
inline Json gguf_source_config(std::uint64_t hidden, std::uint64_t inter) {
  Json config;
  config.set("model_type", "qwen3_moe")
      .set("hidden_size", hidden)
      .set("moe_intermediate_size", inter)
      .set("num_experts", 3)
      .set("num_experts_per_tok", 2)
      .set("num_hidden_layers", 1)
      .set("norm_topk_prob", true);
  return config;
}

// Writes the model into FOLDER/NAME and reads it.
inline MoeModel synth_model(const std::filesystem::path& out, const SynthOptions& options) {
  (void)synthesise(out, options);
  return read_model(open_checkpoint(out));
}

}  // namespace moxie::test
