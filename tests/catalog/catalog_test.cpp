// SPDX-License-Identifier: Apache-2.0
// The kernel table: names, order, and the reason of each refusal.
#include "moxie/catalog.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/forced_kernels.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

KernelProblem problem_of(const KernelEntry& kernel) {
  return {.target = kernel.target,
          .format = BlockFormat::mxfp4,
          .act_format = kernel.act_formats.front(),
          .hidden = kernel.hidden_multiple * 3};
}

TEST(KernelCatalog, HoldsThePortableKernelOfTheGpus) {
  const KernelEntry& kernel = kernel_catalog().back();
  EXPECT_EQ(kernel.name, "cuda.portable.experts");
  EXPECT_EQ(targets_of(kernel), (std::vector{Target::sm90, Target::sm100, Target::sm120}));
  EXPECT_FALSE(kernel.runs_on(Target::cpu));
  KernelProblem problem = problem_of(kernel);
  problem.target = Target::cpu;
  EXPECT_EQ(refusal(kernel, problem), "runs on sm90, sm100, sm120, the target is cpu");
  for (const Target target : targets_of(kernel)) {
    problem.target = target;
    EXPECT_EQ(refusal(kernel, problem), "");
  }
}

std::size_t place_of(std::string_view name) {
  const auto found = std::ranges::find(kernel_catalog(), name, &KernelEntry::name);
  return static_cast<std::size_t>(found - kernel_catalog().begin());
}

TEST(KernelCatalog, PrefersTheCpuKernelsOfTheWidestRegisters) {
  std::vector<std::string_view> names;
  for (const KernelEntry& kernel : kernel_catalog()) {
    if (kernel.target == Target::cpu) names.push_back(kernel.name);
    EXPECT_EQ(kernel.layout == LayoutKind::cpu_tiles, !kernel.cpu_features.empty()) << kernel.name;
  }
  EXPECT_EQ(names, (std::vector<std::string_view>{
                       "cpu.avx512.experts.bf16", "cpu.avx512.experts.int8", "cpu.avx2.experts.f32",
                       "cpu.avx2.experts.int8", "cpu.portable.experts"}));
  EXPECT_EQ(name_of(LayoutKind::cpu_tiles), "cpu_tiles");
}

TEST(KernelCatalog, AMachineWithoutAnInstructionSetIsToldWhichOneItLacks) {
  const KernelEntry& kernel = kernel_catalog()[place_of("cpu.avx512.experts.bf16")];
  std::vector<std::string> features(kernel.cpu_features.begin(), kernel.cpu_features.end());
  EXPECT_EQ(missing_features(kernel, features), "");
  for (std::size_t left_out = 0; left_out < features.size(); ++left_out) {
    std::vector<std::string> fewer = features;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(left_out));
    EXPECT_EQ(missing_features(kernel, fewer), features[left_out]);
    KernelProblem problem = problem_of(kernel);
    EXPECT_EQ(refusal(kernel, problem), "") << "any machine";
    problem.cpu_features = &fewer;
    EXPECT_EQ(refusal(kernel, problem),
              "needs " + features[left_out] + ", which this machine lacks");
  }
}

TEST(KernelCatalog, MoxieForceAllowsWholePartsOfANameAlone) {
  const KernelEntry& kernel = kernel_catalog()[place_of("cpu.avx2.experts.int8")];
  for (const std::string_view allowed :
       {"", "cpu", "cpu.avx2", "cpu.avx2.experts", "cpu.avx2.experts.int8"})
    EXPECT_TRUE(is_allowed(kernel, allowed)) << allowed;
  for (const std::string_view other :
       {"cpu.avx", "cpu.avx512", "cuda", "cpu.avx2.experts.int", "c"})
    EXPECT_FALSE(is_allowed(kernel, other)) << other;
  const test::ForcedKernels unknown("cpu.avx");
  EXPECT_EQ(test::refusal_of([] { (void)forced_kernels(); }).findings().front().code, "MOXIE-P025");
}

