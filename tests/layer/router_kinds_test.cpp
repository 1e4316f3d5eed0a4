// SPDX-License-Identifier: Apache-2.0
// Routers beside `gate`: gpt-oss, whose bias is part of the logits; Gemma-4, which normalises its
// input and scales channels and experts; and models whose experts see a narrower row.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formats/bf16.hpp"
#include "moxie/layer.hpp"
#include "support/refusal.hpp"
#include "support/stacked_checkpoint.hpp"

namespace moxie {
namespace {

using test::code_of;
using test::refusal_of;
using test::TempFolder;
using test::TinyDialect;
using test::TinyOptions;
using test::TinyTensor;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Ids = std::vector<std::int32_t>;

TinyTensor numbers(std::string name, DType dtype, Shape shape, const std::vector<float>& values) {
  TinyTensor tensor{std::move(name), dtype, std::move(shape), {}};
  for (const float value : values) {
    const std::uint16_t narrow = encode_bf16(value);
    const bool f32 = dtype == DType::f32;
    tensor.bytes.append(
        f32 ? reinterpret_cast<const char*>(&value) : reinterpret_cast<const char*>(&narrow),
        f32 ? 4 : 2);
  }
  return tensor;
}

// Hands column e of x to expert e.
std::vector<float> identity(std::uint64_t experts, std::uint64_t hidden) {
  std::vector<float> weight(experts * hidden, 0.0F);
  for (std::uint64_t expert = 0; expert < experts; ++expert) weight[expert * hidden + expert] = 1;
  return weight;
}

struct Answer {
  Ids ids;
  std::vector<float> weights;
  std::uint32_t flags = 0;
};

Answer route(const Router& router, std::uint64_t hidden, const std::vector<std::vector<float>>& x,
             std::uint64_t top_k) {
  std::vector<float> rows(x.size() * hidden, 0.0F);
  for (std::size_t row = 0; row < x.size(); ++row)
    std::ranges::copy(x[row], rows.begin() + static_cast<long>(row * hidden));
  std::vector<std::byte> workspace(router.workspace_size(x.size()), std::byte{0xFF});
  Answer answer{.ids = Ids(x.size() * top_k, -9),
                .weights = std::vector<float>(x.size() * top_k, kNan)};
  EXPECT_EQ(router.route({.x = {.data = rows.data(),
                                .dtype = DType::f32,
                                .rows = x.size(),
                                .cols = hidden,
                                .row_stride = hidden},
                          .topk_ids = answer.ids.data(),
                          .topk_weights = answer.weights.data(),
                          .flags = &answer.flags},
                         workspace),
            CallStatus::ok);
  return answer;
}

void expect_weights(const std::vector<float>& got, const std::vector<double>& expected,
                    double bound = 1e-6) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(std::fabs(got[i] - expected[i]) <= bound) << got[i] << " for " << expected[i];
}

// A gpt-oss layer of four experts whose router hands on the first columns of x.
MoeModel gpt_oss(const TempFolder& folder, DType bias_type, const std::vector<float>& bias,
                 test::OssNaming naming = test::OssNaming::published) {
  const std::string router =
      naming == test::OssNaming::original ? "block.0.mlp.gate." : "model.layers.0.mlp.router.";
  return read_model(test::oss_checkpoint(
      folder, test::OssWeights({.hidden = 32, .inter = 32, .experts = 4}), naming, {},
      {numbers(router + "weight", DType::bf16, {4, 32}, identity(4, 32)),
       numbers(router + "bias", bias_type, {bias.size()}, bias)}));
}

// Logits 0, 0.5, 3.5, 2 come from 1, 2, 3, 0 and the bias; without it experts 2 and 1 would have
// the very same weights.
TEST(RouterKinds, Pit44SoftmaxOverTheChosenLogitsIncludesTheBias) {
  for (const auto naming : {test::OssNaming::published, test::OssNaming::original}) {
    for (const DType type : {DType::bf16, DType::f32}) {
      const TempFolder folder;
      const MoeModel model = gpt_oss(folder, type, {-1.0F, -1.5F, 0.5F, 2.5F}, naming);
      const Answer answer = route(Router(model, 0, 2), 32, {{1, 2, 3, 0}}, 2);
      EXPECT_EQ(answer.ids, (Ids{2, 3}));
      expect_weights(answer.weights, {0.731058579, 0.268941421});
      EXPECT_EQ(answer.flags, 0U);
    }
  }
}

TEST(RouterKinds, OssTiesGoToTheLowerId) {  // S-06
  const TempFolder folder;
  const MoeModel model = gpt_oss(folder, DType::bf16, {0, 0, 0, 0});
  EXPECT_EQ(route(Router(model, 0, 2), 32, {{1, 1, 1, 1}, {0, 2, 2, 2}}, 2).ids, (Ids{0, 1, 1, 2}));
}

TEST(RouterKinds, OssLogitsThatAreNoNumberAreNotChosen) {  // S-02
  const TempFolder folder;
  const MoeModel model = gpt_oss(folder, DType::f32, {0, 0, 0, 0});
  const float big = 3.0e38F;
  const Router router(model, 0, 2);
  const Answer answer = route(router, 32, {{kNan, 1, 0, 2}, {0, 1, 3, 2}}, 2);
  EXPECT_EQ(answer.ids, (Ids{-1, -1, 2, 3})) << "a NaN in x is in every logit of the row";
  expect_weights(answer.weights, {0, 0, 0.731058579, 0.268941421});
  EXPECT_EQ(answer.flags, kFlagBadLogits);
  const TempFolder other;
  const MoeModel biased = gpt_oss(other, DType::f32, {big, 0, 0, 0});
  const Answer overflow = route(Router(biased, 0, 2), 32, {{big, 1, 0, 2}}, 2);
  EXPECT_EQ(overflow.ids, (Ids{3, 1})) << "logit and bias overflow together";
  expect_weights(overflow.weights, {0.731058579, 0.268941421});
}

TEST(RouterKinds, TheOssBiasIsRequiredFiniteAndOfItsShape) {
  const auto refused = [](DType type, const std::vector<float>& bias) {
    const TempFolder folder;
    const MoeModel model = gpt_oss(folder, type, bias);
    const Error error = refusal_of([&] { const Router router(model, 0, 2); });
    EXPECT_EQ(code_of(error), "MOXIE-M016");
    EXPECT_EQ(error.findings()[0].where.tensor, "model.layers.0.mlp.router.bias");
    return error.findings()[0];
  };
  EXPECT_EQ(refused(DType::f32, {0, 0, kNan, 0}).where.expert, 2U);
  EXPECT_EQ(refused(DType::bf16, {0, 0, 0, -INFINITY}).where.expert, 3U);
  EXPECT_EQ(refused(DType::bf16, {0, 0, 0}).got, "BF16 [3]");
  EXPECT_EQ(refused(DType::f16, {0, 0, 0, 0}).got, "F16 [4]");
}

struct Gemma {
  std::uint64_t hidden = 48;
  std::uint64_t experts = 5;
  double eps = 1e-6;
  std::vector<float> weight;
  std::vector<float> channel;
  std::vector<float> expert;
};

Gemma random_gemma(std::uint64_t seed) {
  Gemma gemma;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto draw = [&](std::vector<float>& to, std::uint64_t count, float mean) {
    for (std::uint64_t i = 0; i < count; ++i)
      to.push_back(decode_bf16(encode_bf16(mean + normal(random))));
  };
  draw(gemma.weight, gemma.experts * gemma.hidden, 0);
  draw(gemma.channel, gemma.hidden, 1);
  draw(gemma.expert, gemma.experts, 2);
  return gemma;
}

constexpr const char* kGemmaPrefix = "model.language_model.layers.0.";

MoeModel gemma_model(const TempFolder& folder, const Gemma& gemma, DType type = DType::bf16) {
  TinyOptions options{.dialect = TinyDialect::modelopt,
                      .hidden = gemma.hidden,
                      .inter = 32,
                      .experts = gemma.experts,
                      .layers = 1,
                      .prefix = "model.language_model.layers.{}.experts"};
  options.config = test::tiny_config(options);
  options.config->set("model_type", "gemma4")
      .set("num_experts", gemma.experts)
      .set("top_k_experts", 2)
      .set("rms_norm_eps", gemma.eps);
  const std::string router = std::string(kGemmaPrefix) + "router.";
  options.extra = {
      numbers(router + "proj.weight", type, {gemma.experts, gemma.hidden}, gemma.weight),
      numbers(router + "scale", type, {gemma.channel.size()}, gemma.channel),
      numbers(router + "per_expert_scale", type, {gemma.expert.size()}, gemma.expert)};
  return read_model(test::tiny_checkpoint(folder, options));
}

// Ids and weights of one row, step by step as models.md states them.
void expect_gemma(const Gemma& gemma, const std::vector<float>& x, std::uint64_t top_k,
                  std::span<const std::int32_t> ids, std::span<const float> weights) {
  double square = 0;
  for (const float value : x) square += double{value} * value;
  const auto hidden = static_cast<double>(gemma.hidden);
  const double norm = std::sqrt(square / hidden + gemma.eps);
  std::vector<double> p;
  double sum = 0;
  for (std::uint64_t e = 0; e < gemma.experts; ++e) {
    double z = 0;
    for (std::uint64_t h = 0; h < gemma.hidden; ++h)
      z += x[h] / norm * gemma.channel[h] / std::sqrt(hidden) * gemma.weight[e * gemma.hidden + h];
    p.push_back(std::exp(z));
    sum += p.back();
  }
  for (double& value : p) value /= sum;
  std::vector<std::int32_t> order(gemma.experts);
  for (std::size_t e = 0; e < order.size(); ++e) order[e] = static_cast<std::int32_t>(e);
  std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) { return p[a] > p[b]; });
  double chosen = 0;
  for (std::uint64_t k = 0; k < top_k; ++k) chosen += p[order[k]];
  for (std::uint64_t k = 0; k < top_k; ++k) {
    EXPECT_EQ(ids[k], order[k]);
    const double expected = p[order[k]] / chosen * gemma.expert[order[k]];
    EXPECT_TRUE(std::fabs(weights[k] - expected) <= 1e-5 * (1 + std::fabs(expected)))
        << weights[k] << " for " << expected;
  }
}

