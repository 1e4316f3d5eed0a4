// SPDX-License-Identifier: Apache-2.0
// Small checkpoints of every dialect, in which single tensors can be left out, renamed,
// retyped or given other bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/safetensors_writer.hpp"
#include "moxie/checkpoint.hpp"
#include "moxie/json.hpp"
#include "support/temp_folder.hpp"

namespace moxie::test {

enum class TinyDialect : std::uint8_t {
  deepseek_v4,
  deepseek_v4_nvfp4,
  modelopt,
  compressed_nvfp4,
  compressed_mxfp4,
  quark
};
inline constexpr TinyDialect kTinyDialects[] = {
    TinyDialect::deepseek_v4,      TinyDialect::deepseek_v4_nvfp4, TinyDialect::modelopt,
    TinyDialect::compressed_nvfp4, TinyDialect::compressed_mxfp4,  TinyDialect::quark};

// One file; or a shard per layer, with or without an index.
enum class TinyShards : std::uint8_t { one_file, indexed, without_index };

struct TinyTensor {
  std::string name;
  DType dtype = DType::u8;
  Shape shape;
  std::string bytes;
};

// Changes a tensor before it is written; false leaves it out.
using TinyEdit = std::function<bool(TinyTensor&)>;

struct TinyOptions {
  TinyDialect dialect = TinyDialect::deepseek_v4;
  std::uint64_t hidden = 64;
  std::uint64_t inter = 96;
  std::uint64_t experts = 3;
  std::uint64_t layers = 2;
  std::uint64_t mtp_blocks = 0;  // native MXFP4 blocks mtp.0, mtp.1, …
  bool gated = true;
  bool input_scales = true;                  // NVFP4 only
  std::string prefix{};                      // with {} for the layer; the dialect's own if empty
  std::array<std::string, 3> projections{};  // gate, up, down; the dialect's own if empty
  std::optional<Json> config{};              // tiny_config() if absent
  Json quant_config{};                       // written as hf_quant_config.json unless null
  TinyShards shards = TinyShards::one_file;
  std::vector<TinyEdit> edits{};    // all are applied, in order
  std::vector<TinyTensor> extra{};  // written after the last layer
};

inline bool is_nvfp4(TinyDialect dialect) {
  return dialect == TinyDialect::deepseek_v4_nvfp4 || dialect == TinyDialect::modelopt ||
         dialect == TinyDialect::compressed_nvfp4;
}
inline bool is_deepseek(TinyDialect dialect) {
  return dialect == TinyDialect::deepseek_v4 || dialect == TinyDialect::deepseek_v4_nvfp4;
}
inline bool is_compressed(TinyDialect dialect) {
  return dialect == TinyDialect::compressed_nvfp4 || dialect == TinyDialect::compressed_mxfp4;
}

inline Json tiny_quantization(TinyDialect dialect) {
  Json quantization;
  if (is_deepseek(dialect)) {
    quantization.set("quant_method", "fp8");
    if (is_nvfp4(dialect)) quantization.set("moe_quant_algo", "NVFP4");
  } else if (is_compressed(dialect)) {
    quantization.set("quant_method", "compressed-tensors")
        .set("format", is_nvfp4(dialect) ? "nvfp4-pack-quantized" : "mxfp4-pack-quantized");
  } else if (dialect == TinyDialect::quark) {
    quantization.set("quant_method", "quark")
        .set(
            "global_quant_config",
            Json::object().set("weight", Json::object().set("dtype", "fp4").set("group_size", 32)));
  } else {
    quantization.set("quant_method", "modelopt").set("quant_algo", "NVFP4");
  }
  return quantization;
}

// The config that declares what write_tiny() writes.
inline Json tiny_config(const TinyOptions& options) {
  const bool deepseek = is_deepseek(options.dialect);
  Json config;
  config.set("model_type", deepseek        ? "deepseek_v4"
                           : options.gated ? "deepseek_v3"
                                           : "nemotron_h")
      .set("hidden_size", options.hidden)
      .set("moe_intermediate_size", options.inter)
      .set("n_routed_experts", options.experts)
      .set("num_experts_per_tok", std::min<std::uint64_t>(2, options.experts))
      .set("num_hidden_layers", options.layers);
  if (deepseek) config.set("expert_dtype", "fp4");
  return config.set("quantization_config", tiny_quantization(options.dialect));
}

// Makes the tensors. No two have equal bytes, neighbouring rows and groups differ, no code byte is
// 0x00 or 0xFF, all scales are legal and all f32 scalars of a checkpoint are different.
class TinyTensors {
 public:
  explicit TinyTensors(const TinyOptions& options) : options_(options) {}

