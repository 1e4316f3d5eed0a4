// SPDX-License-Identifier: Apache-2.0
// The whole choice of kernels is this list; the first that supports the problem wins.
#include "moxie/catalog.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <numeric>

#include "base/checked.hpp"
#include "base/cpu_features.hpp"
#include "base/parallel.hpp"
#include "moxie/status.hpp"

namespace moxie {

namespace {

constexpr std::array kPortableActFormats = {ActFormat::bf16,  ActFormat::fp8,   ActFormat::fp8x2,
                                            ActFormat::mxfp8, ActFormat::nvfp4, ActFormat::int8,
                                            ActFormat::int8x2};

constexpr std::array kPortableGpuActFormats = {ActFormat::bf16, ActFormat::fp8, ActFormat::mxfp8,
                                               ActFormat::nvfp4};

// Those whose values are exact in fp16.
constexpr std::array kFp16ActFormats = {ActFormat::bf16, ActFormat::fp8, ActFormat::mxfp8};

constexpr std::array kFp8ActFormats = {ActFormat::fp8};

constexpr std::array kBlockFormats = {BlockFormat::mxfp4, BlockFormat::nvfp4};
constexpr std::array kMxFormats = {BlockFormat::mxfp4};

constexpr std::array kOtherGpus = {Target::sm100, Target::sm120};

constexpr std::array kBf16Alone = {ActFormat::bf16};
constexpr std::array kInt8Formats = {ActFormat::int8, ActFormat::int8x2};

// Those of the kernels' target regions.
constexpr std::array<std::string_view, 8> kAvx512Int8 = {
    "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vbmi", "avx512_vnni"};
constexpr std::array<std::string_view, 9> kAvx512Bf16 = {
    "avx2",     "fma",         "f16c",        "avx512f",    "avx512bw",
    "avx512vl", "avx512_vbmi", "avx512_vnni", "avx512_bf16"};
constexpr std::array<std::string_view, 3> kAvx2 = {"avx2", "fma", "f16c"};

// A chain of up to 16 products in each half of a tile, which then go one by one into the sum.
constexpr SumOrder kTileChains = {.lanes = 1, .block = 16};
// The sums of a tile are whole numbers; few roundings before they are added.
constexpr SumOrder kTileIntegers = {.lanes = 8, .block = 16};

#if defined(__x86_64__)
constexpr bool kX86 = true;
#else
constexpr bool kX86 = false;
#endif

constexpr KernelEntry tile_kernel(std::string_view name, std::span<const ActFormat> act_formats,
                                  std::span<const std::string_view> features, SumOrder order) {
  return {.name = name,
          .inter_multiple = 32,
          .hidden_multiple = 32,
          .formats = kBlockFormats,
          .act_formats = act_formats,
          .cpu_features = features,
          .sum_order = order,
          .route = "cpu.portable.route",
          .target = Target::cpu,
          .layout = LayoutKind::cpu_tiles,
          .redundant_experts = true,
          .built = kX86};
}

constexpr KernelEntry kKernels[] = {
    tile_kernel("cpu.avx512.experts.bf16", kBf16Alone, kAvx512Bf16,
                {.lanes = 1, .block = 16, .flushes_subnormals = true}),
    tile_kernel("cpu.avx512.experts.int8", kInt8Formats, kAvx512Int8, kTileIntegers),
    tile_kernel("cpu.avx2.experts.f32", kBf16Alone, kAvx2, kTileChains),
    tile_kernel("cpu.avx2.experts.int8", kInt8Formats, kAvx2, kTileIntegers),
    {.name = "cpu.portable.experts",
     .inter_multiple = 32,
     .hidden_multiple = 32,
     .formats = kBlockFormats,
     .act_formats = kPortableActFormats,
     .sum_order = {.lanes = 8, .block = 256},
     .route = "cpu.portable.route",
     .target = Target::cpu,
     .layout = LayoutKind::linear,
     .redundant_experts = true,
     .fallback = true,
     .built = true},
    // FP8 tensor cores keep 13 bits below the largest product of 32: measured errors reach 2^-11.3
    // of their magnitudes, and 2^-10 is allowed.
    {.name = "cuda.sm90.experts.fp8",
     .inter_multiple = 64,
     .hidden_multiple = 64,
     .local_experts_most = 12'000,
     .columns_most = 7680,
     .formats = kMxFormats,
     .act_formats = kFp8ActFormats,
     .sum_order = {.lanes = 1, .block = 64, .coarse = 16384},
     .route = "cuda.portable.route",
     .target = Target::sm90,
     .layout = LayoutKind::linear,
     .built = MOXIE_CUDA_BUILT != 0},
    // Rows of activations stay in a block's shared memory, and counts of experts in another's: that
    // bounds both.
    {.name = "cuda.sm90.experts.fp16",
     .inter_multiple = 64,
     .hidden_multiple = 64,
     .local_experts_most = 12'000,
     .columns_most = 7680,
     .formats = kBlockFormats,
     .act_formats = kFp16ActFormats,
     // An MMA cuts every product off at the last place of its largest.
     .sum_order = {.lanes = 1, .block = 256},
     .route = "cuda.portable.route",
     .target = Target::sm90,
     .layout = LayoutKind::linear,
     .built = MOXIE_CUDA_BUILT != 0},
    {.name = "cuda.portable.experts",
     .inter_multiple = 32,
     .hidden_multiple = 32,
     .formats = kBlockFormats,
     .act_formats = kPortableGpuActFormats,
     .sum_order = {.lanes = 8, .block = 256},
     .route = "cuda.portable.route",
     .more_targets = kOtherGpus,
     .target = Target::sm90,
     .layout = LayoutKind::linear,
     .fallback = true,
     .built = MOXIE_CUDA_BUILT != 0},
};

}  // namespace

std::uint64_t SumOrder::roundings(std::uint64_t terms) const {
  const std::uint64_t in_lane = divide_up(std::min(terms, block), lanes);
  const auto tree = static_cast<std::uint64_t>(std::bit_width(lanes - 1));
  return in_lane + divide_up(terms, block) + tree + 1 + coarse;
}

std::string_view name_of(LayoutKind layout) {
  return layout == LayoutKind::linear ? "linear" : "cpu_tiles";
}

bool KernelEntry::runs_on(Target other) const {
  return other == target || std::ranges::find(more_targets, other) != more_targets.end();
}

std::vector<Target> targets_of(const KernelEntry& kernel) {
  std::vector<Target> targets(1 + kernel.more_targets.size(), kernel.target);
  std::ranges::copy(kernel.more_targets, targets.begin() + 1);
  return targets;
}

std::span<const KernelEntry> kernel_catalog() { return kKernels; }

std::string refusal(const KernelEntry& kernel, const KernelProblem& problem) {
  if (!kernel.runs_on(problem.target)) {
    std::string targets;
    for (const Target target : targets_of(kernel))
      targets += (targets.empty() ? "" : ", ") + std::string(name_of(target));
    return "runs on " + targets + ", the target is " + std::string(name_of(problem.target));
  }
  if (problem.cpu_features != nullptr) {
    const std::string missing = missing_features(kernel, *problem.cpu_features);
    if (!missing.empty()) return "needs " + missing + ", which this machine lacks";
  }
  if (std::ranges::find(kernel.formats, problem.format) == kernel.formats.end())
    return "takes no weights of " + std::string(name_of(problem.format));
  if (std::ranges::find(kernel.act_formats, problem.act_format) == kernel.act_formats.end()) {
    std::string known;
    for (const ActFormat format : kernel.act_formats)
      known += (known.empty() ? "" : ", ") + std::string(name_of(format));
    return "takes act_format " + known + ", not " + std::string(name_of(problem.act_format));
  }
  if (problem.hidden % kernel.hidden_multiple != 0) {
    return "needs hidden to be a multiple of " + std::to_string(kernel.hidden_multiple) + ", got " +
           std::to_string(problem.hidden);
  }
  const std::uint64_t columns =
      std::max(problem.hidden,
               round_up(problem.inter, std::lcm(kernel.inter_multiple, problem.kernel_align)));
  if (columns > kernel.columns_most) {
    return "takes products of up to " + std::to_string(kernel.columns_most) + " columns, not " +
           std::to_string(columns);
  }
  if (problem.local_experts > kernel.local_experts_most) {
    return "takes up to " + std::to_string(kernel.local_experts_most) + " experts of a rank, not " +
           std::to_string(problem.local_experts);
  }
  if (problem.redundant_experts && !kernel.redundant_experts)
    return "takes every expert on one rank, and the placement puts some on several";
  return {};
}

std::string missing_features(const KernelEntry& kernel, const std::vector<std::string>& features) {
  std::string missing;
  for (const std::string_view wanted : kernel.cpu_features) {
    if (std::ranges::find(features, wanted) == features.end())
      missing += (missing.empty() ? "" : ", ") + std::string(wanted);
  }
  return missing;
}

bool is_allowed(const KernelEntry& kernel, std::string_view forced) {
  if (!kernel.name.starts_with(forced)) return false;
  const std::string_view rest = kernel.name.substr(forced.size());
  return forced.empty() || rest.empty() || rest.front() == '.';
}

std::string forced_kernels() {
  const char* text = std::getenv("MOXIE_FORCE");  // NOLINT(concurrency-mt-unsafe)
  std::string forced = text == nullptr ? "" : text;
  const auto allowed = [&](const KernelEntry& kernel) { return is_allowed(kernel, forced); };
  if (std::ranges::any_of(kKernels, allowed)) return forced;
  std::string known;
  for (const KernelEntry& kernel : kKernels)
    known += (known.empty() ? "" : ", ") + std::string(kernel.name);
  throw Error(ErrorCode::usage, {.code = "MOXIE-P025",
                                 .message = "MOXIE_FORCE names no kernel",
                                 .expected = "the first parts of one of " + known,
                                 .got = forced});
}

HostCpu host_cpu() {
  return {.name = cpu_name(), .features = cpu_features(), .threads = usable_threads()};
}

}  // namespace moxie
