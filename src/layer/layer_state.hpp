// SPDX-License-Identifier: Apache-2.0
// What a layer holds and how it runs: its ranks one after another, on the CPU or in a stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/checked.hpp"
#include "base/writable_memory.hpp"
#include "kernels/registry/registry.hpp"
#include "layer/binding.hpp"
#include "layer/device_experts.hpp"
#include "moxie/layer.hpp"

namespace moxie {

inline constexpr std::uint64_t kWorkspaceAlign = 64;

// Rows of partial sums, [tokens, hidden] f32 each.
inline std::uint64_t partial_bytes(const ShardPlan& plan, std::uint64_t tokens) {
  return round_up(tokens * plan.hidden * sizeof(float), kWorkspaceAlign);
}

// Bytes of the sums between the ranks' kernels and y: none where a kernel writes y itself, as a
// layer of one rank lets it.
inline std::uint64_t partials_bytes(const ShardPlan& plan, const LayerSpec& spec,
                                    const ExpertsKernel& kernel, std::uint64_t tokens) {
  const bool one = spec.reduction == Reduction::caller || plan.ranks.size() == 1;
  const bool empty = std::ranges::any_of(
      plan.ranks, [](const RankPlan& rank) { return rank.slice.rows.count == Elems{0}; });
  return one && !empty && kernel.stores_y ? 0 : 2 * partial_bytes(plan, tokens);
}

// Bytes of the ids that one rank computes, [tokens, top_k] i32: none where every expert has one
// holder, who then computes all of its choices.
inline std::uint64_t own_ids_bytes(bool redundant, const LayerSpec& spec, std::uint64_t tokens) {
  if (!redundant) return 0;
  return round_up(tokens * spec.top_k * sizeof(std::int32_t), kWorkspaceAlign);
}

// Whether a kernel takes values of this type.
inline bool is_float(DType type) { return type == DType::f32 || type == DType::bf16; }

// Whether these are rows of `hidden` columns each, as many of one as of the other.
inline bool are_rows(const MatrixRef& x, const MutableMatrixRef& y, std::uint64_t hidden) {
  return x.cols == hidden && y.cols == hidden && y.rows == x.rows && x.row_stride >= hidden &&
         y.row_stride >= hidden && x.row_stride <= largest_stride(x.rows) &&
         y.row_stride <= largest_stride(y.rows) && is_float(x.dtype) && is_float(y.dtype);
}

// f32 [y.rows, y.cols] into y, on the host.
void store_rows(const float* from, const MutableMatrixRef& y);

// Whether one call may have so many slots.
inline bool fits(std::uint64_t tokens, std::uint64_t top_k) { return tokens <= kMaxSlots / top_k; }

struct MoeLayer::State {
  // One rank of the plan with its experts.
  struct HeldRank {
    PackedExperts packed;
    WritableMemory memory;       // of the blobs, where `packed` holds none
    std::span<std::byte> blobs;  // [local experts, stride], of either
    ExpertsShape shape;
    std::vector<std::int32_t> local_of_expert;  // [experts]
    std::vector<std::int32_t> local_of_local;   // [local experts] 0, 1, 2, …: for rows
    DeviceExperts on_device;                    // on a GPU, where `packed` then holds no blobs
    ActScales scales;                           // of policy warmup
    bool empty = false;                         // owns no real part of the axis: all of it is zero
  };

  ShardPlan plan;
  LayerSpec spec;
  const ExpertsKernel* kernel = nullptr;
  const PartialsKernel* partials = nullptr;  // on a GPU
  BlobOffsets offsets;
  std::vector<HeldRank> held;  // ascending by rank
  ExpertOwners owners;
  unsigned threads = 1;

  // Everything but the experts of `ranks`: refuses what can be refused without them.
  void bind(const ShardPlan& of, const LayerSpec& with, std::vector<unsigned> ranks);
  void hold(PackedExperts packed);
  void hold(const BlobSource& source, StagingMemory& staging);
  void sort_ranks();
  // A rank whose experts `header` names; room for them, on a GPU there.
  HeldRank& add_rank(PackedExperts header);
  void check_ranks(std::vector<unsigned> ranks) const;
  void check_header(const PackedExperts& header) const;
  // Place in `held` of the rank that owns the expert.
  [[nodiscard]] std::size_t require(unsigned rank, std::uint64_t expert) const;
  [[nodiscard]] bool accepts(const LayerIo& io) const;
  void run(const LayerIo& io, std::byte* workspace) const;
  [[nodiscard]] bool accepts(const RowsIo& io) const;
  // Whether the kernel of a layer of one rank writes the rows of y itself.
  [[nodiscard]] bool writes_rows() const;
  [[nodiscard]] CallStatus run_rows(const RowsIo& io, std::span<std::byte> workspace,
                                    void* stream) const;
  [[nodiscard]] CallStatus run_on_device(const LayerIo& io, std::byte* workspace,
                                         void* stream) const;
  // The call with the choices of other holders masked, in the first own_ids_bytes() of `room`.
  [[nodiscard]] LayerIo own_choices(const HeldRank& rank, const LayerIo& io, std::byte* room) const;
  void run_rank(const HeldRank& rank, const LayerIo& io, float* y, float* act_tap,
                std::byte* workspace) const;
  // The arguments of the kernel for one rank.
  [[nodiscard]] ExpertsArgs args_of(const HeldRank& rank, const LayerIo& io) const;
  // What a measuring call writes beside its sums.
  struct Measured {
    ActStats stats;
    std::uint32_t flags = 0;
  };
  void measure_on_device(const ExpertsArgs& args, Measured& measured) const;
  [[nodiscard]] std::vector<std::int32_t> host_ids(const LayerIo& io) const;
  [[nodiscard]] ActScales warm_up(const HeldRank& rank, const LayerIo& all, float margin,
                                  std::byte* workspace) const;
};

}  // namespace moxie
