// SPDX-License-Identifier: Apache-2.0
// Whole DeepSeek-V4 checkpoints, every tensor of the model's own list, in which single tensors can
// be changed or left out. Bytes count up: no two neighbours are equal and none is zero, but for ids
// of experts.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moxie/model.hpp"
#include "moxie/synth.hpp"
#include "moxie/tensors.hpp"
#include "support/temp_folder.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie::test {

struct WholeOptions {
  Json config = synth_config("tiny");
  BlockFormat format = BlockFormat::mxfp4;             // of the main layers
  std::optional<std::vector<std::uint64_t>> layers{};  // of which there are tensors; else all
  bool top = true;
  bool index = false;             // the last file is in the index and can be left out
  std::vector<TinyEdit> edits{};  // all are applied, in order
  std::vector<TinyTensor> extra{};
};

// "tiny" with other numbers.
inline Json tiny_v4(const std::vector<std::pair<std::string, std::uint64_t>>& numbers) {
  Json config = synth_config("tiny");
  for (const auto& [key, value] : numbers) config.set(key, value);
  return config;
}

// "tiny" cut down to one main layer, window only, and a draft block: few bytes, every kind of cut.
inline Json one_layer_v4(std::vector<std::pair<std::string, std::uint64_t>> numbers = {},
                         std::vector<int> ratios = {0, 0}) {
  numbers.insert(numbers.begin(), {{"num_hidden_layers", ratios.size() - 1},
                                   {"hidden_size", 128},
                                   {"n_routed_experts", 3},
                                   {"moe_intermediate_size", 96},
                                   {"num_hash_layers", 0}});
  Json config = tiny_v4(numbers);
  Json list = Json::array();
  for (const int ratio : ratios) list.push_back(ratio);
  return config.set("compress_ratios", std::move(list));
}

using Numbers = std::vector<std::pair<std::string, std::uint64_t>>;

inline Json number_list(const std::vector<int>& numbers) {
  Json list = Json::array();
  for (const int number : numbers) list.push_back(number);
  return list;
}

inline Json with_tiles_of_four(Json config) {
  Json quantization = *config.find("quantization_config");
  return config.set("quantization_config",
                    quantization.set("weight_block_size", number_list({4, 4})));
}

// Heads, groups and blocks are as many as ever, and nothing is wide.
inline Numbers narrow_widths(const Numbers& numbers) {
  Numbers all = {{"head_dim", 4},      {"qk_rope_head_dim", 4}, {"o_lora_rank", 4},
                 {"q_lora_rank", 8},   {"hidden_size", 32},     {"moe_intermediate_size", 160},
                 {"index_head_dim", 4}};
  all.insert(all.end(), numbers.begin(), numbers.end());
  return all;
}

// One main layer and a draft block with FP8 tiles of four.
inline Json narrow_v4(const Numbers& numbers = {}, std::vector<int> ratios = {0, 0}) {
  return with_tiles_of_four(one_layer_v4(narrow_widths(numbers), std::move(ratios)));
}

// V4.1 with one main layer of five experts, two draft blocks of three or so, and pictures.
inline Json narrow_v4_1(std::uint64_t draft_experts = 3) {
  Json config = synth_config("deepseek-v4.1-flash");
  Json text = *config.find("text_config");
  for (const auto& [key, value] : narrow_widths({{"num_hidden_layers", 1},
                                                 {"n_routed_experts", 5},
                                                 {"num_experts_per_tok", 2},
                                                 {"dspark_n_routed_experts", draft_experts},
                                                 {"dspark_num_experts_per_tok", 2},
                                                 {"dspark_markov_rank", 8},
                                                 {"num_attention_heads", 16},
                                                 {"index_n_heads", 4},
                                                 {"vocab_size", 320}}))
    text.set(key, value);
  text.set("compress_ratios", number_list({0, 0, 0}));
  for (const char* key : {"kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids",
                          "engram_num_embeddings"})
    text.set(key, Json::array());
  Json vision = *config.find("vision_config");
  for (const auto& [key, value] : Numbers{{"num_hidden_layers", 1},
                                          {"hidden_size", 8},
                                          {"intermediate_size", 8},
                                          {"patch_size", 2}})
    vision.set(key, value);
  config.set("text_config", std::move(text)).set("vision_config", std::move(vision));
  return with_tiles_of_four(std::move(config));
}

