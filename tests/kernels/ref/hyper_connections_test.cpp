// SPDX-License-Identifier: Apache-2.0
// Golden values: the published example of three copies of two values.
#include "kernels/ref/hyper_connections.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "kernels/ref/fp8_weights.hpp"

namespace moxie {
namespace {

using test::expect_near;
using test::kPrinted;

// Row i of fn picks value i mod 6 of the copies.
struct Golden {
  Golden() : fn(15 * 6), base(15) {
    for (std::size_t i = 0; i < 15; ++i) {
      fn[i * 6 + i % 6] = 1;
      base[i] = 0.1 * static_cast<double>(i % 4);
    }
  }
  [[nodiscard]] ref::Mix mix() const {
    return ref::mix({.fn = fn, .scale = scale, .base = base}, parameters, x);
  }

  ref::HyperParameters parameters = {.copies = 3};
  std::vector<double> x = {1, 2, 3, -1, 0, 1};  // [3, 2]
  std::vector<double> s = {0.5, -0.25};
  std::vector<double> fn;
  std::vector<double> scale = {0.5, 0.25, 2};
  std::vector<double> base;
};

TEST(HyperConnections, TheMixHasItsGoldenValues) {
  const ref::Mix mix = Golden().mix();
  const std::vector<double> m = {0.612372, 1.224745, 1.837117, -0.612372, 0, 0.612372};
  ASSERT_EQ(mix.m.size(), 15U);
  for (std::size_t i = 0; i < 15; ++i) EXPECT_NEAR(mix.m[i], m[i % 6], kPrinted) << i;
  expect_near(mix.pre, std::vector<double>{0.575955, 0.670926, 0.753722}, kPrinted);
  expect_near(mix.post, std::vector<double>{1.073322, 1, 1.125875}, kPrinted);
  expect_near(mix.c,
              std::vector<double>{.362160, .362160, .275679, .318920, .318919, .362160, .318920,
                                  .318919, .362160},
              kPrinted);
}

TEST(HyperConnections, CollapseAndExpandHaveTheirGoldenValues) {
  const Golden golden;
  const ref::Mix mix = golden.mix();
  expect_near(ref::collapse(mix.pre, golden.x), std::vector<double>{2.588734, 1.234706}, kPrinted);
  expect_near(ref::expand(mix, golden.x, golden.s),
              std::vector<double>{1.855579, 0.455989, 1.818918, 0.474321, 1.925097, 0.269889},
              kPrinted);
}

TEST(HyperConnections, CTransposedGivesWrongValues) {
  const Golden golden;
  ref::Mix mix = golden.mix();
  for (std::size_t j = 0; j < 3; ++j) {
    for (std::size_t k = 0; k < j; ++k) std::swap(mix.c[j * 3 + k], mix.c[k * 3 + j]);
  }
  expect_near(ref::expand(mix, golden.x, golden.s),
              std::vector<double>{1.985302, 0.369507, 1.775678, 0.431080, 1.838615, 0.399611},
              kPrinted);
}

TEST(HyperConnections, TheHeadHasItsGoldenValues) {
  const Golden golden;
  const std::vector<double> scale = {0.5};
  const std::vector<double> base = {0, 0.5, -0.5};
  const auto x =
      ref::collapse_head({.fn = std::span(golden.fn).first(18), .scale = scale, .base = base},
                         golden.parameters, golden.x);
  expect_near(x, std::vector<double>{2.833671, 1.002477}, kPrinted);
}

TEST(HyperConnections, ColumnsOfCAddUpToOneWhateverTheIterations) {
  Golden golden;
  for (const std::uint64_t iterations : {1, 2, 20}) {
    golden.parameters.sinkhorn_iterations = iterations;
    const auto c = golden.mix().c;
    // A column that added up to S adds up to S / (S + eps); no S is below 0.1 here.
    for (std::size_t k = 0; k < 3; ++k)
      EXPECT_NEAR(c[k] + c[3 + k] + c[6 + k], 1, 10 * golden.parameters.hc_eps);
    // Rows are normalised last but one, and get there by iterating.
    const double row = std::abs(c[0] + c[1] + c[2] - 1);
    if (iterations == 20) {
      EXPECT_LT(row, 4 * golden.parameters.hc_eps);
    } else {
      EXPECT_GT(row, 1e-4);
    }
  }
}

// An epsilon of 1e-6 hardly shows; one of 1/4 tells where it is added. The values are those of a
// second implementation in Python.
TEST(HyperConnections, EpsilonStandsInTheSoftmaxAndInEveryDivision) {
  Golden golden;
  golden.parameters.hc_eps = 0.25;
  golden.parameters.sinkhorn_iterations = 3;
  expect_near(golden.mix().c,
              std::vector<double>{0.252674520, 0.267464606, 0.231768916, 0.247000142, 0.241384620,
                                  0.261082398, 0.247000142, 0.241384620, 0.261082398},
              0.5e-9 + 1e-12);
}

// Tensors of zeros with a base of -ln(c - 1) for pre: a plain residual within the format.
struct Plain {
  explicit Plain(std::uint64_t width) : fn(24 * 4 * width), base(24) {
    for (std::size_t j = 0; j < 4; ++j) base[j] = -std::log(3.0);
  }
  std::vector<double> fn;
  std::vector<double> scale = {0, 0, 0};
  std::vector<double> base;
};

TEST(HyperConnections, ThePlainSettingKeepsAllCopiesEqualAndAddsTheSublayer) {
  constexpr std::uint64_t kHidden = 5;
  std::mt19937_64 random(3);
  const Plain plain(kHidden);
  const auto row = test::random_values(kHidden, random);
  const auto s = test::random_values(kHidden, random);
  std::vector<double> x;
  for (int copy = 0; copy < 4; ++copy) x.insert(x.end(), row.begin(), row.end());

  const ref::Mix mix = ref::mix({.fn = plain.fn, .scale = plain.scale, .base = plain.base}, {}, x);
  expect_near(mix.pre, std::vector<double>(4, 0.25 + 1e-6), 1e-12);
  expect_near(mix.post, std::vector<double>(4, 1.0), 1e-15);
  expect_near(mix.c, std::vector<double>(16, 0.25 - 2.5e-7), 1e-11);
  const auto u = ref::collapse(mix.pre, x);
  const auto next = ref::expand(mix, x, s);
  for (std::size_t i = 0; i < next.size(); ++i) {
    const double from = row[i % kHidden];
    EXPECT_NEAR(u[i % kHidden], from, 4.01e-6 * std::abs(from));
    EXPECT_NEAR(next[i], from + s[i % kHidden], 1.01e-6 * std::abs(from));
    EXPECT_EQ(next[i], next[i % kHidden]);
  }

  const std::vector<double> scale = {0};
  const auto head = ref::collapse_head({.fn = std::span(plain.fn).first(4 * x.size()),
                                        .scale = scale,
                                        .base = std::span(plain.base).first(4)},
                                       {}, x);
  expect_near(head, u, 1e-15);
}

TEST(HyperConnections, ANanInOneCopyReachesEverything) {
  Golden golden;
  golden.x[2] = std::nan("");
  const ref::Mix mix = golden.mix();
  for (const auto* array : {&mix.m, &mix.pre, &mix.post, &mix.c}) {
    for (const double value : *array) EXPECT_TRUE(std::isnan(value));
  }
}

}  // namespace
}  // namespace moxie
