// SPDX-License-Identifier: Apache-2.0
// The list of vetted combinations. A new one is a line here and a run of the whole model behind it;
// there is no rule by which one follows from another.
#include "moxie/engines.hpp"

#include <algorithm>
#include <array>

namespace moxie {

namespace {

constexpr std::string_view kTensorParallelOnly = "tensor parallel only";

constexpr VettedTuple kTuples[] = {
    // Three ranks of compute capability 12.0: loading, prefill, decode and replay of DeepSeek-V4.
    {.model_type = "deepseek_v4",
     .device_capability = "12.0",
     .attention = "FLASHINFER_MLA_SPARSE_DSV4",
     .moe = "flashinfer_cutlass",
     .parallelism = kTensorParallelOnly,
     .kernel_align = 128},
};

// Substrings of the names under which engines offer such backends.
constexpr std::array<std::string_view, 5> kFused = {"mega_moe", "megamoe", "deepep", "pplx",
                                                    "all2all"};

}  // namespace

std::span<const VettedTuple> vetted_tuples() { return kTuples; }

std::string_view device_capability(Target target) {
  switch (target) {
    case Target::cpu:
      break;
    case Target::sm90:
      return "9.0";
    case Target::sm100:
      return "10.0";
    case Target::sm120:
      return "12.0";
  }
  return "none";
}

bool fuses_expert_parallelism(std::string_view moe) {
  std::string lower(moe);
  std::ranges::transform(lower, lower.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  return std::ranges::any_of(
      kFused, [&](std::string_view name) { return lower.find(name) != std::string::npos; });
}

std::vector<TupleMismatch> mismatches(const VettedTuple& tuple, const EngineProblem& problem) {
  std::vector<TupleMismatch> found;
  const auto compare = [&](std::string_view element, std::string_view expected,
                           std::string_view got) {
    if (expected != got) found.push_back({element, std::string(expected), std::string(got)});
  };
  compare("model type", tuple.model_type, problem.model_type);
  compare("device capability", tuple.device_capability, device_capability(problem.target));
  compare("attention backend", tuple.attention, problem.attention);
  compare("MoE backend", tuple.moe, problem.moe);
  const std::string expert_parallel = "expert parallel " + std::to_string(problem.ep);
  compare("parallelism", tuple.parallelism,
          problem.ep == 1 ? kTensorParallelOnly : std::string_view(expert_parallel));
  return found;
}

std::string to_string(const VettedTuple& tuple) {
  std::string text(tuple.model_type);
  for (const std::string_view element :
       {tuple.device_capability, tuple.attention, tuple.moe, tuple.parallelism})
    text += ", " + std::string(element);
  return text;
}

}  // namespace moxie
