// SPDX-License-Identifier: Apache-2.0
// Router: from tensors of a checkpoint to ids and weights, and every tensor that it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "formats/bf16.hpp"
#include "moxie/layer.hpp"
#include "support/refusal.hpp"
#include "support/tiny_checkpoint.hpp"
#include "synth/small_checkpoint.hpp"

namespace moxie {
namespace {

using test::code_of;
using test::refusal_of;
using test::TempFolder;
using test::tiny_checkpoint;
using test::TinyDialect;
using test::TinyOptions;
using test::TinyTensor;

constexpr std::uint64_t kHidden = 32;

using Ids = std::vector<std::int32_t>;

template <class T>
std::string bytes_of_values(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TinyTensor floats(std::string name, Shape shape, const std::vector<float>& values) {
  return {std::move(name), DType::f32, std::move(shape), bytes_of_values(values)};
}

TinyTensor table(std::string name, Shape shape, const std::vector<std::int64_t>& ids) {
  return {std::move(name), DType::i64, std::move(shape), bytes_of_values(ids)};
}

// A bf16 weight [experts, kHidden] that hands column e of x to expert e.
TinyTensor identity(std::string name, std::uint64_t experts) {
  std::vector<std::uint16_t> bits(experts * kHidden, 0);
  for (std::uint64_t expert = 0; expert < experts; ++expert) {
    bits[expert * kHidden + expert] = encode_bf16(1.0F);
  }
  return {std::move(name), DType::bf16, {experts, kHidden}, bytes_of_values(bits)};
}

// Four experts, two per token; layer 0 is hash-routed with a vocabulary of three, layer 1 is not,
// and a prediction block follows.
TinyOptions v4_options() {
  TinyOptions options{.hidden = kHidden, .inter = 32, .experts = 4, .layers = 2, .mtp_blocks = 1};
  options.config = test::tiny_config(options);
  options.config->set("num_hash_layers", 1).set("vocab_size", 3).set("routed_scaling_factor", 1.5);
  const std::vector<float> bias = {0.0F, 2.0F, 0.1F, -1.0F};
  options.extra = {{"pad", DType::u8, {1}, "x"},  // what follows is unaligned
                   identity("layers.0.ffn.gate.weight", 4),
                   table("layers.0.ffn.gate.tid2eid", {3, 2}, {0, 1, 1, 3, 2, 2}),
                   identity("layers.1.ffn.gate.weight", 4),
                   floats("layers.1.ffn.gate.bias", {4}, bias),
                   identity("mtp.0.ffn.gate.weight", 4),
                   floats("mtp.0.ffn.gate.bias", {4}, bias)};
  return options;
}

// Replaces the tensor of that name, or leaves it out.
TinyOptions with(TinyOptions options, const std::string& name, std::optional<TinyTensor> tensor) {
  std::erase_if(options.extra, [&](const TinyTensor& old) { return old.name == name; });
  if (tensor) options.extra.push_back(std::move(*tensor));
  return options;
}

struct Answer {
  CallStatus status = CallStatus::ok;
  Ids ids;
  std::vector<float> weights;
  std::uint32_t flags = 0;
};

// Routes rows whose first columns are these logits. The workspace is poisoned.
Answer route(const Router& router, const std::vector<std::vector<float>>& logits,
             std::uint64_t top_k, const std::vector<std::int64_t>& token_ids = {}) {
  std::vector<float> x(logits.size() * kHidden, 0.0F);
  for (std::size_t row = 0; row < logits.size(); ++row) {
    std::ranges::copy(logits[row], x.begin() + static_cast<long>(row * kHidden));
  }
  std::vector<std::byte> workspace(router.workspace_size(logits.size()), std::byte{0xFF});
  Answer answer{.ids = Ids(logits.size() * top_k, -9),
                .weights = std::vector<float>(logits.size() * top_k, -9.0F)};
  answer.status = router.route({.x = {.data = x.data(),
                                      .dtype = DType::f32,
                                      .rows = logits.size(),
                                      .cols = kHidden,
                                      .row_stride = kHidden},
                                .token_ids = token_ids.empty() ? nullptr : token_ids.data(),
                                .topk_ids = answer.ids.data(),
                                .topk_weights = answer.weights.data(),
                                .flags = &answer.flags},
                               workspace);
  return answer;
}

void expect_weights(const std::vector<float>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(std::fabs(got[i] - expected[i]) <= 1e-6) << got[i] << " for " << expected[i];
  }
}

const std::vector<float> kLogits = {1.0F, -2.0F, 0.5F, 3.0F};

TEST(Router, RoutesALayerByScoreWithItsBias) {  // pit40
  const TempFolder folder;
  const Router router(read_model(tiny_checkpoint(folder, v4_options())), 1, 2);
  EXPECT_FALSE(router.needs_token_ids());
  const Answer answer = route(router, {kLogits, kLogits}, 2);
  EXPECT_EQ(answer.status, CallStatus::ok);
  EXPECT_EQ(answer.ids, (Ids{1, 0, 1, 0}));
  expect_weights(answer.weights, {0.355737, 1.144263, 0.355737, 1.144263});
  EXPECT_EQ(answer.flags, 0U);
}

TEST(Router, RoutesAHashLayerByTokenId) {  // pit42
  const TempFolder folder;
  const Router router(read_model(tiny_checkpoint(folder, v4_options())), 0, 2);
  EXPECT_TRUE(router.needs_token_ids());
  const Answer answer = route(router, {kLogits, kLogits, kLogits, kLogits}, 2, {1, -1, 2, 3});
  EXPECT_EQ(answer.ids, (Ids{1, 3, -1, -1, 2, 2, -1, -1}));
  expect_weights(answer.weights, {0.254201, 1.245799, 0, 0, 0.75, 0.75, 0, 0});
  EXPECT_EQ(answer.flags, kFlagBadTokenId);
}

// Whatever the number of hash layers is: its layer number only counts on from the main layers.
TEST(Router, APredictionBlockIsNotHashRouted) {
  const TempFolder folder;
  TinyOptions options = v4_options();
  options.config->set("num_hash_layers", 9);
  const Router router(read_model(tiny_checkpoint(folder, options)), 2, 2);
  EXPECT_FALSE(router.needs_token_ids());
  EXPECT_EQ(route(router, {kLogits}, 2).ids, (Ids{1, 0}));
}

TEST(Router, TakesTopKFromTheCallerOnScoreLayers) {  // C10
  const TempFolder folder;
  const MoeModel model = read_model(tiny_checkpoint(folder, v4_options()));
  EXPECT_EQ(route(Router(model, 1, 1), {kLogits}, 1).ids, Ids{1});
  EXPECT_EQ(route(Router(model, 1, 4), {kLogits}, 4).ids, (Ids{1, 0, 2, 3}));
  for (const std::uint64_t top_k : {std::uint64_t{0}, std::uint64_t{5}, ~std::uint64_t{0}}) {
    const Error error = refusal_of([&] { const Router router(model, 1, top_k); });
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_EQ(code_of(error), "MOXIE-U003");
  }
}

TEST(Router, RoutesByGroupsOfTheConfig) {  // pit43
  const TempFolder folder;
  TinyOptions options{
      .dialect = TinyDialect::modelopt, .hidden = kHidden, .inter = 32, .experts = 8, .layers = 1};
  options.config = test::tiny_config(options);
  options.config->set("n_group", 4)
      .set("topk_group", 2)
      .set("num_experts_per_tok", 3)
      .set("routed_scaling_factor", 2.5);
  options.extra = {identity("model.layers.0.mlp.gate.weight", 8),
                   floats("model.layers.0.mlp.gate.e_score_correction_bias", {8},
                          {0, 0, 0.2F, 0, -0.5F, 0, 0.3F, 0})};
  const std::vector<float> logits = {2, -1, 1, 0.9F, 3, -3, 0, 0};
  const Answer answer =
      route(Router(read_model(tiny_checkpoint(folder, options, "normalised")), 0, 3), {logits}, 3);
  EXPECT_EQ(answer.ids, (Ids{2, 6, 3}));
  expect_weights(answer.weights, {0.941112, 0.643664, 0.915225});
  options.config->set("norm_topk_prob", false);
  const Answer raw =
      route(Router(read_model(tiny_checkpoint(folder, options, "raw")), 0, 3), {logits}, 3);
  expect_weights(raw.weights, {2.5 * 0.731058579, 2.5 * 0.5, 2.5 * 0.710949503});
  const MoeModel model = read_model(open_checkpoint(folder.path() / "raw"));
  EXPECT_EQ(code_of(refusal_of([&] { const Router router(model, 0, 5); })), "MOXIE-U003")
      << "two groups of two keep four experts";
}

TEST(Router, KeepsWhatItReadWhenTheFilesAreGone) {
  const TempFolder folder;
  std::optional<Router> router;
  {
    router.emplace(read_model(tiny_checkpoint(folder, v4_options())), 1, 2);
    std::filesystem::remove_all(folder.path() / "model");
  }
  Router moved = std::move(*router);
  router.reset();
  EXPECT_EQ(route(moved, {kLogits}, 2).ids, (Ids{1, 0}));
}

// The finding of the refusal to make a router from these tensors.
Finding refused(const TinyOptions& options, int layer, std::uint64_t top_k = 2) {
  const TempFolder folder;
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  const Error error = refusal_of([&] { const Router router(model, layer, top_k); });
  EXPECT_EQ(error.code(), ErrorCode::input) << error.what();
  EXPECT_EQ(code_of(error), "MOXIE-M016") << error.what();
  EXPECT_EQ(error.findings().front().where.layer, layer);
  return error.findings().front();
}

TEST(Router, NamesTheTensorThatIsAbsent) {
  const TinyOptions options = v4_options();
  for (const auto& [name, layer] : {std::pair{"layers.0.ffn.gate.weight", 0},
                                    {"layers.0.ffn.gate.tid2eid", 0},
                                    {"layers.1.ffn.gate.weight", 1},
                                    {"layers.1.ffn.gate.bias", 1},
                                    {"mtp.0.ffn.gate.bias", 2}}) {
    EXPECT_EQ(refused(with(options, name, {}), layer).expected, name);
  }
}

TEST(Router, NamesTheTensorOfAnotherTypeOrShape) {
  const TinyOptions options = v4_options();
  const auto expect_refusal = [&](const TinyTensor& tensor, int layer) {
    const Finding finding = refused(with(options, tensor.name, tensor), layer);
    EXPECT_EQ(finding.where.tensor, tensor.name);
    EXPECT_EQ(finding.got, std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape));
  };
  const auto zeros = [](std::string name, DType dtype, Shape shape) {
    const std::size_t bytes = TensorEntry{name, dtype, shape}.bytes();
    return TinyTensor{std::move(name), dtype, std::move(shape), std::string(bytes, '\0')};
  };
  const std::string weight = "layers.1.ffn.gate.weight";
  expect_refusal(zeros(weight, DType::f16, {4, kHidden}), 1);
  expect_refusal(zeros(weight, DType::bf16, {kHidden, 4}), 1);
  expect_refusal(zeros(weight, DType::bf16, {3, kHidden}), 1);
  expect_refusal(zeros(weight, DType::bf16, {4 * kHidden}), 1);
  expect_refusal(zeros("layers.1.ffn.gate.bias", DType::bf16, {4}), 1);
  expect_refusal(zeros("layers.1.ffn.gate.bias", DType::f32, {5}), 1);
  expect_refusal(zeros("layers.1.ffn.gate.bias", DType::f32, {1, 4}), 1);
  const std::string table = "layers.0.ffn.gate.tid2eid";
  expect_refusal(zeros(table, DType::u32, {3, 2}), 0);
  expect_refusal(zeros(table, DType::i64, {3, 3}), 0);
  expect_refusal(zeros(table, DType::i64, {4, 2}), 0);  // the vocabulary has three
  expect_refusal(zeros(table, DType::i64, {6}), 0);
  // The table's columns are the top_k of its layer; asking for another is not the file's fault.
  const TempFolder folder;
  const MoeModel model = read_model(tiny_checkpoint(folder, options));
  const Error error = refusal_of([&] { const Router router(model, 0, 1); });
  EXPECT_EQ(error.code(), ErrorCode::usage);
  EXPECT_EQ(code_of(error), "MOXIE-R007");
  EXPECT_EQ(error.findings()[0].expected, "top_k 2");
}

TEST(Router, AVocabularyThatTheConfigDoesNotStateIsTheTables) {
  const TempFolder folder;
  TinyOptions options = v4_options();
  options.config->erase("vocab_size");
  const Router router(read_model(tiny_checkpoint(folder, options)), 0, 2);
  EXPECT_EQ(route(router, {kLogits}, 2, {1}).ids, (Ids{1, 3}));
  EXPECT_EQ(route(router, {kLogits}, 2, {3}).flags, kFlagBadTokenId);
  const std::string name = "layers.0.ffn.gate.tid2eid";
  refused(with(options, name, table(name, {0, 2}, {})), 0);
}

TEST(Router, RefusesATableThatNamesNoExpert) {  // pit42
  const std::string name = "layers.0.ffn.gate.tid2eid";
  for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{4}, std::int64_t{1} << 32,
                                   std::numeric_limits<std::int64_t>::min()}) {
    const Finding finding =
        refused(with(v4_options(), name, table(name, {3, 2}, {0, 1, 1, 3, 2, wrong})), 0);
    EXPECT_EQ(finding.where.tensor, name);
    EXPECT_EQ(finding.got, std::to_string(wrong) + " for token 2");
  }
}

