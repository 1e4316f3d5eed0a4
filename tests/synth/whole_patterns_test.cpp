// SPDX-License-Identifier: Apache-2.0
// The bytes of a whole checkpoint: legal, plausible, and the same for a seed everywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "formats/bf16.hpp"
#include "formats/e4m3.hpp"
#include "formats/ue8m0.hpp"
#include "pieces.hpp"
#include "support/threads.hpp"
#include "synth/patterns.hpp"
#include "synth/whole_tensors.hpp"
#include "whole_model.hpp"

namespace moxie {
namespace {

using test::bytes_of;
using test::data_of;
using test::narrow_v4;
using test::small_v4_1;
using test::synthesised;
using test::TempFolder;
using test::whole_options;

constexpr std::array kPatterns{Pattern::normal, Pattern::outliers, Pattern::monotonic,
                               Pattern::constant};

SynthOptions with_pattern(Json config, Pattern pattern, BlockFormat format = BlockFormat::mxfp4) {
  SynthOptions options = whole_options(std::move(config), format);
  options.pattern = pattern;
  return options;
}

// The elements of a tensor of numbers; scales and FP8 as they are without each other.
std::vector<float> values_of(const Checkpoint& checkpoint, std::string_view name) {
  const TensorInfo* tensor = checkpoint.find(name);
  if (tensor == nullptr) throw std::runtime_error("no tensor " + std::string(name));
  const auto bytes = bytes_of(checkpoint, *tensor);
  const std::size_t width = bits_of(tensor->dtype) / 8;
  std::vector<float> values(bytes.size() / width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (tensor->dtype == DType::f32) std::memcpy(&values[i], &bytes[4 * i], 4);
    if (tensor->dtype == DType::bf16)
      values[i] = decode_bf16(static_cast<std::uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8));
    if (tensor->dtype == DType::f8_e4m3) values[i] = decode_e4m3(bytes[i]);
    if (tensor->dtype == DType::f8_e8m0) values[i] = decode_e8m0(bytes[i]);
  }
  return values;
}

TEST(SynthWholePatterns, HaveNoIllegalCodeScaleOrNumber) {
  for (const Pattern pattern : kPatterns) {
    for (const Json& config : {narrow_v4("deepseek-v4-flash"), small_v4_1()}) {
      const TempFolder folder;
      const auto checkpoint =
          synthesised(folder, with_pattern(config, pattern, BlockFormat::nvfp4));
      for (const TensorInfo& tensor : checkpoint.tensors()) {
        if (tensor.dtype == DType::i8 || tensor.dtype == DType::u8 || tensor.dtype == DType::i64)
          continue;
        for (const float value : values_of(checkpoint, tensor.name))
          ASSERT_TRUE(std::isfinite(value)) << tensor.name << " of " << name_of(pattern);
      }
    }
  }
}

TEST(SynthWholePatterns, MonotonicEncodesPositionAndTensorNumber) {
  const TempFolder folder;
  const auto checkpoint = synthesised(folder, with_pattern(small_v4_1(), Pattern::monotonic));
  std::uint64_t number = 0;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const auto bytes = bytes_of(checkpoint, tensor);
    const auto place = [&](std::size_t at) { return (31 * (at % 113) + number) % 113; };
    const bool is_codes = tensor.dtype == DType::i8;
    const bool is_fp8 = tensor.dtype == DType::f8_e4m3 || tensor.dtype == DType::f8_e8m0;
    const bool is_router = tensor.name.find("ffn.gate.") != std::string::npos;
    if (is_codes || is_fp8) {
      for (std::size_t i = 0; i < bytes.size(); ++i)
        ASSERT_EQ(bytes[i], is_codes ? i % 256 : place(i)) << tensor.name;
    } else if (!is_router) {
      const std::vector<float> values = values_of(checkpoint, tensor.name);
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(values[i], static_cast<float>(place(i)) - 56.0F) << tensor.name;
    }
    ++number;
  }
}