TEST(RouterKinds, GemmaNormalisesItsInputAndScalesItsExperts) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Gemma gemma = random_gemma(seed);
  std::mt19937_64 random(seed + 1);
  std::normal_distribution<float> normal;
  for (const DType type : {DType::bf16, DType::f32}) {
    const TempFolder folder;
    const Router router(gemma_model(folder, gemma, type), 0, 3);
    // Far from 1 in both directions, where a missing norm or a misplaced eps shows.
    for (const float size : {1.0F, 1e-4F, 300.0F, 1e20F}) {
      std::vector<float> x;
      for (std::uint64_t h = 0; h < gemma.hidden; ++h) x.push_back(size * normal(random));
      const Answer answer = route(router, gemma.hidden, {x}, 3);
      expect_gemma(gemma, x, 3, answer.ids, answer.weights);
      EXPECT_EQ(answer.flags, 0U);
    }
  }
}

TEST(RouterKinds, GemmasRowOfZerosIsATieAndItsNanIsMasked) {  // S-02, S-06
  const Gemma gemma = random_gemma(5);
  const TempFolder folder;
  const Router router(gemma_model(folder, gemma), 0, 2);
  const Answer answer = route(router, gemma.hidden, {{0}, {0, kNan}}, 2);
  EXPECT_EQ(answer.ids, (Ids{0, 1, -1, -1}));
  expect_weights(answer.weights, {0.5 * gemma.expert[0], 0.5 * gemma.expert[1], 0, 0}, 1e-5);
  EXPECT_EQ(answer.flags, kFlagBadLogits);
}

