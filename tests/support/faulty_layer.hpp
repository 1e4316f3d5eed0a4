// SPDX-License-Identifier: Apache-2.0
// A slow engine in double that can make one mistake on purpose; without one it is right.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "formats/act_quant.hpp"
#include "formats/block_format.hpp"
#include "moxie/layer.hpp"
#include "moxie/model.hpp"
#include "moxie/probe.hpp"

namespace moxie::test {

enum class Fault : std::uint8_t {
  none,
  activation_after_sum,  // experts' gate and up are summed over the slots, then activated once
  gate_clamped_below,    // the gate is clamped on both sides
  up_not_clamped_below,  // up is clamped from above only
  clamp_after_sigmoid,   // min(silu(gate), limit)
  weight_before_act,     // the router weight multiplies gate and up
  scale_group_doubled    // one scale per 32 where the format has one per 16
};

class FaultyLayer {
 public:
  FaultyLayer(const MoeModel& model, const LayerSpec& spec, Fault fault)
      : model_(model), spec_(spec), fault_(fault) {}

  std::vector<float> run(const Probe& probe) const {
    std::vector<float> y(probe.tokens * probe.hidden, 0.0F);
    for (std::uint64_t token = 0; token < probe.tokens; ++token) {
      const std::vector<double> row = run_token(probe, token);
      std::transform(row.begin(), row.end(),
                     y.begin() + static_cast<std::ptrdiff_t>(token * probe.hidden),
                     [](double value) { return static_cast<float>(value); });
    }
    return y;
  }

 private:
  using Row = std::vector<double>;

  std::vector<double> run_token(const Probe& probe, std::uint64_t token) const {
    const auto* bits =
        reinterpret_cast<const std::uint16_t*>(probe.x.data()) + token * probe.hidden;
    Row x(probe.hidden);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = decode_bf16(bits[i]);
    Row y(probe.hidden, 0.0);
    Row gate_sum(model_.config.inter, 0.0);
    Row up_sum(model_.config.inter, 0.0);
    std::uint64_t last = 0;
    for (std::uint64_t choice = 0; choice < probe.top_k; ++choice) {
      const std::uint64_t slot = token * probe.top_k + choice;
      const auto expert = static_cast<std::uint64_t>(probe.topk_ids[slot]);
      double weight = probe.topk_weights[slot];
      const ExpertTensors& tensors = model_.require_layer(0).experts[expert];
      Row gate = product(tensors.gate, x);
      Row up = product(tensors.up, x);
      if (fault_ == Fault::weight_before_act) {
        for (double& value : gate) value *= weight;
        for (double& value : up) value *= weight;
        weight = 1;
      }
      if (fault_ == Fault::activation_after_sum) {
        for (std::size_t i = 0; i < gate.size(); ++i) gate_sum[i] += weight * gate[i];
        for (std::size_t i = 0; i < up.size(); ++i) up_sum[i] += weight * up[i];
        last = expert;
        continue;
      }
      const Row output = product(tensors.down, activated(gate, up));
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += weight * output[i];
    }
    if (fault_ == Fault::activation_after_sum)
      return product(model_.require_layer(0).experts[last].down, activated(gate_sum, up_sum));
    return y;
  }

  Row product(const Projection& projection, const Row& x) const {
    const auto codes = bytes(projection.codes);
    const auto scales = bytes(projection.block_scales);
    const BlockFormat format = model_.require_layer(0).format;
    const double global = projection.dequant_mul.present()
                              ? read_scalar(model_.checkpoint, projection.dequant_mul)
                              : 1.0;
    Row result(projection.codes.rows, 0.0);
    std::vector<std::uint8_t> row_scales(projection.block_scales.row_bytes);
    for (std::size_t row = 0; row < result.size(); ++row) {
      const std::uint8_t* stored = scales + row * row_scales.size();
      for (std::size_t g = 0; g < row_scales.size(); ++g)
        row_scales[g] = stored[fault_ == Fault::scale_group_doubled ? g / 2 : g];
      for (std::size_t k = 0; k < x.size(); ++k)
        result[row] += x[k] * dequantise_element(codes + row * projection.codes.row_bytes,
                                                 row_scales.data(), k, format, global);
    }
    return result;
  }

  const std::uint8_t* bytes(const RowsView& view) const {
    return reinterpret_cast<const std::uint8_t*>(model_.checkpoint.bytes(*view.tensor).data()) +
           view.offset;
  }

  Row activated(const Row& gate, const Row& up) const {
    const bool clamped = spec_.activation == Activation::clamped_swiglu;
    const double limit = clamped ? *spec_.activation_limit : INFINITY;
    Row act(gate.size());
    for (std::size_t i = 0; i < act.size(); ++i) {
      double g = fault_ == Fault::clamp_after_sigmoid ? gate[i] : std::min(gate[i], limit);
      if (fault_ == Fault::gate_clamped_below) g = std::max(g, -limit);
      double u = std::min(up[i], limit);
      if (fault_ != Fault::up_not_clamped_below) u = std::max(u, -limit);
      const double silu = g / (1 + std::exp(-g));
      act[i] = (fault_ == Fault::clamp_after_sigmoid ? std::min(silu, limit) : silu) * u;
      act[i] = bf16_value(static_cast<float>(act[i]));
    }
    return act;
  }

  const MoeModel& model_;
  const LayerSpec& spec_;
  Fault fault_;
};

}  // namespace moxie::test