TEST(SynthWholePatterns, ConstantIsOneEverywhere) {
  const TempFolder folder;
  const auto checkpoint = synthesised(folder, with_pattern(small_v4_1(), Pattern::constant));
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.dtype == DType::i8 || tensor.name.find("ffn.gate.") != std::string::npos) continue;
    for (const float value : values_of(checkpoint, tensor.name))
      ASSERT_EQ(value, 1.0F) << tensor.name;
  }
}

struct Moments {
  double mean = 0;
  double deviation = 0;
};
Moments moments_of(const std::vector<float>& values) {
  Moments moments;
  for (const float value : values) moments.mean += value;
  moments.mean /= static_cast<double>(values.size());
  for (const float value : values)
    moments.deviation += (value - moments.mean) * (value - moments.mean);
  moments.deviation = std::sqrt(moments.deviation / static_cast<double>(values.size()));
  return moments;
}

TEST(SynthWholePatterns, NormalIsModerate) {
  const TempFolder folder;
  SynthOptions options = whole_options(synth_config("tiny"));
  options.hidden = 1024;
  const auto checkpoint = synthesised(folder, options);
  const auto expect = [&](std::string_view name, double mean, double deviation) {
    const std::vector<float> values = values_of(checkpoint, name);
    const Moments moments = moments_of(values);
    // Six deviations of a mean; deviations within a tenth, of few values within a half.
    const auto count = static_cast<double>(values.size());
    EXPECT_NEAR(moments.mean, mean, 6 * deviation / std::sqrt(count)) << name;
    EXPECT_NEAR(moments.deviation, deviation, deviation * (count > 500 ? 0.1 : 0.5)) << name;
  };
  expect("embed.weight", 0, 0.018);
  expect("norm.weight", 1, 0.072);
  expect("layers.1.attn.compressor.ape", 0, 0.29);
  expect("layers.1.attn.attn_sink", 0, 0.58);
  expect("layers.1.hc_attn_fn", 0, 0.0045);
  const auto base = values_of(checkpoint, "layers.1.hc_ffn_base");
  ASSERT_EQ(base.size(), 24U);
  // -ln 3 gives four copies a quarter each; zeros leave the expansion even.
  for (std::size_t i = 0; i < base.size(); ++i)
    EXPECT_NEAR(base[i], i < 4 ? -std::log(3.0) : 0.0, 0.2) << i;
  for (const float scale : values_of(checkpoint, "mtp.0.hc_attn_scale")) {
    EXPECT_GE(scale, 0.25F);
    EXPECT_LT(scale, 0.5F);
  }
}

TEST(SynthWholePatterns, Fp8WeightsDeviateByTwoHundredths) {
  for (const Pattern pattern : {Pattern::normal, Pattern::outliers}) {
    const TempFolder folder;
    SynthOptions options = with_pattern(synth_config("tiny"), pattern);
    options.hidden = 2048;
    options.num_layers = 1;
    const auto checkpoint = synthesised(folder, options);
    const auto codes = values_of(checkpoint, "mtp.0.e_proj.weight");
    const auto scales = values_of(checkpoint, "mtp.0.e_proj.scale");
    std::vector<float> weights(codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i)
      weights[i] = codes[i] * scales[i / 2048 / 128 * 16 + i % 2048 / 128];
    std::map<float, int> seen;
    for (const float scale : scales) ++seen[scale];
    const double deviation = moments_of(weights).deviation;
    if (pattern == Pattern::normal) {
      EXPECT_NEAR(deviation, 0.023, 0.004);
      EXPECT_GE(seen.size(), 4U);
    } else {
      // One tile in eight is 64 times as large.
      EXPECT_NEAR(deviation, 0.023 * 64 / std::sqrt(8.0), 0.2);
    }
  }
}

TEST(SynthWholePatterns, LeaveExpertsAndRoutersAsTheyAreWithoutTheRest) {
  for (const BlockFormat format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    const TempFolder folder;
    SynthOptions options = whole_options(narrow_v4("deepseek-v4-flash"), format);
    const auto whole = synthesised(folder, options, "whole");
    options.whole = false;
    const auto experts = synthesised(folder, options, "experts");
    for (const TensorInfo& tensor : experts.tensors()) {
      EXPECT_TRUE(std::ranges::equal(bytes_of(whole, tensor.name), bytes_of(experts, tensor.name)))
          << tensor.name;
    }
  }
}