TEST(RouterKinds, GemmasTensorsAreRequiredFiniteAndOfTheirShape) {
  const auto refused = [](const Gemma& gemma) {
    const TempFolder folder;
    const MoeModel model = gemma_model(folder, gemma);
    const Error error = refusal_of([&] { const Router router(model, 0, 2); });
    EXPECT_EQ(code_of(error), "MOXIE-M016");
    return error.findings()[0].where.tensor.substr(std::string(kGemmaPrefix).size());
  };
  Gemma gemma = random_gemma(6);
  gemma.channel[7] = kNan;
  EXPECT_EQ(refused(gemma), "router.scale");
  gemma = random_gemma(6);
  gemma.channel.pop_back();
  EXPECT_EQ(refused(gemma), "router.scale");
  gemma = random_gemma(6);
  gemma.expert[1] = INFINITY;
  EXPECT_EQ(refused(gemma), "router.per_expert_scale");
  gemma = random_gemma(6);
  gemma.expert.push_back(1);
  EXPECT_EQ(refused(gemma), "router.per_expert_scale");
}

// The router of a latent model reads the model's own width, its experts the narrower one.
TEST(RouterKinds, ALatentModelsRouterReadsTheModelsWidth) {
  TinyOptions options{.dialect = TinyDialect::modelopt,
                      .hidden = 32,
                      .inter = 32,
                      .experts = 4,
                      .layers = 1,
                      .gated = false};
  options.config = test::tiny_config(options);
  options.config->set("hidden_size", 48).set("moe_latent_size", 32).set("mlp_hidden_act", "relu2");
  const std::string block = "model.layers.0.mlp.";
  options.extra = {numbers(block + "gate.weight", DType::bf16, {4, 48}, identity(4, 48)),
                   numbers(block + "gate.e_score_correction_bias", DType::f32, {4}, {0, 0, 0, 0})};
  const TempFolder folder;
  const MoeModel model = read_model(test::tiny_checkpoint(folder, options));
  EXPECT_EQ(model.config.hidden, 32U);
  EXPECT_EQ(model.config.router_hidden, 48U);
  const Router router(model, 0, 2);
  EXPECT_EQ(route(router, 48, {{0, 3, 1, 2}}, 2).ids, (Ids{1, 3}));
  std::uint32_t flags = 0;
  Ids ids(2);
  std::vector<float> weights(2);
  const std::vector<float> narrow(32, 1.0F);
  EXPECT_EQ(router.route({.x = {.data = narrow.data(),
                                .dtype = DType::f32,
                                .rows = 1,
                                .cols = 32,
                                .row_stride = 32},
                          .topk_ids = ids.data(),
                          .topk_weights = weights.data(),
                          .flags = &flags},
                         {}),
            CallStatus::bad_argument);
}

}  // namespace
}  // namespace moxie
