// SPDX-License-Identifier: Apache-2.0
// Names and shapes around the routed experts, and the rotary table that goes with a layer.
#include "verify/v4_weights.hpp"

#include <cstring>
#include <utility>

#include "base/checked.hpp"
#include "kernels/ref/rotary.hpp"

namespace moxie {

namespace {

std::span<const std::uint8_t> as_codes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

template <class Value>
std::vector<Value> copied(std::span<const std::byte> bytes) {
  std::vector<Value> values(bytes.size() / sizeof(Value));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

double number_of(const Json* object, std::string_view key, double otherwise) {
  const Json* value = object != nullptr ? object->find(key) : nullptr;
  return value != nullptr && value->is_number() ? value->as_double() : otherwise;
}

}  // namespace

V4Weights::V4Weights(const Checkpoint& checkpoint, const V4Config& config, const V4Widths& widths,
                     std::uint64_t layer)
    : checkpoint_(checkpoint),
      config_(config),
      widths_(widths),
      prefix_(layer_prefix(config, layer)) {}

bool V4Weights::has(const std::string& name) const { return checkpoint_.find(name) != nullptr; }

const TensorInfo& V4Weights::require(const std::string& name, DType dtype,
                                     const Shape& shape) const {
  const TensorInfo* tensor = checkpoint_.find(name);
  if (tensor != nullptr && tensor->dtype == dtype && tensor->shape == shape) return *tensor;
  throw Error(ErrorCode::unsupported,
              {.code = "MOXIE-V011",
               .message = "the tensors around the routed experts can not be checked",
               .where = {.file = checkpoint_.path().string(), .tensor = name},
               .expected = std::string(name_of(dtype)) + " " + to_string(shape),
               .got = tensor == nullptr
                          ? "none"
                          : std::string(name_of(tensor->dtype)) + " " + to_string(tensor->shape),
               .hint = "pack a whole checkpoint, all of its ranks and the layer asked for"});
}

ref::Fp8Matrix V4Weights::fp8(const std::string& name, std::uint64_t rows,
                              std::uint64_t cols) const {
  const std::uint64_t tile = config_.tile;
  const TensorInfo& codes = require(prefix_ + name + ".weight", DType::f8_e4m3, {rows, cols});
  const TensorInfo& scales = require(prefix_ + name + ".scale", DType::f8_e8m0,
                                     {divide_up(rows, tile), divide_up(cols, tile)});
  return {.rows = rows,
          .cols = cols,
          .tile = tile,
          .codes = as_codes(checkpoint_.bytes(codes)),
          .scales = as_codes(checkpoint_.bytes(scales))};
}

ref::Fp8Matrix V4Weights::wq_b() const {
  return fp8("attn.wq_b", widths_.heads * config_.head_dim, config_.q_rank);
}

std::vector<float> V4Weights::sinks() const {
  return copied<float>(
      checkpoint_.bytes(require(prefix_ + "attn.attn_sink", DType::f32, {widths_.sinks})));
}

ref::OutputPath V4Weights::output_path(std::span<const double> frequencies) const {
  const std::uint64_t columns = widths_.output_groups * config_.o_rank;
  return {.groups = widths_.output_groups,
          .heads_per_group = config_.group_heads(),
          .head_dim = config_.head_dim,
          .group_rank = config_.o_rank,
          .frequencies = frequencies,
          .wo_a = fp8("attn.wo_a", columns, config_.group_heads() * config_.head_dim),
          .wo_b = fp8("attn.wo_b", config_.hidden, columns)};
}

ref::SharedExpert V4Weights::shared_expert(double limit) const {
  const std::uint64_t inter = widths_.shared_inter;
  return {.function = {.kind = Activation::clamped_swiglu, .limit = limit},
          .gate = fp8("ffn.shared_experts.w1", inter, config_.hidden),
          .up = fp8("ffn.shared_experts.w3", inter, config_.hidden),
          .down = fp8("ffn.shared_experts.w2", config_.hidden, inter)};
}

std::vector<std::uint16_t> V4Weights::bf16_rows(const std::string& name) const {
  return copied<std::uint16_t>(
      checkpoint_.bytes(require(name, DType::bf16, {widths_.vocab, config_.hidden})));
}

std::vector<double> rotary_of(const Json& config, const V4Config& v4, std::uint64_t layer) {
  const Json* text = config.find("text_config");
  if (text == nullptr) text = &config;
  ref::RotaryParameters parameters{
      .theta = number_of(text, "rope_theta", 10000), .dims = v4.rope_dim, .yarn = {}};
  if (layer < v4.layers && v4.compress_ratios[layer] != 0) {
    const Json* scaling = text->find("rope_scaling");
    parameters.theta = number_of(text, "compress_rope_theta", 160000);
    parameters.yarn = {
        .factor = number_of(scaling, "factor", 16),
        .beta_fast = number_of(scaling, "beta_fast", 32),
        .beta_slow = number_of(scaling, "beta_slow", 1),
        .original_max = number_of(scaling, "original_max_position_embeddings", 65536)};
  }
  return ref::rotary_frequencies(parameters);
}

}  // namespace moxie