  std::string prefix_of(std::uint64_t layer) const {
    std::string prefix = options_.prefix;
    if (prefix.empty()) {
      prefix =
          is_deepseek(options_.dialect) ? "layers.{}.ffn.experts" : "model.layers.{}.mlp.experts";
    }
    return prefix.replace(prefix.find("{}"), 2, std::to_string(layer));
  }

  std::vector<TinyTensor> layer(std::uint64_t layer) {
    return block(prefix_of(layer), is_nvfp4(options_.dialect));
  }
  std::vector<TinyTensor> mtp(std::uint64_t number) {
    return block("mtp." + std::to_string(number) + ".ffn.experts", false);
  }

 private:
  std::string projection(std::size_t kind) const {
    static constexpr std::array<const char*, 3> kNative = {"w1", "w3", "w2"};
    static constexpr std::array<const char*, 3> kLong = {"gate_proj", "up_proj", "down_proj"};
    if (!options_.projections[kind].empty()) return options_.projections[kind];
    return is_deepseek(options_.dialect) ? kNative[kind] : kLong[kind];
  }

  std::vector<TinyTensor> block(const std::string& prefix, bool nvfp4) {
    std::vector<TinyTensor> tensors;
    const std::uint64_t group = nvfp4 ? 16 : 32;
    for (std::uint64_t expert = 0; expert < options_.experts; ++expert) {
      for (std::size_t kind = options_.gated ? 0 : 1; kind < 3; ++kind) {
        const std::uint64_t rows = kind == 2 ? options_.hidden : options_.inter;
        const std::uint64_t columns = kind == 2 ? options_.inter : options_.hidden;
        const std::string stem = prefix + "." + std::to_string(expert) + "." +
                                 (prefix.starts_with("mtp.") ? native(kind) : projection(kind));
        const Shape groups{rows, columns / group};
        const bool native_block =
            options_.dialect == TinyDialect::deepseek_v4 || prefix.starts_with("mtp.");
        const bool inverse = is_compressed(options_.dialect);
        tensors.push_back(bytes(stem + (inverse ? ".weight_packed" : ".weight"),
                                native_block ? DType::i8 : DType::u8, {rows, columns / 2}, 1,
                                0xFE));
        if (!nvfp4) {
          tensors.push_back(bytes(stem + (native_block ? ".scale" : ".weight_scale"),
                                  native_block ? DType::f8_e8m0 : DType::u8, groups, 96, 159));
          continue;
        }
        tensors.push_back(bytes(stem + ".weight_scale", DType::f8_e4m3, groups, 0x01, 0x7E));
        const Shape one = inverse ? Shape{1} : Shape{};
        tensors.push_back(
            scalar(stem + (inverse ? ".weight_global_scale" : ".weight_scale_2"), one));
        if (options_.input_scales) {
          tensors.push_back(scalar(stem + (inverse ? ".input_global_scale" : ".input_scale"), one));
        }
      }
    }
    return tensors;
  }

  static std::string native(std::size_t kind) { return kind == 0 ? "w1" : kind == 1 ? "w3" : "w2"; }

  // Bytes from `low` to `high` that depend on the tensor's number and the position.
  TinyTensor bytes(std::string name, DType dtype, Shape shape, unsigned low, unsigned high) {
    std::uint64_t size = 1;
    for (const std::uint64_t extent : shape) size *= extent;
    std::string data(size, '\0');
    std::uint64_t state = ++number_ << 32;
    for (char& byte : data) {
      std::uint64_t mixed = state += 0x9E3779B97F4A7C15ULL;
      mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
      mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
      byte = static_cast<char>(low + (mixed >> 33) % (high - low + 1));
    }
    return {std::move(name), dtype, std::move(shape), std::move(data)};
  }

  TinyTensor scalar(std::string name, Shape shape) {
    const float value = static_cast<float>(++number_) / 4096.0F;
    TinyTensor tensor{std::move(name), DType::f32, std::move(shape),
                      std::string(sizeof value, '\0')};
    std::memcpy(tensor.bytes.data(), &value, sizeof value);
    return tensor;
  }

