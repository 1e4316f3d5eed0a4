// SPDX-License-Identifier: Apache-2.0
// A measured curve for bytes, stated rates for products.
#include "cli/bench_floor.hpp"

#include <algorithm>

namespace moxie::cli {

namespace {

constexpr double kH200Bf16Tflops = 690;
constexpr double kH200Fp8Tflops = 1310;

}  // namespace

std::optional<double> stated_tflops(const ShardPlan& plan) {
  if (plan.target != Target::sm90) return std::nullopt;
  switch (plan.act_format) {
    case ActFormat::bf16:
      return kH200Bf16Tflops;
    case ActFormat::fp8:
      return kH200Fp8Tflops;
    case ActFormat::fp8x2:
      return kH200Fp8Tflops / 2;  // every product twice
    case ActFormat::mxfp8:
    case ActFormat::nvfp4:
    case ActFormat::int8:
    case ActFormat::int8x2:
      break;
  }
  return std::nullopt;
}

BenchFloor floor_of(const ShardPlan& plan, const std::vector<BenchSetWork>& sets,
                    const ReadCurve& curve) {
  BenchFloor floor{.stated_tflops = stated_tflops(plan)};
  for (const BenchSetWork& set : sets) {
    const double read_us = curve.us_of(static_cast<double>(set.work.bytes_weights));
    const double flops_us =
        floor.stated_tflops ? static_cast<double>(set.work.flops) * 1e-6 / *floor.stated_tflops : 0;
    const auto count = static_cast<double>(sets.size());
    floor.read_us += read_us / count;
    floor.flops_us += flops_us / count;
    floor.us += std::max(read_us, flops_us) / count;
  }
  return floor;
}

}  // namespace moxie::cli