TEST(KernelCatalog, PrefersTheKernelsOfHopperToThePortableOne) {
  const std::size_t first = place_of("cuda.sm90.experts.fp8");
  const KernelEntry& kernel = kernel_catalog()[first + 1];
  EXPECT_EQ(kernel.name, "cuda.sm90.experts.fp16");
  for (const std::size_t at : {first, first + 1}) {
    EXPECT_EQ(targets_of(kernel_catalog()[at]), std::vector{Target::sm90});
    EXPECT_FALSE(kernel_catalog()[at].fallback);
  }
  EXPECT_TRUE(kernel_catalog().back().fallback);
  // Its columns are bounded, those of hidden and of inter alike.
  KernelProblem problem = problem_of(kernel);
  problem.hidden = kernel.columns_most;
  problem.inter = kernel.columns_most;
  EXPECT_EQ(refusal(kernel, problem), "");
  problem.inter += 1;
  EXPECT_EQ(refusal(kernel, problem), "takes products of up to 7680 columns, not 7744");
  problem.inter = 64;
  problem.kernel_align = 8192;  // what it gets is a multiple of both
  EXPECT_EQ(refusal(kernel, problem), "takes products of up to 7680 columns, not 8192");
  problem.kernel_align = 1;
  problem.local_experts = kernel.local_experts_most + 1;
  EXPECT_EQ(refusal(kernel, problem), "takes up to 12000 experts of a rank, not 12001");
  problem.local_experts = kernel.local_experts_most;
  problem.hidden = kernel.columns_most + kernel.hidden_multiple;
  EXPECT_EQ(refusal(kernel, problem), "takes products of up to 7680 columns, not 7744");
}

TEST(KernelCatalog, HoldsThePortableKernelOfTheCpu) {
  const KernelEntry& kernel = kernel_catalog()[place_of("cpu.portable.experts")];
  EXPECT_TRUE(kernel.fallback);
  EXPECT_TRUE(kernel.cpu_features.empty());
  EXPECT_EQ(kernel.target, Target::cpu);
  EXPECT_EQ(kernel.layout, LayoutKind::linear);
  EXPECT_EQ(name_of(kernel.layout), "linear");
  EXPECT_EQ(kernel.inter_multiple, 32U);
  EXPECT_EQ(kernel.hidden_multiple, 32U);
  EXPECT_TRUE(std::ranges::equal(
      kernel.act_formats,
      std::vector{ActFormat::bf16, ActFormat::fp8, ActFormat::fp8x2, ActFormat::mxfp8,
                  ActFormat::nvfp4, ActFormat::int8, ActFormat::int8x2}));
  EXPECT_EQ(kernel.route, "cpu.portable.route");
  EXPECT_TRUE(kernel.built);
}

TEST(KernelCatalog, ASumOrderGivesTheRoundingsOfAProduct) {
  const SumOrder blocked{.lanes = 8, .block = 256};
  EXPECT_EQ(blocked.roundings(32), 4U + 1 + 3 + 1);
  EXPECT_EQ(blocked.roundings(2048), 32U + 8 + 3 + 1);
  EXPECT_EQ(blocked.roundings(4096), 32U + 16 + 3 + 1);
  EXPECT_EQ(blocked.roundings(2080), 32U + 9 + 3 + 1);
  // One product after another.
  const SumOrder plain{.lanes = 1, .block = 1};
  EXPECT_EQ(plain.roundings(100), 1U + 100 + 0 + 1);
  const SumOrder coarse{.lanes = 8, .block = 256, .coarse = 100};
  EXPECT_EQ(coarse.roundings(2048), blocked.roundings(2048) + 100);
  // FP8 tensor cores keep 13 bits: 2^-10 of all magnitudes.
  for (const KernelEntry& kernel : kernel_catalog())
    EXPECT_LT(kernel.sum_order.roundings(4096), kernel.sum_order.coarse > 0 ? 16384U + 512 : 512U)
        << "the check says little about " << kernel.name;
}

TEST(KernelCatalog, NamesAreUniqueAddresses) {
  std::set<std::string_view> names;
  // place.variant.stage, with an arithmetic where there are several: cuda.sm90.experts.fp8.
  const std::regex scheme(R"((cpu|cuda)\.[a-z0-9_]+\.[a-z0-9_]+(\.[a-z0-9_]+)?)");
  for (const KernelEntry& kernel : kernel_catalog()) {
    EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name;
    EXPECT_TRUE(std::regex_match(std::string(kernel.name), scheme)) << kernel.name;
    EXPECT_EQ(kernel.name.starts_with("cpu."), kernel.target == Target::cpu) << kernel.name;
  }
}

