// SPDX-License-Identifier: Apache-2.0
// Engines that run the ranks of a plan: which pairs of their backends were verified together with
// padded axes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/types.hpp"

namespace moxie {

// What an engine is asked to run.
struct EngineProblem {
  std::string model_type;
  Target target = Target::cpu;
  std::string attention;  // backend names as the engine spells them
  std::string moe;
  unsigned tp = 1;
  unsigned ep = 1;
};

// One combination that was verified with padded axes, as a whole: none of its elements says
// anything about another combination.
struct VettedTuple {
  std::string_view model_type;
  std::string_view device_capability;
  std::string_view attention;
  std::string_view moe;
  std::string_view parallelism;    // "tensor parallel only"
  std::uint64_t kernel_align = 1;  // of the experts' intermediate axis
};
MOXIE_API std::span<const VettedTuple> vetted_tuples();

// "9.0", "10.0", "12.0"; "none" for a CPU.
MOXIE_API std::string_view device_capability(Target target);
// Whether a MoE backend fuses the exchange of tokens between ranks: it hands out experts by id
// itself, over all ranks, and can not take a plan's cut.
MOXIE_API bool fuses_expert_parallelism(std::string_view moe);

// One element in which a problem is not the tuple.
struct TupleMismatch {
  std::string_view element;  // "attention backend"
  std::string expected;
  std::string got;
};
// Empty when the tuple is the problem's.
MOXIE_API std::vector<TupleMismatch> mismatches(const VettedTuple& tuple,
                                                const EngineProblem& problem);
// "deepseek_v4, 12.0, FLASHINFER_MLA_SPARSE_DSV4, flashinfer_cutlass, tensor parallel only".
MOXIE_API std::string to_string(const VettedTuple& tuple);

}  // namespace moxie
