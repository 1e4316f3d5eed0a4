// SPDX-License-Identifier: Apache-2.0
// Every instruction set gives the bytes and the statistics of plain C++, bit for bit.
#include "quantize/row_kernels.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formats/bf16.hpp"
#include "fp4_values.hpp"
#include "quantize/row_scalars.hpp"
#include "support/threads.hpp"

namespace moxie {
namespace {

constexpr std::uint64_t kRows = 7;
constexpr std::uint64_t kCols = 192;

struct Source {
  std::string name;
  std::function<float(std::mt19937_64&)> value;
};

float normal(std::mt19937_64& random) {
  return static_cast<float>(std::normal_distribution<double>()(random));
}

float finite_bits(std::mt19937_64& random) {
  const auto bits = static_cast<std::uint32_t>(random());
  const bool is_finite = (bits & 0x7F800000U) != 0x7F800000U;
  return std::bit_cast<float>(is_finite ? bits : bits & 0xBFFFFFFFU);
}

std::vector<Source> sources() {
  using Random = std::mt19937_64;
  const auto whole = [](Random& random, int most) {
    return static_cast<float>(static_cast<int>(random() % (2 * static_cast<unsigned>(most) + 1)) -
                              most);
  };
  return {
      {"gaussian", normal},
      {"any bits", finite_bits},
      {"denormal", [](Random& random) { return std::ldexp(normal(random), -140); }},
      {"about the least global", [](Random& random) { return std::ldexp(normal(random), -112); }},
      {"huge", [](Random& random) { return std::ldexp(std::fmod(normal(random), 1.0F), 127); }},
      {"signed zeros",
       [](Random& random) {
         const float zero = random() % 2 == 0 ? 0.0F : -0.0F;
         return random() % 40 == 0 ? normal(random) : zero;
       }},
      {"quarters up to 6", [=](Random& random) { return 0.25F * whole(random, 24); }},
      {"eighths, six apart in exponent",
       [=](Random& random) {
         return std::ldexp(whole(random, 48), -3 - static_cast<int>(random() % 7));
       }},
      {"outliers",
       [](Random& random) { return normal(random) * (random() % 50 == 0 ? 1e4F : 1e-3F); }},
      {"zeros", [](Random&) { return 0.0F; }},
  };
}

std::uint64_t bits_of_double(double value) { return std::bit_cast<std::uint64_t>(value); }

void expect_identical(const Quantised& got, const Quantised& wanted) {
  EXPECT_EQ(got.matrix.codes, wanted.matrix.codes);
  EXPECT_EQ(got.matrix.scales, wanted.matrix.scales);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(got.matrix.dequant_mul),
            std::bit_cast<std::uint32_t>(wanted.matrix.dequant_mul));
  const QuantStats& a = got.stats;
  const QuantStats& b = wanted.stats;
  EXPECT_EQ(a.elems, b.elems);
  EXPECT_EQ(a.blocks, b.blocks);
  EXPECT_EQ(a.zero_blocks, b.zero_blocks);
  EXPECT_EQ(a.saturated_blocks, b.saturated_blocks);
  EXPECT_EQ(a.underflowed_blocks, b.underflowed_blocks);
  EXPECT_EQ(a.clipped_elems, b.clipped_elems);
  EXPECT_EQ(a.flushed_elems, b.flushed_elems);
  EXPECT_EQ(a.raised_globals, b.raised_globals);
  EXPECT_EQ(bits_of_double(a.signal), bits_of_double(b.signal)) << a.signal << " " << b.signal;
  EXPECT_EQ(bits_of_double(a.noise), bits_of_double(b.noise)) << a.noise << " " << b.noise;
  EXPECT_EQ(bits_of_double(a.max_error), bits_of_double(b.max_error));
}

// All recipes on one matrix; NVFP4 under its own global and under one that saturates some blocks.
void expect_portable_results(const MatrixRef& matrix, const RowKernels& kernels) {
  for (const Nvfp4Recipe recipe :
       {Nvfp4Recipe::amax, Nvfp4Recipe::mse, Nvfp4Recipe::four_over_six, Nvfp4Recipe::fp8_closed}) {
    SCOPED_TRACE(name_of(recipe));
    const Quantised wanted = quantise_nvfp4(matrix, {.recipe = recipe}, kPortableRowKernels);
    expect_identical(quantise_nvfp4(matrix, {.recipe = recipe}, kernels), wanted);
    const Nvfp4Options given = {
        .recipe = recipe,
        .dequant_mul = std::max(wanted.matrix.dequant_mul * 0.37F, kNvfp4LeastGlobal)};
    expect_identical(quantise_nvfp4(matrix, given, kernels),
                     quantise_nvfp4(matrix, given, kPortableRowKernels));
  }
  for (const Mxfp4Recipe recipe :
       {Mxfp4Recipe::ceil, Mxfp4Recipe::floor, Mxfp4Recipe::even, Mxfp4Recipe::mse}) {
    SCOPED_TRACE(name_of(recipe));
    expect_identical(quantise_mxfp4(matrix, recipe, kernels),
                     quantise_mxfp4(matrix, recipe, kPortableRowKernels));
  }
}

class InstructionSet : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const RowKernels* kernels : usable_row_kernels()) {
      if (kernels->name == GetParam()) kernels_ = kernels;
    }
    if (kernels_ == nullptr) GTEST_SKIP() << "this processor has no " << GetParam();
  }
  const RowKernels* kernels_ = nullptr;
};