TEST(Router, RefusesABiasThatIsNoNumberAndNamesItsExpert) {
  const std::string name = "layers.1.ffn.gate.bias";
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    const Finding finding =
        refused(with(v4_options(), name, floats(name, {4}, {0, 0, wrong, 0})), 1);
    EXPECT_EQ(finding.where.tensor, name);
    EXPECT_EQ(finding.where.expert, 2U);
  }
}

TEST(Router, RefusesAWeightThatIsNoNumber) {
  const std::string name = "layers.1.ffn.gate.weight";
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    TinyOptions options = v4_options();
    std::vector<float> weight(4 * options.hidden, 0.5F);
    weight[2 * options.hidden + 3] = wrong;
    const Finding finding =
        refused(with(options, name, floats(name, {4, options.hidden}, weight)), 1);
    EXPECT_EQ(finding.where.tensor, name);
  }
}

TEST(Router, SaysWhichShardHoldsTheTensorThatIsNotHere) {
  const TempFolder folder;
  TinyOptions options = v4_options();
  options.shards = test::TinyShards::indexed;
  test::write_tiny(folder.path() / "model", options);
  std::filesystem::remove(folder.path() / "model" / "model-3.safetensors");  // the extra tensors
  const MoeModel model = read_model(open_checkpoint(folder.path() / "model"));
  const Error error = refusal_of([&] { const Router router(model, 1, 2); });
  EXPECT_EQ(code_of(error), "MOXIE-M016");
  EXPECT_NE(error.findings().front().hint.find("model-3.safetensors"), std::string::npos);
}