// Bytes 1 … 113 in turn, from a place that depends on the tensor: legal scales, and finite numbers
// in every format; codes of experts go up to 251. Ids are those of the first three experts.
inline std::string counted_bytes(const ModelTensor& tensor, std::uint64_t number) {
  const std::uint64_t size = TensorEntry{tensor.name, tensor.dtype, tensor.shape}.bytes();
  std::string bytes(size, '\0');
  const bool codes = tensor.dtype == DType::i8 || tensor.dtype == DType::u8;
  const std::uint64_t period = codes ? 251 : 113;
  for (std::uint64_t at = 0; at < size; ++at)
    bytes[at] = static_cast<char>(1 + (31 * number + at) % period);
  if (tensor.dtype == DType::i64) {
    for (std::uint64_t at = 0; at < size; at += sizeof(std::int64_t)) {
      const auto id = static_cast<std::int64_t>((number + at / sizeof(std::int64_t)) % 3);
      std::memcpy(bytes.data() + at, &id, sizeof id);
    }
  }
  if (tensor.name.ends_with("_scale_2") || tensor.name.ends_with("input_scale")) {
    const float value = static_cast<float>(1 + number % 97) / 4096.0F;
    std::memcpy(bytes.data(), &value, sizeof value);
  }
  return bytes;
}

// All tensors by file: one a layer, the last one of what belongs to none.
inline std::vector<std::vector<TinyTensor>> whole_tensors(const V4Config& config,
                                                          const WholeOptions& options) {
  std::vector<std::vector<TinyTensor>> files;
  std::uint64_t number = 0;
  const auto add = [&](const std::vector<ModelTensor>& list) {
    for (const ModelTensor& tensor : list) {
      files.back().push_back(
          {tensor.name, tensor.dtype, tensor.shape, counted_bytes(tensor, ++number)});
    }
  };
  for (std::uint64_t layer = 0; layer < config.layers + config.drafts; ++layer) {
    if (options.layers && std::ranges::find(*options.layers, layer) == options.layers->end())
      continue;
    files.emplace_back();
    // Experts stand between the others, as names in order put them.
    add(routed_tensors(config, layer, options.format));
    add(layer_tensors(config, layer));
  }
  files.emplace_back();
  if (options.top) add(top_tensors(config));
  std::ranges::copy(options.extra, std::back_inserter(files.back()));
  for (const TinyEdit& edit : options.edits) {
    for (auto& file : files) std::erase_if(file, [&](TinyTensor& tensor) { return !edit(tensor); });
  }
  return files;
}

inline std::filesystem::path write_whole(const std::filesystem::path& folder,
                                         const WholeOptions& options) {
  std::filesystem::create_directories(folder);
  Json config = options.config;
  if (options.format == BlockFormat::nvfp4) {
    Json quantization = *config.find("quantization_config");
    config.set("quantization_config", quantization.set("moe_quant_algo", "NVFP4"));
  }
  std::ofstream(folder / "config.json") << config.dump();
  const V4Config v4 = *read_config(config, Json()).v4;
  const auto files = whole_tensors(v4, options);
  Json weight_map = Json::object();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = "model-" + std::to_string(i) + ".safetensors";
    write_tensors(folder / name, files[i]);
    for (const TinyTensor& tensor : files[i]) weight_map.set(tensor.name, name);
  }
  if (options.index) {
    std::ofstream(folder / "model.safetensors.index.json")
        << Json::object()
               .set("metadata", Json::object())
               .set("weight_map", std::move(weight_map))
               .dump();
  }
  return folder;
}

// A whole checkpoint in a folder of its own, read.
class WholeCheckpoint {
 public:
  explicit WholeCheckpoint(const WholeOptions& options)
      : model_(read_model(open_checkpoint(write_whole(folder_.path() / "model", options)))) {}

  const MoeModel& operator*() const { return model_; }
  const MoeModel* operator->() const { return &model_; }
  const V4Config& config() const { return *model_.config.v4; }
  const TempFolder& folder() const { return folder_; }
  std::filesystem::path operator/(std::string_view name) const { return folder_.path() / name; }
  std::span<const std::byte> bytes(std::string_view tensor) const {
    return model_.checkpoint.bytes(*model_.checkpoint.find(tensor));
  }

 private:
  TempFolder folder_;
  MoeModel model_;
};

}  // namespace moxie::test
