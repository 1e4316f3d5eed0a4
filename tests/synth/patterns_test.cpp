// SPDX-License-Identifier: Apache-2.0
// The bytes of each pattern.
#include "synth/patterns.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "formats/bf16.hpp"
#include "formats/block_format.hpp"
#include "pieces.hpp"
#include "small_checkpoint.hpp"

namespace moxie {
namespace {

using test::bytes_of;
using test::scalar_of;
using test::small_options;
using test::synthesised;
using test::TempFolder;

constexpr std::array kPatterns{Pattern::normal, Pattern::outliers, Pattern::monotonic,
                               Pattern::constant};

bool is_block_scale(const TensorInfo& tensor) {
  return tensor.name.ends_with(".scale") || tensor.name.ends_with(".weight_scale");
}

TEST(SynthPatterns, NoPatternHasAnIllegalScale) {
  const TempFolder folder;
  for (const auto format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    for (const Pattern pattern : kPatterns) {
      const std::string name = std::string(name_of(format)) + "-" + std::string(name_of(pattern));
      const auto checkpoint =
          synthesised(folder, small_options(format, DialectKind::deepseek, pattern), name);
      for (const TensorInfo& tensor : checkpoint.tensors()) {
        if (!is_block_scale(tensor)) continue;
        for (const std::uint8_t scale : bytes_of(checkpoint, tensor)) {
          ASSERT_TRUE(scale_is_valid(format, scale)) << tensor.name << " of " << name;
        }
      }
    }
  }
}

TEST(SynthPatterns, MonotonicEncodesPositionAndTensorNumber) {
  const TempFolder folder;
  for (const auto format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    const auto checkpoint = synthesised(
        folder, small_options(format, DialectKind::deepseek, Pattern::monotonic), name_of(format));
    std::uint64_t number = 0;
    for (const TensorInfo& tensor : checkpoint.tensors()) {
      const auto bytes = bytes_of(checkpoint, tensor);
      const bool is_codes =
          tensor.name.find("experts") != std::string::npos && tensor.name.ends_with(".weight");
      for (std::size_t position = 0; position < bytes.size(); ++position) {
        if (is_codes) {
          ASSERT_EQ(bytes[position], position % 256) << tensor.name;
        } else if (is_block_scale(tensor)) {
          ASSERT_EQ(bytes[position], (31 * position + number) % 113) << tensor.name;
        }
      }
      ++number;
    }
  }
}

TEST(SynthPatterns, ConstantIsOneEverywhere) {
  const TempFolder folder;
  for (const auto format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    const auto checkpoint = synthesised(
        folder, small_options(format, DialectKind::deepseek, Pattern::constant), name_of(format));
    const std::string prefix = "layers.1.ffn.experts.1.w2.";
    const bool is_mxfp4 = format == BlockFormat::mxfp4;
    for (const std::uint8_t pair : bytes_of(checkpoint, prefix + "weight")) {
      ASSERT_EQ(decode_e2m1(pair & 0xF), 1.0F);
      ASSERT_EQ(decode_e2m1(pair >> 4), 1.0F);
    }
    for (const std::uint8_t scale :
         bytes_of(checkpoint, prefix + (is_mxfp4 ? "scale" : "weight_scale"))) {
      ASSERT_EQ(decode_scale(format, scale), 1.0);
    }
    if (is_mxfp4) continue;
    EXPECT_EQ(scalar_of(checkpoint, prefix + "weight_scale_2"), 1.0F);
    EXPECT_EQ(scalar_of(checkpoint, prefix + "input_scale"), 1.0F);
  }
}

TEST(SynthPatterns, GateAndUpShareTheirGlobalScalesAndNothingElseDoes) {
  const TempFolder folder;
  auto options = small_options(BlockFormat::nvfp4);
  options.experts = 16;
  const auto checkpoint = synthesised(folder, options);
  for (const std::string leaf : {".weight_scale_2", ".input_scale"}) {
    std::set<float> values;
    for (int layer = 0; layer < 2; ++layer) {
      for (int expert = 0; expert < 16; ++expert) {
        const std::string prefix =
            "layers." + std::to_string(layer) + ".ffn.experts." + std::to_string(expert);
        const float gate = scalar_of(checkpoint, prefix + ".w1" + leaf);
        EXPECT_EQ(gate, scalar_of(checkpoint, prefix + ".w3" + leaf)) << prefix;
        values.insert(gate);
        values.insert(scalar_of(checkpoint, prefix + ".w2" + leaf));
      }
    }
    EXPECT_EQ(values.size(), 64U) << leaf;
    // Multipliers of weights near 2^-15, of activations near 2^-8.
    const float least = leaf == ".input_scale" ? 0x1p-8F : 0x1p-15F;
    EXPECT_GE(*values.begin(), least);
    EXPECT_LT(*values.rbegin(), 2 * least);
  }
}

// what is stored and what multiplies give each other back, so converting either way and back
// changes no bit.
TEST(SynthPatterns, R09_ReciprocalGlobalsRoundTripAndAreDistinct) {
  const TempFolder folder;
  for (const auto pattern : {Pattern::normal, Pattern::outliers, Pattern::constant}) {
    auto options = small_options(BlockFormat::nvfp4, DialectKind::compressed_tensors, pattern);
    options.experts = 64;
    options.num_layers = 3;
    const auto checkpoint = synthesised(folder, options, name_of(pattern));
    for (const std::string leaf : {".weight_global_scale", ".input_global_scale"}) {
      std::set<float> values;
      for (const TensorInfo& tensor : checkpoint.tensors()) {
        if (!tensor.name.ends_with(leaf)) continue;
        const float stored = scalar_of(checkpoint, tensor.name);
        const float multiplier = 1.0F / stored;
        EXPECT_EQ(1.0F / multiplier, stored) << tensor.name;
        EXPECT_EQ(1.0F / (1.0F / multiplier), multiplier) << tensor.name;
        values.insert(multiplier);
      }
      EXPECT_EQ(values.size(), pattern == Pattern::constant ? 1U : 3U * 64 * 2) << leaf;
      const float least = pattern == Pattern::constant ? 1.0F
                          : leaf.starts_with(".input") ? 0x1p-8F
                          : pattern == Pattern::normal ? 0x1p-15F
                                                       : 0x1p-9F;
      EXPECT_GE(*values.begin(), least);
      EXPECT_LT(*values.rbegin(), 1.25F * least);
    }
  }
}

// Codes and scales of the normal pattern, dequantised.
struct Moments {
  double mean = 0;
  double deviation = 0;
  std::set<std::uint8_t> scales;
};

Moments moments_of(BlockFormat format) {
  const TempFolder folder;
  auto options = small_options(format);
  options.hidden = 512;
  options.inter = 512;
  options.num_layers = 1;
  const auto checkpoint = synthesised(folder, options);
  const std::string prefix = "layers.0.ffn.experts.0.w1.";
  const bool is_mxfp4 = format == BlockFormat::mxfp4;
  const double mul = is_mxfp4 ? 1.0 : double{scalar_of(checkpoint, prefix + "weight_scale_2")};
  const auto codes = bytes_of(checkpoint, prefix + "weight");
  const auto scales = bytes_of(checkpoint, prefix + (is_mxfp4 ? "scale" : "weight_scale"));
  double sum = 0;
  double squares = 0;
  for (std::uint64_t k = 0; k < std::uint64_t{512} * 512; ++k) {
    const double value = dequantise_element(codes.data(), scales.data(), k, format, mul);
    sum += value;
    squares += value * value;
  }
  const double count = 512.0 * 512.0;
  return {sum / count, std::sqrt(squares / count), {scales.begin(), scales.end()}};
}

TEST(SynthPatterns, NormalWeightsLookLikeThoseOfATrainedLayer) {
  for (const auto format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    const Moments moments = moments_of(format);
    EXPECT_GT(moments.deviation, 0.01) << name_of(format);
    EXPECT_LT(moments.deviation, 0.04) << name_of(format);
    // 512 * 512 independent values: the mean is within six of its own deviations of zero.
    EXPECT_LT(std::abs(moments.mean), 6 * moments.deviation / 512) << name_of(format);
    EXPECT_GE(moments.scales.size(), format == BlockFormat::mxfp4 ? 6U : 25U) << name_of(format);
  }
}

TEST(SynthPatterns, OutliersAreFewGroupsFarAboveTheOthers) {
  const TempFolder folder;
  for (const auto format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    auto options = small_options(format, DialectKind::deepseek, Pattern::outliers);
    options.hidden = 1024;
    options.inter = 1024;
    options.num_layers = 1;
    const auto checkpoint = synthesised(folder, options, name_of(format));
    const bool is_mxfp4 = format == BlockFormat::mxfp4;
    const auto scales = bytes_of(checkpoint, std::string("layers.0.ffn.experts.0.w1.") +
                                                 (is_mxfp4 ? "scale" : "weight_scale"));
    std::vector<double> values;
    for (const std::uint8_t scale : scales) values.push_back(decode_scale(format, scale));
    std::ranges::sort(values);
    const double median = values[values.size() / 2];
    const auto large = std::ranges::count_if(values, [&](double v) { return v > 32 * median; });
    EXPECT_GT(large, 0) << name_of(format);
    EXPECT_LT(large, std::ssize(values) / 500) << name_of(format);
  }
}

TEST(SynthPatterns, TokenTablesNameDistinctExpertsInRange) {
  const TempFolder folder;
  for (const std::uint64_t experts : {1U, 2U, 3U, 16U, 40U}) {
    auto options = small_options(BlockFormat::mxfp4);
    options.config.set("num_experts_per_tok", 6);
    options.experts = experts;
    options.num_layers = 1;
    const auto checkpoint = synthesised(folder, options, std::to_string(experts));
    const auto bytes = bytes_of(checkpoint, "layers.0.ffn.gate.tid2eid");
    const std::size_t top_k = std::min<std::size_t>(6, experts);
    ASSERT_EQ(bytes.size(), 320 * top_k * 8);
    std::vector<std::uint64_t> ids(bytes.size() / 8);
    std::memcpy(ids.data(), bytes.data(), bytes.size());
    for (std::size_t token = 0; token < 320; ++token) {
      const std::set<std::uint64_t> row(
          ids.begin() + static_cast<std::ptrdiff_t>(token * top_k),
          ids.begin() + static_cast<std::ptrdiff_t>((token + 1) * top_k));
      EXPECT_EQ(row.size(), top_k) << experts << " experts, token " << token;
      EXPECT_LT(*row.rbegin(), experts);
    }
    const std::set<std::uint64_t> used(ids.begin(), ids.end());
    EXPECT_EQ(used.size(), experts);
  }
}

TEST(SynthPatterns, RouterWeightsAreSmallAndFinite) {
  const TempFolder folder;
  const auto checkpoint = synthesised(folder, small_options(BlockFormat::mxfp4));
  const auto bytes = bytes_of(checkpoint, "layers.1.ffn.gate.weight");
  std::set<float> values;
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    const float value = decode_bf16(static_cast<std::uint16_t>(bytes[i] | bytes[i + 1] << 8));
    EXPECT_LE(std::abs(value), 0.07F);
    values.insert(value);
  }
  EXPECT_GT(values.size(), 50U);
}

TEST(SynthPatterns, AnyCutOfATensorGivesTheSameBytes) {
  for (const auto format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    for (const Pattern pattern : kPatterns) {
      const auto recipe = synth::make_recipe(small_options(format, DialectKind::deepseek, pattern));
      for (const synth::Tensor& tensor : synth::tensors_of_layer(recipe, 0, 5)) {
        ASSERT_NO_FATAL_FAILURE(test::expect_same_in_pieces(recipe, tensor));
      }
    }
  }
}

}  // namespace
}  // namespace moxie
