// SPDX-License-Identifier: Apache-2.0
// Layers small enough to write down, or made from a seed, as the judge's problem.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <vector>

#include "formats/act_quant.hpp"
#include "formats/block_format.hpp"
#include "kernels/ref/reference.hpp"

namespace moxie::test {

// E2M1 code of a value on its grid.
inline std::uint8_t code_of(float value) {
  const std::uint8_t code = encode_e2m1(value);
  if (decode_e2m1(code) != value) throw std::invalid_argument("no E2M1 value");
  return code;
}

// A matrix with its memory. Rows have bytes between them that belong to nobody.
class SmallMatrix {
 public:
  SmallMatrix(BlockFormat format, std::uint64_t rows, std::uint64_t cols)
      : format_(format),
        cols_(cols),
        codes_stride_(cols / 2 + 3),
        scales_stride_(cols / scale_group(format) + 1),
        codes_(rows * codes_stride_, 0xFF),
        scales_(rows * scales_stride_, 0xFF) {
    for (std::uint64_t row = 0; row < rows; ++row) {
      for (std::uint64_t col = 0; col < cols; ++col) {
        set(row, col, 0);
        set_scale(row, col, one());
      }
    }
  }

  void set(std::uint64_t row, std::uint64_t col, float value) {
    set_code(row, col, code_of(value));
  }
  void set_code(std::uint64_t row, std::uint64_t col, std::uint8_t code) {
    write_nibble(codes_.data() + row * codes_stride_, col, NibbleOrder::even_low,
                 scale_group(format_), code);
  }
  void set_scale(std::uint64_t row, std::uint64_t col, std::uint8_t byte) {
    scales_[row * scales_stride_ + col / scale_group(format_)] = byte;
  }
  [[nodiscard]] std::uint8_t one() const {
    return format_ == BlockFormat::mxfp4 ? kE8m0One : std::uint8_t{0x38};
  }

  [[nodiscard]] double at(std::uint64_t row, std::uint64_t col) const {
    return dequantise_element(codes_.data() + row * codes_stride_,
                              scales_.data() + row * scales_stride_, col, format_, mul);
  }
  [[nodiscard]] ref::Matrix view() const {
    return {.codes = codes_.data(),
            .codes_stride = codes_stride_,
            .scales = scales_.data(),
            .scales_stride = scales_stride_,
            .dequant_mul = mul};
  }

  double mul = 1;

 private:
  BlockFormat format_;
  std::uint64_t cols_;
  std::uint64_t codes_stride_;
  std::uint64_t scales_stride_;
  std::vector<std::uint8_t> codes_;
  std::vector<std::uint8_t> scales_;
};

struct SmallExpert {
  SmallMatrix gate;
  SmallMatrix up;
  SmallMatrix down;
};

// Experts, tokens and slots; zero weights and x of zeros until something is set.
struct SmallLayer {
  struct Shape {
    BlockFormat format = BlockFormat::mxfp4;
    std::uint64_t hidden = 32;
    std::uint64_t inter = 32;
    std::uint64_t experts = 1;
    std::uint64_t tokens = 1;
    std::uint64_t top_k = 1;
  };

  explicit SmallLayer(const Shape& shape_of_layer)
      : shape(shape_of_layer),
        x(shape.tokens * shape.hidden),
        ids(shape.tokens * shape.top_k, 0),
        weights(shape.tokens * shape.top_k, 1.0F) {
    for (std::uint64_t i = 0; i < shape.experts; ++i) {
      experts.push_back({.gate = SmallMatrix(shape.format, shape.inter, shape.hidden),
                         .up = SmallMatrix(shape.format, shape.inter, shape.hidden),
                         .down = SmallMatrix(shape.format, shape.hidden, shape.inter)});
    }
  }

  [[nodiscard]] ref::Problem problem() const {
    return {.format = shape.format,
            .act_format = act_format,
            .activation = activation,
            .activation_limit = limit,
            .hidden = shape.hidden,
            .inter = shape.inter,
            .experts = shape.experts,
            .tokens = shape.tokens,
            .top_k = shape.top_k,
            .part_starts = part_starts,
            .x = x.data(),
            .topk_ids = ids.data(),
            .topk_weights = weights.data(),
            .expert = [this](std::uint64_t expert) {
              const SmallExpert& own = experts.at(expert);
              return ref::Expert{own.gate.view(), own.up.view(), own.down.view()};
            }};
  }
  [[nodiscard]] ref::Result run() const { return ref::run(problem()); }

  // One intermediate column `row` of an expert sees x[row] times these.
  void set_gate_up(std::uint64_t expert, std::uint64_t row, float gate, float up) {
    experts.at(expert).gate.set(row, row, gate);
    experts.at(expert).up.set(row, row, up);
  }
  void set_down(std::uint64_t expert, std::uint64_t row, std::uint64_t col, float value) {
    experts.at(expert).down.set(row, col, value);
  }

  Shape shape;
  ActFormat act_format = ActFormat::bf16;
  Activation activation = Activation::silu;
  double limit = 0;
  std::vector<std::uint64_t> part_starts = {0};
  std::vector<SmallExpert> experts;
  std::vector<float> x;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

// Rows of gaussian x with columns of different sizes, random codes, scales a factor 16 apart,
// globals that differ, and ids of which some are masked or outside the model.
inline SmallLayer random_layer(const SmallLayer::Shape& shape, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  SmallLayer layer(shape);
  const auto fill = [&](SmallMatrix& matrix, std::uint64_t rows, std::uint64_t cols) {
    for (std::uint64_t row = 0; row < rows; ++row) {
      for (std::uint64_t col = 0; col < cols; ++col) {
        matrix.set_code(row, col, static_cast<std::uint8_t>(random() % 16));
        if (col % scale_group(shape.format) != 0) continue;
        const bool mxfp4 = shape.format == BlockFormat::mxfp4;
        const auto scale = mxfp4 ? 122 + random() % 5 : 0x20 + random() % 0x20;
        matrix.set_scale(row, col, static_cast<std::uint8_t>(scale));
      }
    }
    if (shape.format == BlockFormat::nvfp4)
      matrix.mul = static_cast<float>(0.2 + static_cast<double>(random() % 1000) / 4096);
  };
  for (SmallExpert& expert : layer.experts) {
    fill(expert.gate, shape.inter, shape.hidden);
    fill(expert.up, shape.inter, shape.hidden);
    fill(expert.down, shape.hidden, shape.inter);
  }
  for (float& value : layer.x)
    value = normal(random) * std::exp2(-static_cast<float>(random() % 3));
  for (auto& id : layer.ids) id = static_cast<std::int32_t>(random() % (shape.experts + 2)) - 1;
  for (auto& weight : layer.weights) weight = static_cast<float>(random() % 1024) / 512 - 1;
  return layer;
}

}  // namespace moxie::test
