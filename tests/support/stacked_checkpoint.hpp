// SPDX-License-Identifier: Apache-2.0
// gpt-oss checkpoints put together by hand: canonical weights of single experts, then the tensors
// that stack them, under the published names or the publisher's own.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "formats/bf16.hpp"
#include "moxie/model.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie::test {

enum class OssNaming : std::uint8_t { published, original };

struct OssSizes {
  std::uint64_t hidden = 64;
  std::uint64_t inter = 96;
  std::uint64_t experts = 3;
};

// The weights of one layer. Every code is 0, every scale 1, every bias 0 until it is set.
class OssWeights {
 public:
  struct Part {
    std::uint64_t rows = 0;
    std::uint64_t columns = 0;
    std::string codes;                // [rows, columns/2]
    std::string scales;               // [rows, columns/32]
    std::vector<std::uint16_t> bias;  // bf16 [rows]
  };

  explicit OssWeights(const OssSizes& sizes) : sizes_(sizes) {
    for (std::uint64_t expert = 0; expert < sizes.experts; ++expert) {
      for (const auto kind : {ProjectionKind::gate, ProjectionKind::up, ProjectionKind::down}) {
        const bool down = kind == ProjectionKind::down;
        Part part{.rows = down ? sizes.hidden : sizes.inter,
                  .columns = down ? sizes.inter : sizes.hidden,
                  .codes = {},
                  .scales = {},
                  .bias = {}};
        part.codes.assign(part.rows * part.columns / 2, '\0');
        part.scales.assign(part.rows * part.columns / 32, '\x7F');
        part.bias.assign(part.rows, 0);
        parts_.push_back(std::move(part));
      }
    }
  }

  // Random codes, scales around 2^-3, biases of up to 1.
  static OssWeights random(const OssSizes& sizes, std::uint64_t seed) {
    OssWeights weights(sizes);
    std::uint64_t number = 0;
    for (Part& part : weights.parts_) {
      const Stream stream(seed, {number++});
      std::uint64_t at = 0;
      for (char& byte : part.codes) byte = static_cast<char>(stream.word(at++));
      for (char& byte : part.scales) byte = static_cast<char>(122 + stream.word(at++) % 4);
      for (std::uint16_t& bias : part.bias)
        bias = encode_bf16((static_cast<float>(stream.word(at++) % 255) - 127.0F) / 128.0F);
    }
    return weights;
  }

  const OssSizes& sizes() const { return sizes_; }
  Part& part(std::uint64_t expert, ProjectionKind kind) {
    return parts_[3 * expert + static_cast<std::size_t>(kind)];
  }
  const Part& part(std::uint64_t expert, ProjectionKind kind) const {
    return parts_[3 * expert + static_cast<std::size_t>(kind)];
  }
  OssWeights& code(std::uint64_t expert, ProjectionKind kind, std::uint64_t row,
                   std::uint64_t column, unsigned code) {
    Part& at = part(expert, kind);
    char& pair = at.codes[(row * at.columns + column) / 2];
    const unsigned shift = column % 2 * 4;
    pair =
        static_cast<char>((static_cast<unsigned char>(pair) & (0xF0U >> shift)) | (code << shift));
    return *this;
  }
  OssWeights& bias(std::uint64_t expert, ProjectionKind kind, float value) {
    for (std::uint16_t& bias : part(expert, kind).bias) bias = encode_bf16(value);
    return *this;
  }

  // The six tensors of a layer; rows of gate and up take turns.
  std::vector<TinyTensor> tensors(OssNaming naming, std::uint64_t layer = 0) const {
    const bool original = naming == OssNaming::original;
    const std::string prefix = original ? "block." + std::to_string(layer) + ".mlp."
                                        : "model.layers." + std::to_string(layer) + ".mlp.experts.";
    const auto pair = [&](const std::string& stem, bool down) {
      const std::uint64_t rows = down ? sizes_.hidden : 2 * sizes_.inter;
      const std::uint64_t groups = (down ? sizes_.inter : sizes_.hidden) / 32;
      TinyTensor codes{prefix + stem + (original ? "_weight.blocks" : "_proj_blocks"),
                       DType::u8,
                       Shape{sizes_.experts, rows, groups, 16},
                       {}};
      TinyTensor scales{prefix + stem + (original ? "_weight.scales" : "_proj_scales"),
                        DType::u8,
                        Shape{sizes_.experts, rows, groups},
                        {}};
      TinyTensor bias{prefix + stem + (original ? "_bias" : "_proj_bias"),
                      DType::bf16,
                      Shape{sizes_.experts, rows},
                      {}};
      for (std::uint64_t expert = 0; expert < sizes_.experts; ++expert) {
        for (std::uint64_t row = 0; row < rows; ++row) {
          const auto kind = down           ? ProjectionKind::down
                            : row % 2 == 0 ? ProjectionKind::gate
                                           : ProjectionKind::up;
          const Part& from = part(expert, kind);
          const std::uint64_t own = down ? row : row / 2;
          codes.bytes += from.codes.substr(own * 16 * groups, 16 * groups);
          scales.bytes += from.scales.substr(own * groups, groups);
          bias.bytes += static_cast<char>(from.bias[own] & 0xFF);
          bias.bytes += static_cast<char>(from.bias[own] >> 8);
        }
      }
      return std::vector<TinyTensor>{std::move(codes), std::move(scales), std::move(bias)};
    };
    std::vector<TinyTensor> all = pair(original ? "mlp1" : "gate_up", false);
    for (TinyTensor& tensor : pair(original ? "mlp2" : "down", true))
      all.push_back(std::move(tensor));
    return all;
  }

 private:
  OssSizes sizes_;
  std::vector<Part> parts_;
};

// As the publisher writes it: the original files have neither a model_type nor a quantisation.
inline Json oss_config(const OssSizes& sizes, OssNaming naming) {
  Json config;
  const bool original = naming == OssNaming::original;
  config.set("hidden_size", sizes.hidden)
      .set("intermediate_size", sizes.inter)
      .set(original ? "num_experts" : "num_local_experts", sizes.experts)
      .set("experts_per_token", std::min<std::uint64_t>(2, sizes.experts))
      .set("num_hidden_layers", 1)
      .set("swiglu_limit", 7.0);
  if (original) return config;
  return config.set("model_type", "gpt_oss")
      .set("quantization_config", Json::object().set("quant_method", "mxfp4"));
}

// Writes the tensors, edited, and the config into a folder and opens it.
inline Checkpoint oss_checkpoint(const TempFolder& folder, const OssWeights& weights,
                                 OssNaming naming = OssNaming::published,
                                 const std::vector<TinyEdit>& edits = {},
                                 const std::vector<TinyTensor>& extra = {},
                                 const std::string& name = "model") {
  std::vector<TinyTensor> tensors = weights.tensors(naming);
  tensors.insert(tensors.end(), extra.begin(), extra.end());
  for (const TinyEdit& edit : edits)
    std::erase_if(tensors, [&](TinyTensor& tensor) { return !edit(tensor); });
  const auto path = folder.path() / name;
  std::filesystem::create_directories(path);
  std::ofstream(path / "config.json") << oss_config(weights.sizes(), naming).dump();
  write_tensors(path / "model.safetensors", tensors);
  return open_checkpoint(path);
}

}  // namespace moxie::test