  const TinyOptions& options_;
  std::uint64_t number_ = 0;
};

inline void write_tensors(const std::filesystem::path& file,
                          const std::vector<TinyTensor>& tensors) {
  std::vector<TensorEntry> entries;
  for (const TinyTensor& tensor : tensors)
    entries.push_back({tensor.name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(file, entries);
  for (const TinyTensor& tensor : tensors)
    writer.write(std::as_bytes(std::span(tensor.bytes.data(), tensor.bytes.size())));
  writer.commit();
}

// Writes config.json, the shards and what belongs to them into `folder`, and returns it.
inline std::filesystem::path write_tiny(const std::filesystem::path& folder,
                                        const TinyOptions& options) {
  TinyTensors maker(options);
  std::vector<std::vector<TinyTensor>> parts;
  for (std::uint64_t layer = 0; layer < options.layers; ++layer)
    parts.push_back(maker.layer(layer));
  for (std::uint64_t block = 0; block < options.mtp_blocks; ++block)
    parts.push_back(maker.mtp(block));
  if (!options.extra.empty()) parts.push_back(options.extra);
  for (const TinyEdit& edit : options.edits) {
    for (auto& part : parts) std::erase_if(part, [&](TinyTensor& tensor) { return !edit(tensor); });
  }
  if (options.shards == TinyShards::one_file) {
    for (std::size_t i = 1; i < parts.size(); ++i)
      std::ranges::move(parts[i], std::back_inserter(parts[0]));
    parts.resize(std::min<std::size_t>(parts.size(), 1));
  }

  std::filesystem::create_directories(folder);
  const auto text = [&](const char* name, const Json& json) {
    std::ofstream(folder / name) << json.dump();
  };
  text("config.json", options.config ? *options.config : tiny_config(options));
  if (!options.quant_config.is_null()) text("hf_quant_config.json", options.quant_config);
  Json weight_map = Json::object();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string file = options.shards == TinyShards::one_file
                                 ? "model.safetensors"
                                 : "model-" + std::to_string(i) + ".safetensors";
    write_tensors(folder / file, parts[i]);
    for (const TinyTensor& tensor : parts[i]) {
      weight_map.set(tensor.name, file);
      total += tensor.bytes.size();
    }
  }
  if (options.shards == TinyShards::indexed) {
    text("model.safetensors.index.json",
         Json::object()
             .set("metadata", Json::object().set("total_size", total))
             .set("weight_map", std::move(weight_map)));
  }
  return folder;
}

// Writes the checkpoint under `name` in the folder and opens it.
inline Checkpoint tiny_checkpoint(const TempFolder& folder, const TinyOptions& options,
                                  std::string_view name = "model") {
  return open_checkpoint(write_tiny(folder.path() / name, options));
}

// Leaves out every tensor whose name ends in `ending`.
inline TinyEdit leave_out(std::string ending) {
  return [ending](TinyTensor& tensor) { return !tensor.name.ends_with(ending); };
}

// Replaces `from` by `to` in every name that contains it.
inline TinyEdit rename(std::string from, std::string to) {
  return [from, to](TinyTensor& tensor) {
    if (const auto at = tensor.name.find(from); at != std::string::npos)
      tensor.name.replace(at, from.size(), to);
    return true;
  };
}

// Another type and shape, with as many bytes of 0x3C as they need.
inline TinyEdit retype(std::string name, DType dtype, Shape shape) {
  return [=](TinyTensor& tensor) {
    if (tensor.name != name) return true;
    tensor.dtype = dtype;
    tensor.shape = shape;
    tensor.bytes.assign(TensorEntry{name, dtype, shape}.bytes(), '\x3C');
    return true;
  };
}

// Another byte at one place.
inline TinyEdit poke(std::string name, std::size_t offset, std::uint8_t value) {
  return [=](TinyTensor& tensor) {
    if (tensor.name == name) tensor.bytes.at(offset) = static_cast<char>(value);
    return true;
  };
}

// Another value of an f32 scalar.
inline TinyEdit set_scalar(std::string name, float value) {
  return [=](TinyTensor& tensor) {
    if (tensor.name == name) std::memcpy(tensor.bytes.data(), &value, sizeof value);
    return true;
  };
}

}  // namespace moxie::test