TEST(SynthWholePatterns, OfNoTwoTensorsAreTheSame) {
  const TempFolder folder;
  const auto checkpoint = synthesised(folder, whole_options(small_v4_1()));
  std::map<std::string, std::string> seen;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const auto bytes = bytes_of(checkpoint, tensor);
    if (bytes.size() < 64) continue;  // tiles of narrow models are few
    const std::string begin(reinterpret_cast<const char*>(bytes.data()), 64);
    const auto [at, is_new] = seen.emplace(begin, tensor.name);
    EXPECT_TRUE(is_new) << tensor.name << " begins as " << at->second;
  }
}

// A block's bytes do not depend on what else is written.
TEST(SynthWholePatterns, OfABlockAreTheSameHoweverManyAreBesideIt) {
  const TempFolder folder;
  SynthOptions options = whole_options(narrow_v4("deepseek-v4-pro"));
  const auto many = synthesised(folder, options, "many");
  options.num_layers = 2;
  const auto few = synthesised(folder, options, "few");
  for (const TensorInfo& tensor : few.tensors()) {
    EXPECT_TRUE(std::ranges::equal(bytes_of(many, tensor.name), bytes_of(few, tensor.name)))
        << tensor.name;
  }
}

TEST(SynthWholePatterns, AnyCutOfATensorGivesTheSameBytes) {
  for (const Pattern pattern : kPatterns) {
    const auto recipe = synth::make_recipe(with_pattern(small_v4_1(), pattern));
    for (const std::uint64_t shard : {2U, 6U, 7U}) {
      for (const synth::Tensor& tensor : synth::tensors_of_shard(recipe, shard, 5)) {
        ASSERT_NO_FATAL_FAILURE(test::expect_same_in_pieces(recipe, tensor));
      }
    }
  }
}

TEST(SynthWholePatterns, AreTheSameForAnyNumberOfThreads) {
  const TempFolder folder;
  const SynthOptions options = whole_options(synth_config("tiny"));
  std::string first;
  for (const unsigned threads : {1U, 2U, 7U}) {
    const test::Threads scope(threads);
    const std::string data = data_of(synthesised(folder, options, std::to_string(threads)));
    if (first.empty()) first = data;
    EXPECT_TRUE(data == first) << threads << " threads";
  }
}

struct Golden {
  std::string_view model;
  Pattern pattern;
  std::string_view checksum;  // xxh3_128 of all tensor data
};

// A change here changes every checkpoint that was made from a seed.
constexpr std::array kGolden{
    Golden{"flash", Pattern::normal, "11a8330300cadf141f0b6ec6b74be69b"},
    Golden{"flash", Pattern::outliers, "d41ee637a707c6380901a011625832f6"},
    Golden{"flash", Pattern::monotonic, "42cf9546a32c146bbddb9bc1acb6a3fe"},
    Golden{"flash", Pattern::constant, "e979e0f1a3688cce392ff38987bfd479"},
    Golden{"flash-0731", Pattern::normal, "665a1a736e795371cdb5bac8ddfcd611"},
    Golden{"v4.1-small", Pattern::normal, "6a412173715ee1dd25aa203497cb4f7c"},
    Golden{"v4.1-small", Pattern::outliers, "8b120a93cb460cd7142ad1440e682d22"},
};

TEST(SynthWholePatterns, AreThoseOfEveryOtherMachine) {
  for (const Golden& golden : kGolden) {
    for (const test::NamedConfig& model : test::whole_models()) {
      if (model.name != golden.model) continue;
      const TempFolder folder;
      const auto checkpoint = synthesised(
          folder, with_pattern(model.config, golden.pattern, BlockFormat::nvfp4), "model");
      EXPECT_EQ(hash_hex(data_of(checkpoint)), golden.checksum)
          << model.name << " " << name_of(golden.pattern);
    }
  }
}

}  // namespace
}  // namespace moxie
