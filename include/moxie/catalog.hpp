// SPDX-License-Identifier: Apache-2.0
// Every kernel as data: what it runs on, which layout it reads, which problems it takes, and why
// not the others.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/types.hpp"

namespace moxie {

// How one expert's bytes lie inside its blob.
enum class LayoutKind : std::uint8_t {
  linear,    // each tensor row major, one after another
  cpu_tiles  // the same offsets; codes and scales of 16 rows at a time as CPU kernels read them
};
MOXIE_API std::string_view name_of(LayoutKind layout);

// What a kernel is asked to run, as one rank sees it.
struct KernelProblem {
  Target target = Target::cpu;
  BlockFormat format = BlockFormat::mxfp4;
  ActFormat act_format = ActFormat::bf16;
  std::uint64_t hidden = 0;
  std::uint64_t inter = 0;          // of a rank, before the kernel's own padding
  std::uint64_t kernel_align = 1;   // that the caller asks for on top of it
  std::uint64_t local_experts = 0;  // of the rank that holds most
  bool redundant_experts = false;   // experts lie on several ranks
  // Instruction sets of the machine that is to run it, as HostCpu names them; null: any machine.
  const std::vector<std::string>* cpu_features = nullptr;
};

// How a kernel adds up the products of a row: products are exact, `lanes` partial sums run side by
// side through each `block` of terms, the blocks' partial sums are added up lane by lane, and the
// lanes at the end as a tree.
struct SumOrder {
  std::uint64_t lanes = 1;
  std::uint64_t block = 1;
  // What the sums of a tensor core with fewer bits than fp32 count as.
  std::uint64_t coarse = 0;
  // Numbers below 2^-126 count as 0 on their way through a sum, and so do activations.
  bool flushes_subnormals = false;

  // Roundings that a product passes until the sum is finished and multiplied by its global scale;
  // the error bound of the numeric check is a multiple of it.
  [[nodiscard]] MOXIE_API std::uint64_t roundings(std::uint64_t terms) const;
};

struct KernelEntry {
  std::string_view name;              // its address everywhere: "cpu.portable.experts"
  std::uint64_t inter_multiple = 1;   // local intermediate width is padded to this
  std::uint64_t hidden_multiple = 1;  // hidden must be a multiple of this
  std::uint64_t local_experts_most = ~std::uint64_t{0};
  std::uint64_t columns_most = ~std::uint64_t{0};  // of the larger of hidden and inter
  std::span<const BlockFormat> formats;            // of the weights
  std::span<const ActFormat> act_formats;
  std::span<const std::string_view> cpu_features{};  // that its code uses
  SumOrder sum_order{};
  std::string_view route{};                // the routing kernel that goes with it
  std::span<const Target> more_targets{};  // that it runs on beside `target`
  Target target = Target::cpu;
  LayoutKind layout = LayoutKind::linear;
  bool redundant_experts = false;  // calls leave choices to a rank that holds them too
  bool fallback = false;           // correct, and slow: a plan that takes it says so
  bool built = false;              // this binary holds its code

  [[nodiscard]] MOXIE_API bool runs_on(Target other) const;
};

// All kernels in order of preference: the first that supports a problem is planned.
MOXIE_API std::span<const KernelEntry> kernel_catalog();

// All targets of a kernel, the first one first.
MOXIE_API std::vector<Target> targets_of(const KernelEntry& kernel);

// Why `kernel` can not take `problem`; empty when it can.
MOXIE_API std::string refusal(const KernelEntry& kernel, const KernelProblem& problem);
// The instruction sets that a machine with `features` lacks for the kernel, with commas between;
// empty when it can run there.
MOXIE_API std::string missing_features(const KernelEntry& kernel,
                                       const std::vector<std::string>& features);

// The environment variable MOXIE_FORCE: the start of a kernel's name, whole parts of it. Plans then
// leave out all others; for tests and reports of faults. Empty: not set. Errors: Error(usage)
// MOXIE-P025 for a value that no kernel's name starts with.
MOXIE_API std::string forced_kernels();
// Whether `forced` allows the kernel; an empty one allows all.
MOXIE_API bool is_allowed(const KernelEntry& kernel, std::string_view forced);

// The machine that this process runs on.
struct HostCpu {
  std::string name;
  std::vector<std::string> features;  // instruction sets that code may use, e.g. "avx2"
  unsigned threads = 0;               // usable by this process
};
MOXIE_API HostCpu host_cpu();

}  // namespace moxie
