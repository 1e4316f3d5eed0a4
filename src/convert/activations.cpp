// SPDX-License-Identifier: Apache-2.0
// The largest magnitude of what enters a projection becomes 6 * 448 times its scale.
#include "convert/activations.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "formats/act_quant.hpp"
#include "formats/bf16.hpp"

namespace moxie::convert {

namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, std::string tensor, std::string message,
                         std::string expected = {}, std::string got = {}) {
  throw Error(ErrorCode::input, {.code = "MOXIE-Q009",
                                 .message = std::move(message),
                                 .where = {.file = path.string(), .tensor = std::move(tensor)},
                                 .expected = std::move(expected),
                                 .got = std::move(got)});
}

float scale_of(const Checkpoint& file, const std::filesystem::path& path, int layer,
               const std::string& name, std::uint64_t cols) {
  const std::string own = "layers." + std::to_string(layer) + "." + name;
  const TensorInfo* tensor = file.find(own);
  if (tensor == nullptr) tensor = file.find(name);
  if (tensor == nullptr) {
    refuse(path, own, "the file of activations lacks a tensor",
           own + " or " + name + ": [rows, " + std::to_string(cols) + "] BF16 or F32", "none");
  }
  const bool is_bf16 = tensor->dtype == DType::bf16;
  if ((!is_bf16 && tensor->dtype != DType::f32) || tensor->shape.size() != 2 ||
      tensor->shape[1] != cols) {
    refuse(path, tensor->name, "activations of another type or shape",
           "BF16 or F32 [rows, " + std::to_string(cols) + "]",
           std::string(name_of(tensor->dtype)) + " " + to_string(tensor->shape));
  }
  const auto bytes = file.bytes(*tensor);
  float amax = 0;
  const std::uint64_t count = bytes.size() / (is_bf16 ? 2 : 4);
  for (std::uint64_t i = 0; i < count; ++i) {
    float value = 0;
    if (is_bf16) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * sizeof bits, sizeof bits);
      value = decode_bf16(bits);
    } else {
      std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    }
    if (!std::isfinite(value)) {
      refuse(path, tensor->name, "activations that are not finite", "finite values",
             "row " + std::to_string(i / cols) + ", column " + std::to_string(i % cols));
    }
    amax = std::max(amax, std::abs(value));
  }
  const float scale = amax / kNvfp4Reach;
  if (!(scale >= kNvfp4LeastGlobal))
    refuse(path, tensor->name, "activations too small for a scale", "a value that is not 0");
  return scale;
}

}  // namespace

ActivationScales::ActivationScales(const std::filesystem::path& path, const Source& source) {
  const Checkpoint file = open_checkpoint(path);
  const ModelConfig& config = source.model->config;
  for (const SourceLayer& layer : source.layers) {
    layers_[layer.layer] = {
        .hidden_mul = scale_of(file, path, layer.layer, "hidden_states", config.hidden),
        .inter_mul = scale_of(file, path, layer.layer, "intermediate", config.inter)};
  }
}

}  // namespace moxie::convert