TEST(Router, RefusesALayerThatIsNotThereAndANormalisationThatIsNotStated) {
  const TempFolder folder;
  const MoeModel v4 = read_model(tiny_checkpoint(folder, v4_options()));
  EXPECT_EQ(code_of(refusal_of([&] { const Router router(v4, 7, 2); })), "MOXIE-M011");
  for (const char* family : {"gemma4"}) {
    TinyOptions options{.dialect = TinyDialect::modelopt, .layers = 1};
    options.config = test::tiny_config(options);
    options.config->set("model_type", family)
        .set("num_experts", 3)
        .set("num_local_experts", 3)
        .set("intermediate_size", 96)
        .set("top_k_experts", 2);
    const MoeModel model = read_model(tiny_checkpoint(folder, options, family));
    const Error error = refusal_of([&] { const Router router(model, 0, 2); });
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_EQ(code_of(error), "MOXIE-R004");
    EXPECT_EQ(error.findings().front().expected, "rms_norm_eps in the config");
  }
}

TEST(Router, RefusesACallThatItCanNotMakeAndWritesNothing) {
  const TempFolder folder;
  const MoeModel model = read_model(tiny_checkpoint(folder, v4_options()));
  const Router hashed(model, 0, 2);
  const Router scored(model, 1, 2);
  const std::vector<float> x(2 * kHidden, 1.0F);
  const std::vector<std::int64_t> token_ids = {0, 1};
  Ids ids(4, -9);
  std::vector<float> weights(4, -9.0F);
  std::uint32_t flags = 0;
  std::vector<std::byte> workspace(scored.workspace_size(2));
  const RouteIo good{.x = {.data = x.data(),
                           .dtype = DType::f32,
                           .rows = 2,
                           .cols = kHidden,
                           .row_stride = kHidden},
                     .token_ids = token_ids.data(),
                     .topk_ids = ids.data(),
                     .topk_weights = weights.data(),
                     .flags = &flags};
  const auto expect_refused = [&](auto change, CallStatus status, std::span<std::byte> memory) {
    RouteIo io = good;
    change(io);
    EXPECT_EQ(hashed.route(io, memory), status);
    EXPECT_EQ(ids, Ids(4, -9));
    EXPECT_EQ(weights, std::vector<float>(4, -9.0F));
    EXPECT_EQ(flags, 0U);
  };
  const auto bad = CallStatus::bad_argument;
  expect_refused([](RouteIo& io) { io.x.data = nullptr; }, bad, workspace);
  expect_refused([](RouteIo& io) { io.x.dtype = DType::f16; }, bad, workspace);
  expect_refused([](RouteIo& io) { io.x.cols = kHidden - 1; }, bad, workspace);
  expect_refused([](RouteIo& io) { io.x.row_stride = kHidden - 1; }, bad, workspace);
  expect_refused([](RouteIo& io) { io.token_ids = nullptr; }, bad, workspace);
  expect_refused([](RouteIo& io) { io.topk_ids = nullptr; }, bad, workspace);
  expect_refused([](RouteIo& io) { io.topk_weights = nullptr; }, bad, workspace);
  expect_refused([](RouteIo& io) { io.flags = nullptr; }, bad, workspace);
  const auto small = CallStatus::workspace_too_small;
  expect_refused([](RouteIo&) {}, small, std::span(workspace).first(workspace.size() - 1));
  expect_refused([](RouteIo& io) { io.x.rows = ~std::uint64_t{0}; }, small, workspace);

  EXPECT_EQ(hashed.route({.x = {.cols = kHidden}}, workspace), CallStatus::ok) << "no tokens";
  EXPECT_EQ(hashed.route(good, workspace), CallStatus::ok);
  EXPECT_EQ(ids, (Ids{0, 1, 1, 3}));
  RouteIo without_ids = good;
  without_ids.token_ids = nullptr;
  EXPECT_EQ(scored.route(without_ids, workspace), CallStatus::ok);
}