TEST_P(InstructionSet, GivesTheBytesAndStatisticsOfPlainCppForFloats) {
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const test::Threads one(1);
  for (const Source& source : sources()) {
    SCOPED_TRACE(source.name);
    std::vector<float> values(kRows * kCols);
    for (float& value : values) value = source.value(random);
    expect_portable_results(test::ref_of(values, kRows, kCols), *kernels_);
  }
}

TEST_P(InstructionSet, GivesTheBytesAndStatisticsOfPlainCppForBf16AtOddAddresses) {
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const test::Threads one(1);
  constexpr std::uint64_t kStride = kCols + 3;
  for (const Source& source : sources()) {
    SCOPED_TRACE(source.name);
    std::vector<std::byte> bytes(1 + kRows * kStride * 2, std::byte{0x7F});  // gaps hold NaN
    for (std::uint64_t row = 0; row < kRows; ++row) {
      for (std::uint64_t col = 0; col < kCols; ++col) {
        const std::uint16_t bits = encode_bf16(0.9F * source.value(random));
        std::memcpy(bytes.data() + 1 + (row * kStride + col) * 2, &bits, 2);
      }
    }
    expect_portable_results({.data = bytes.data() + 1,
                             .dtype = DType::bf16,
                             .rows = kRows,
                             .cols = kCols,
                             .row_stride = kStride},
                            *kernels_);
  }
}

TEST_P(InstructionSet, FindsTheLargestBitsWhereverTheyAre) {
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (const std::uint32_t largest : {0x00000001U, 0x3F800000U, 0x7F800000U, 0x7FC00001U}) {
    for (unsigned at = 0; at < 48; ++at) {
      std::vector<float> values(48, std::bit_cast<float>(largest - (largest > 1 ? 0x10000U : 1U)));
      values[at] = std::bit_cast<float>(largest | (random() % 2 == 0 ? 0x80000000U : 0U));
      EXPECT_EQ(kernels_->largest_bits(values.data(), DType::f32, 48), largest);
      if ((largest & 0xFFFFU) != 0) continue;
      std::vector<std::uint16_t> halves;
      for (const float value : values)
        halves.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
      EXPECT_EQ(kernels_->largest_bits(halves.data(), DType::bf16, 48), largest);
    }
  }
  EXPECT_EQ(kernels_->largest_bits(nullptr, DType::f32, 0), 0U);
}

INSTANTIATE_TEST_SUITE_P(RowKernels, InstructionSet, testing::Values("portable", "avx2", "avx512"),
                         [](const auto& each) { return each.param; });

TEST(RowKernels, TheLastOfThemRunsEverywhere) {
  EXPECT_EQ(usable_row_kernels().back(), &kPortableRowKernels);
}

TEST(RowKernels, AFloatIsAboveABoundIfItIsAboveTheFloatBelowIt) {
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 20000; ++i) {
    const float near = std::abs(finite_bits(random)) + std::numeric_limits<float>::denorm_min();
    const double bound =
        static_cast<double>(near) * (1 + std::ldexp(static_cast<double>(random() % 5) - 2, -26));
    const float below = float_not_above(bound);
    for (const float value : {near, std::nextafter(near, 0.0F), std::nextafter(near, HUGE_VALF)})
      ASSERT_EQ(value > below, static_cast<double>(value) > bound) << value << " " << bound;
  }
  constexpr float kMost = std::numeric_limits<float>::max();
  EXPECT_EQ(float_not_above(1e300), kMost);
}

}  // namespace
}  // namespace moxie