TEST(KernelCatalog, EveryEntryTakesSomeProblemAndIsCompleteData) {
  for (const KernelEntry& kernel : kernel_catalog()) {
    ASSERT_FALSE(kernel.act_formats.empty()) << kernel.name;
    EXPECT_EQ(std::set(kernel.act_formats.begin(), kernel.act_formats.end()).size(),
              kernel.act_formats.size());
    // Every kernel reads whole scale groups of the wider format.
    EXPECT_EQ(kernel.inter_multiple % 32, 0U) << kernel.name;
    EXPECT_EQ(kernel.hidden_multiple % 32, 0U) << kernel.name;
    for (const BlockFormat format : kernel.formats) {
      for (const ActFormat act_format : kernel.act_formats) {
        KernelProblem problem = problem_of(kernel);
        problem.format = format;
        problem.act_format = act_format;
        EXPECT_EQ(refusal(kernel, problem), "");
      }
    }
  }
}

TEST(Refusal, NamesTheTarget) {
  const KernelEntry& kernel = kernel_catalog()[0];
  for (const Target target : {Target::sm90, Target::sm100, Target::sm120}) {
    KernelProblem problem = problem_of(kernel);
    problem.target = target;
    EXPECT_EQ(refusal(kernel, problem),
              "runs on cpu, the target is " + std::string(name_of(target)));
  }
}

TEST(Refusal, NamesTheActivationFormats) {
  const KernelEntry& kernel = kernel_catalog().back();
  for (unsigned i = 0; i < 7; ++i) {
    const auto act_format = static_cast<ActFormat>(i);
    KernelProblem problem = problem_of(kernel);
    problem.act_format = act_format;
    const bool known =
        std::ranges::find(kernel.act_formats, act_format) != kernel.act_formats.end();
    EXPECT_EQ(refusal(kernel, problem), known ? ""
                                              : "takes act_format bf16, fp8, mxfp8, nvfp4, not " +
                                                    std::string(name_of(act_format)));
  }
}

TEST(Refusal, NamesTheFormatOfTheWeights) {
  for (const KernelEntry& kernel : kernel_catalog()) {
    for (const BlockFormat format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
      KernelProblem problem = problem_of(kernel);
      problem.format = format;
      const bool known = std::ranges::find(kernel.formats, format) != kernel.formats.end();
      EXPECT_EQ(refusal(kernel, problem),
                known ? "" : "takes no weights of " + std::string(name_of(format)));
    }
  }
}

TEST(Refusal, NamesTheMultipleAndTheWidth) {
  const KernelEntry& kernel = kernel_catalog()[0];
  for (const std::uint64_t hidden : {1U, 16U, 31U, 33U, 48U}) {
    KernelProblem problem = problem_of(kernel);
    problem.hidden = hidden;
    EXPECT_EQ(refusal(kernel, problem),
              "needs hidden to be a multiple of 32, got " + std::to_string(hidden));
  }
}

TEST(Refusal, SaysTheFirstReasonOfSeveral) {
  const KernelEntry& kernel = kernel_catalog()[0];
  const KernelProblem problem{.target = Target::sm90, .act_format = ActFormat::int8, .hidden = 1};
  EXPECT_TRUE(refusal(kernel, problem).starts_with("runs on cpu"));
}

TEST(HostCpu, DescribesThisMachine) {
  const HostCpu host = host_cpu();
  EXPECT_FALSE(host.name.empty());
  EXPECT_GE(host.threads, 1U);
  EXPECT_LE(host.threads, std::max(1U, std::thread::hardware_concurrency()) * 2);
  EXPECT_EQ(std::set(host.features.begin(), host.features.end()).size(), host.features.size());
  const auto has = [&](const char* feature) {
    return std::ranges::find(host.features, feature) != host.features.end();
  };
  for (const char* wide : {"avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_vbmi"}) {
    EXPECT_TRUE(!has(wide) || has("avx512f")) << wide;
  }
  EXPECT_TRUE(!has("avx512f") || has("avx2"));
}

}  // namespace
}  // namespace moxie
