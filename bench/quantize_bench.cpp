// SPDX-License-Identifier: Apache-2.0
// Times every recipe of the quantiser on one thread, with every instruction set that the machine
// has: BF16 and F32 rows, in cache (64 x 4096) and out of it (64 MB of BF16). Rates are by
// processor time; their bytes are those of the same matrix in BF16.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.hpp"
#include "formats/bf16.hpp"
#include "moxie/quantize.hpp"
#include "quantize/row_kernels.hpp"
#include "quantize/source_rows.hpp"
#include "support/threads.hpp"

namespace {

constexpr std::uint64_t kCols = 4096;
constexpr std::uint64_t kCachedRows = 64;
constexpr std::uint64_t kManyRows = 8192;

// Gaussian numbers that are bf16 numbers, by Box and Muller.
const std::vector<float>& values() {
  static const std::vector<float> numbers = [] {
    const moxie::Stream stream(1, {});
    std::vector<float> result(kManyRows * kCols);
    for (std::size_t i = 0; i < result.size(); i += 2) {
      const auto uniform = [&](std::size_t k) {
        return (static_cast<double>(stream.word(k) >> 11) + 0.5) * 0x1p-53;
      };
      const double radius = std::sqrt(-2 * std::log(uniform(i)));
      const double angle = 2 * std::numbers::pi * uniform(i + 1);
      const auto rounded = [](double value) {
        return moxie::decode_bf16(moxie::encode_bf16(static_cast<float>(0.02 * value)));
      };
      result[i] = rounded(radius * std::cos(angle));
      result[i + 1] = rounded(radius * std::sin(angle));
    }
    return result;
  }();
  return numbers;
}

const std::vector<std::uint16_t>& bf16_values() {
  static const std::vector<std::uint16_t> numbers = [] {
    std::vector<std::uint16_t> result;
    for (const float value : values()) result.push_back(moxie::encode_bf16(value));
    return result;
  }();
  return numbers;
}

moxie::MatrixRef matrix_of(moxie::DType dtype, std::uint64_t rows) {
  const void* data = dtype == moxie::DType::bf16 ? static_cast<const void*>(bf16_values().data())
                                                 : static_cast<const void*>(values().data());
  return {.data = data, .dtype = dtype, .rows = rows, .cols = kCols, .row_stride = kCols};
}

using Quantise = std::function<moxie::Quantised(const moxie::MatrixRef&)>;

void time_recipe(benchmark::State& state, const Quantise& quantise, moxie::DType dtype,
                 std::uint64_t rows) {
  const moxie::test::Threads one(1);
  const moxie::MatrixRef matrix = matrix_of(dtype, rows);
  for (auto _ : state) {
    moxie::Quantised result = quantise(matrix);
    benchmark::DoNotOptimize(result.stats.max_error);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(rows * kCols * 2));
}

void add(const std::string& name, const Quantise& quantise) {
  for (const moxie::DType dtype : {moxie::DType::bf16, moxie::DType::f32}) {
    for (const std::uint64_t rows : {kCachedRows, kManyRows}) {
      const std::string full = name + (dtype == moxie::DType::bf16 ? "/bf16" : "/f32") +
                               (rows == kCachedRows ? "/cached" : "/64MB");
      benchmark::RegisterBenchmark(full.c_str(), [=](benchmark::State& state) {
        time_recipe(state, quantise, dtype, rows);
      });
    }
  }
}

const bool kRegistered = [] {
  using moxie::Mxfp4Recipe;
  using moxie::Nvfp4Recipe;
  benchmark::AddCustomContext("instruction set chosen", moxie::usable_row_kernels().front()->name);
  for (const moxie::RowKernels* kernels : moxie::usable_row_kernels()) {
    const std::string name = kernels->name;
    // The first pass alone, which every recipe's time includes.
    add(name + "/amax", [kernels](const moxie::MatrixRef& matrix) {
      moxie::Quantised result;
      result.stats.max_error = moxie::finite_amax(matrix, *kernels);
      return result;
    });
    for (const auto recipe : {Nvfp4Recipe::amax, Nvfp4Recipe::mse, Nvfp4Recipe::four_over_six,
                              Nvfp4Recipe::fp8_closed}) {
      add(name + "/nvfp4/" + std::string(name_of(recipe)),
          [recipe, kernels](const moxie::MatrixRef& matrix) {
            return moxie::quantise_nvfp4(matrix, {.recipe = recipe}, *kernels);
          });
    }
    for (const auto recipe :
         {Mxfp4Recipe::ceil, Mxfp4Recipe::floor, Mxfp4Recipe::even, Mxfp4Recipe::mse}) {
      add(name + "/mxfp4/" + std::string(name_of(recipe)),
          [recipe, kernels](const moxie::MatrixRef& matrix) {
            return moxie::quantise_mxfp4(matrix, recipe, *kernels);
          });
    }
  }
  return true;
}();

}  // namespace
