// SPDX-License-Identifier: Apache-2.0
// Small dense checkpoints of chosen values, and what is in the converted ones.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "formats/bf16.hpp"
#include "formats/block_format.hpp"
#include "moxie/convert.hpp"
#include "moxie/synth.hpp"
#include "support/folder_bytes.hpp"
#include "support/refusal.hpp"
#include "support/temp_folder.hpp"
#include "support/threads.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie::test {

inline Json family_config(std::string_view model_type, std::uint64_t hidden, std::uint64_t inter,
                          std::uint64_t experts) {
  Json config;
  const bool is_oss = model_type == "gpt_oss";
  config.set("model_type", model_type).set("hidden_size", hidden).set("num_hidden_layers", 1);
  config.set(is_oss ? "intermediate_size" : "moe_intermediate_size", inter);
  config.set(is_oss ? "num_local_experts" : "num_experts", experts).set("num_experts_per_tok", 1);
  if (is_oss) config.set("swiglu_limit", 7.0);
  return config.set("left_alone", Json::object().set("deep", 1.5));
}

inline TinyTensor bf16_tensor(std::string name, Shape shape,
                              const std::function<float(std::uint64_t)>& value) {
  TinyTensor tensor{.name = std::move(name), .dtype = DType::bf16, .shape = std::move(shape)};
  std::uint64_t count = 1;
  for (const std::uint64_t extent : tensor.shape) count *= extent;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint16_t bits = encode_bf16(value(i));
    tensor.bytes.append(reinterpret_cast<const char*>(&bits), sizeof bits);
  }
  return tensor;
}

inline std::filesystem::path write_folder(const std::filesystem::path& folder, const Json& config,
                                          const std::vector<TinyTensor>& tensors) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump();
  write_tensors(folder / "model.safetensors", tensors);
  return folder;
}

// Values of about unit size from a seed.
inline std::function<float(std::uint64_t)> random_values(std::uint64_t seed) {
  return [seed](std::uint64_t i) {
    const std::uint64_t word = Stream(seed, {7}).word(i);
    return static_cast<float>(static_cast<int>(word % 4001) - 2000) * 0x1p-10F;
  };
}

inline std::span<const std::uint8_t> raw(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo* tensor = checkpoint.find(name);
  if (tensor == nullptr) throw std::runtime_error("no tensor " + name);
  const auto bytes = checkpoint.bytes(*tensor);
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

inline float scalar(const Checkpoint& checkpoint, const std::string& name) {
  float value = 0;
  std::memcpy(&value, raw(checkpoint, name).data(), sizeof value);
  return value;
}

// All values of an FP4 projection, exact.
inline std::vector<double> values_of(const MoeModel& model, const LayerExperts& layer,
                                     std::uint64_t expert, ProjectionKind kind) {
  const Projection& projection = layer.experts.at(expert)[kind];
  const float global = layer.format == BlockFormat::nvfp4
                           ? read_scalar(model.checkpoint, projection.dequant_mul)
                           : 1.0F;
  const auto* codes = reinterpret_cast<const std::uint8_t*>(
                          model.checkpoint.bytes(*projection.codes.tensor).data()) +
                      projection.codes.offset;
  const auto* scales = reinterpret_cast<const std::uint8_t*>(
                           model.checkpoint.bytes(*projection.block_scales.tensor).data()) +
                       projection.block_scales.offset;
  std::vector<double> values;
  for (std::uint64_t row = 0; row < projection.codes.rows; ++row) {
    const std::uint8_t* row_codes = codes + row * projection.codes.row_stride;
    const std::uint8_t* row_scales = scales + row * projection.block_scales.row_stride;
    for (std::uint64_t col = 0; col < 2 * projection.codes.row_bytes; ++col) {
      const unsigned code = (row_codes[col / 2] >> (4 * (col % 2))) & 0xFU;
      values.push_back(dequantise(static_cast<std::uint8_t>(code),
                                  row_scales[col / scale_group(layer.format)], layer.format,
                                  global));
    }
  }
  return values;
}

inline SynthOptions synth_options(const std::string& name = "tiny") {
  SynthOptions options;
  options.config = synth_config(name);
  options.num_layers = 2;
  options.experts = 3;
  options.hidden = 160;
  options.inter = 96;
  options.seed = 11;
  return options;
}

inline QuantizeOptions to(ConvertFormat format, std::optional<DialectKind> dialect = {},
                          std::optional<ConvertRecipe> recipe = {}) {
  QuantizeOptions options;
  options.format = format;
  options.dialect = dialect;
  options.recipe = recipe;
  return options;
}

}  // namespace moxie::test