// Scores in double from the file's own bytes.
std::vector<double> scores_of(const Checkpoint& checkpoint, const TensorInfo& weight,
                              const std::vector<float>& x) {
  const auto bytes = test::bytes_of(checkpoint, weight);
  std::vector<double> scores;
  for (std::uint64_t expert = 0; expert < weight.shape[0]; ++expert) {
    double logit = 0;
    for (std::uint64_t h = 0; h < x.size(); ++h) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, &bytes[2 * (expert * x.size() + h)], sizeof bits);
      logit += double{decode_bf16(bits)} * x[h];
    }
    scores.push_back(std::sqrt(std::log1p(std::exp(logit))));
  }
  return scores;
}

TEST(Router, RoutesASynthesisedModelAsItsTensorsSay) {
  for (const auto dialect : {DialectKind::deepseek, DialectKind::modelopt}) {
    const TempFolder folder;
    SynthOptions options = test::small_options(BlockFormat::nvfp4, dialect);
    options.experts = 8;
    const Checkpoint checkpoint = test::synthesised(folder, options);
    const MoeModel model = read_model(checkpoint);
    const std::uint64_t top_k = model.config.top_k;
    std::vector<float> x(64);
    for (std::size_t h = 0; h < x.size(); ++h) {
      x[h] = static_cast<float>(static_cast<int>(h * 37 % 64) - 32) / 8;
    }
    for (const int layer : {0, 1}) {
      const RouterTensors& tensors = model.require_layer(layer).router;
      const Router router(model, layer, top_k);
      EXPECT_EQ(router.needs_token_ids(), layer == 0);
      const std::int64_t token_id = 17;
      Ids ids(top_k);
      std::vector<float> weights(top_k);
      std::uint32_t flags = 0;
      std::vector<std::byte> workspace(router.workspace_size(1));
      ASSERT_EQ(router.route({.x = {.data = x.data(), .rows = 1, .cols = 64},
                              .token_ids = &token_id,
                              .topk_ids = ids.data(),
                              .topk_weights = weights.data(),
                              .flags = &flags},
                             workspace),
                CallStatus::ok);
      EXPECT_EQ(flags, 0U);
      const std::vector<double> scores = scores_of(checkpoint, *tensors.weight, x);
      double sum = 0;
      for (const std::int32_t id : ids) sum += scores.at(static_cast<std::size_t>(id));
      for (std::uint64_t choice = 0; choice < top_k; ++choice) {
        const auto id = static_cast<std::size_t>(ids[choice]);
        EXPECT_TRUE(std::fabs(weights[choice] - 1.5 * scores[id] / sum) <= 1e-6);  // pit45
        if (layer == 0) {
          std::int64_t stored = 0;
          const auto bytes = test::bytes_of(checkpoint, *tensors.token_table);
          std::memcpy(&stored, &bytes[8 * (17 * top_k + choice)], sizeof stored);
          EXPECT_EQ(ids[choice], stored);
        }
      }
      if (layer == 0) continue;
      std::vector<float> bias(scores.size());
      std::memcpy(bias.data(), test::bytes_of(checkpoint, *tensors.bias).data(), 4 * bias.size());
      for (std::size_t expert = 0; expert < scores.size(); ++expert) {
        const auto last = static_cast<std::size_t>(ids.back());
        if (std::ranges::find(ids, static_cast<std::int32_t>(expert)) != ids.end()) continue;
        EXPECT_LE(scores[expert] + bias[expert], scores[last] + bias[last] + 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace moxie
