// SPDX-License-Identifier: Apache-2.0
// Probe files: what is written is read, and what is wrong in one value is refused.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "moxie/probe.hpp"
#include "support/refusal.hpp"
#include "support/safetensors_bytes.hpp"
#include "support/temp_folder.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie {
namespace {

using test::TinyTensor;

constexpr std::uint64_t kHidden = 3;
constexpr std::uint64_t kExperts = 5;

template <class Number>
TinyTensor tensor(std::string name, DType dtype, Shape shape, const std::vector<Number>& values) {
  std::string bytes(values.size() * sizeof(Number), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return {std::move(name), dtype, std::move(shape), std::move(bytes)};
}

// Two tokens of three columns, two slots; in f32 and 64-bit ids. `odd` puts all data at an odd
// place in the file.
struct Contents {
  TinyTensor x = tensor<float>("hidden_states", DType::f32, {2, 3}, {1, -2, 3, 0.5, 0, -1e-30F});
  TinyTensor ids = tensor<std::int64_t>("topk_ids", DType::i64, {2, 2}, {4, 0, -1, 3});
  TinyTensor weights = tensor<float>("topk_weights", DType::f32, {2, 2}, {0.75, 0.25, 0, -2});
  TinyTensor token_ids =
      tensor<std::int64_t>("token_ids", DType::i64, {2}, {std::int64_t{1} << 40, -1});
  std::vector<TinyTensor> more;
};

class ProbeFiles : public testing::Test {
 protected:
  std::filesystem::path write(const Contents& contents) const {
    std::vector<TinyTensor> all = {tensor<std::uint8_t>("odd", DType::u8, {1}, {9}), contents.x};
    for (const TinyTensor* one : {&contents.ids, &contents.weights, &contents.token_ids}) {
      if (!one->name.empty()) all.push_back(*one);
    }
    test::write_tensors(folder_.path() / "probe.safetensors", all);
    return folder_.path() / "probe.safetensors";
  }
  Probe read(const Contents& contents, ProbeLimits limits = limits_of()) const {
    return read_probe(write(contents), limits);
  }
  static ProbeLimits limits_of() { return {.hidden = kHidden, .experts = kExperts}; }

  // The refusal of contents changed by `edit`; its text names `name`.
  Error refusal(const std::string& name, const std::function<void(Contents&)>& edit,
                ProbeLimits limits = limits_of()) const {
    Contents contents;
    edit(contents);
    Error error = test::refusal_of([&] { read(contents, limits); });
    EXPECT_EQ(error.findings().front().where.tensor, name) << error.what();
    return error;
  }
  void expect_wrong(const std::string& name, const std::function<void(Contents&)>& edit,
                    ProbeLimits limits = limits_of()) const {
    const Error error = refusal(name, edit, limits);
    EXPECT_EQ(error.code(), ErrorCode::input) << error.what();
    EXPECT_EQ(test::code_of(error), "MOXIE-R005") << error.what();
  }

  test::TempFolder folder_;
};

TEST_F(ProbeFiles, AreReadAtAnyAlignment) {
  const Probe probe = read({});
  EXPECT_EQ(probe.tokens, 2U);
  EXPECT_EQ(probe.hidden, 3U);
  EXPECT_EQ(probe.top_k, 2U);
  EXPECT_EQ(probe.x_dtype, DType::f32);
  std::vector<float> x(6);
  ASSERT_EQ(probe.x.size(), 24U);
  std::memcpy(x.data(), probe.x.data(), 24);
  EXPECT_EQ(x, (std::vector<float>{1, -2, 3, 0.5, 0, -1e-30F}));
  EXPECT_EQ(probe.topk_ids, (std::vector<std::int32_t>{4, 0, -1, 3}));
  EXPECT_EQ(probe.topk_weights, (std::vector<float>{0.75, 0.25, 0, -2}));
  EXPECT_EQ(probe.token_ids, (std::vector<std::int64_t>{std::int64_t{1} << 40, -1}));
}

TEST_F(ProbeFiles, NeedActivationsOnly) {
  const Contents contents{.ids = {}, .weights = {}, .token_ids = {}};
  const Probe probe = read(contents, {.hidden = 3, .experts = 5, .top_k = 9});
  EXPECT_TRUE(probe.topk_ids.empty() && probe.topk_weights.empty() && probe.token_ids.empty());
  EXPECT_EQ(probe.top_k, 0U);
}

TEST_F(ProbeFiles, HoldWhatWasWritten) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  const Probe made = make_probe({.tokens = 7,
                                 .hidden = 3,
                                 .experts = 5,
                                 .top_k = 4,
                                 .vocab = 99,
                                 .routing = {},
                                 .seed = seed});
  const std::vector<float> output = {1, 2, 3, 4};
  const auto path = folder_.path() / "out.safetensors";
  write_probe(path, made,
              {{"output", {.data = output.data(), .dtype = DType::f32, .rows = 2, .cols = 2}}});
  const Probe read = read_probe(path, {.hidden = 3, .experts = 5, .top_k = 4, .tokens = 7});
  EXPECT_EQ(read.x_dtype, DType::bf16);
  EXPECT_EQ(read.x, made.x);
  EXPECT_EQ(read.topk_ids, made.topk_ids);
  EXPECT_EQ(read.topk_weights, made.topk_weights);
  EXPECT_EQ(read.token_ids, made.token_ids);
  const Checkpoint file = open_checkpoint(path);
  const TensorInfo* stored = file.find("output");
  ASSERT_NE(stored, nullptr);
  EXPECT_EQ(stored->shape, (Shape{2, 2}));
  EXPECT_EQ(std::memcmp(file.bytes(*stored).data(), output.data(), 16), 0);
}

TEST_F(ProbeFiles, MayHoldNoTokens) {
  const Probe none =
      make_probe({.tokens = 0, .hidden = 3, .experts = 5, .top_k = 2, .vocab = 9, .routing = {}});
  const auto path = folder_.path() / "none.safetensors";
  write_probe(path, none, {});
  const Probe read = read_probe(path, {.hidden = 3, .experts = 5, .top_k = 2, .tokens = 0});
  EXPECT_EQ(read.tokens, 0U);
  EXPECT_EQ(read.top_k, 2U);
}

TEST_F(ProbeFiles, WithIdsOutsideTheModelAreRefused) {
  const std::int64_t wrong[] = {5,
                                -2,
                                std::int64_t{1} << 32,
                                (std::int64_t{1} << 32) + 1,
                                std::numeric_limits<std::int64_t>::min(),
                                std::numeric_limits<std::int64_t>::max(),
                                std::int64_t{0xFFFFFFFF}};  // -1 once it is cut to 32 bits
  for (const std::int64_t id : wrong) {
    SCOPED_TRACE(id);
    expect_wrong("topk_ids", [&](Contents& c) {
      c.ids = tensor<std::int64_t>("topk_ids", DType::i64, {2, 2}, {4, 0, id, 3});
    });
  }
  for (const std::int32_t id : {5, -2, std::numeric_limits<std::int32_t>::min()}) {
    SCOPED_TRACE(id);
    expect_wrong("topk_ids", [&](Contents& c) {
      c.ids = tensor<std::int32_t>("topk_ids", DType::i32, {2, 2}, {4, 0, id, 3});
    });
  }
}

TEST_F(ProbeFiles, WithNumbersThatAreNoneAreRefused) {
  const float none[] = {std::numeric_limits<float>::quiet_NaN(),
                        -std::numeric_limits<float>::infinity()};
  for (const float value : none) {
    const Error error = refusal("hidden_states", [&](Contents& c) {
      c.x = tensor<float>("hidden_states", DType::f32, {2, 3}, {1, 1, 1, 1, value, 1});
    });
    EXPECT_NE(std::string(error.what()).find("token 1, column 1"), std::string::npos)
        << error.what();
    expect_wrong("topk_weights", [&](Contents& c) {
      c.weights = tensor<float>("topk_weights", DType::f32, {2, 2}, {1, value, 1, 1});
    });
  }
  for (const std::uint16_t bits : {0x7F80, 0xFFC0}) {
    expect_wrong("hidden_states", [&](Contents& c) {
      c.x = tensor<std::uint16_t>("hidden_states", DType::bf16, {2, 3}, {0, 0, 0, 0, 0, bits});
    });
  }
}

TEST_F(ProbeFiles, WithAnotherTypeOrShapeAreRefused) {
  expect_wrong("hidden_states", [](Contents& c) { c.x.name = "input"; });
  expect_wrong("hidden_states", [](Contents& c) { c.x.dtype = DType::i32; });
  expect_wrong("hidden_states", [](Contents& c) { c.x.shape = {3, 2}; });
  expect_wrong("hidden_states", [](Contents& c) { c.x.shape = {6}; });
  expect_wrong("topk_ids", [](Contents& c) { c.ids.dtype = DType::u64; });
  expect_wrong("topk_ids", [](Contents& c) { c.ids.shape = {4}; });
  expect_wrong("topk_ids", [](Contents& c) { c.ids.shape = {1, 4}; });
  expect_wrong("topk_ids", [](Contents& c) { c.ids.name = "ids"; });
  expect_wrong("topk_weights", [](Contents& c) { c.weights.name = "w"; });
  expect_wrong("topk_weights", [](Contents& c) { c.weights.dtype = DType::i32; });
  expect_wrong("topk_weights", [](Contents& c) { c.weights.shape = {4, 1}; });
  expect_wrong("token_ids", [](Contents& c) { c.token_ids.dtype = DType::u64; });
  expect_wrong("token_ids", [](Contents& c) { c.token_ids.shape = {2, 1}; });
  expect_wrong("topk_ids", [](Contents&) {}, {.hidden = 3, .experts = 5, .top_k = 3});
}

TEST_F(ProbeFiles, WithAnotherNumberOfTokensThanAskedForAreAWrongCall) {
  const Error error =
      refusal("hidden_states", [](Contents&) {}, {.hidden = 3, .experts = 5, .tokens = 3});
  EXPECT_EQ(error.code(), ErrorCode::usage);
  EXPECT_EQ(test::code_of(error), "MOXIE-R006");
}

TEST_F(ProbeFiles, RouteAProbeThatHasActivations) {
  Contents contents;
  const auto path = write(contents);
  Probe probe = make_probe({.tokens = 2, .hidden = 8, .experts = 5, .top_k = 1, .routing = {}});
  const std::vector<std::byte> x = probe.x;
  read_routing(path, {.hidden = 8, .experts = 5, .top_k = 2, .tokens = 2}, probe);
  EXPECT_EQ(probe.x, x);
  EXPECT_EQ(probe.top_k, 2U);
  EXPECT_EQ(probe.topk_ids, (std::vector<std::int32_t>{4, 0, -1, 3}));

  Probe three = make_probe({.tokens = 3, .hidden = 8, .experts = 5, .top_k = 1, .routing = {}});
  const Error error =
      test::refusal_of([&] { read_routing(path, {.hidden = 8, .experts = 5}, three); });
  EXPECT_EQ(test::code_of(error), "MOXIE-R006");

  contents.ids = contents.weights = {};
  EXPECT_EQ(test::code_of(test::refusal_of(
                [&] { read_routing(write(contents), {.hidden = 8, .experts = 5}, probe); })),
            "MOXIE-R005");
}

TEST_F(ProbeFiles, ThatAreNoSafetensorsAreRefusedAsSuch) {
  const auto path = folder_.write("short", "abc");
  EXPECT_EQ(test::code_of(test::refusal_of([&] { read_probe(path, limits_of()); })), "MOXIE-C002");
  const Error absent =
      test::refusal_of([&] { read_probe(folder_.path() / "absent", limits_of()); });
  EXPECT_EQ(absent.code(), ErrorCode::input);
  EXPECT_EQ(test::code_of(absent), "MOXIE-R005");
}

}  // namespace
}  // namespace moxie
