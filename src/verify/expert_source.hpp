// SPDX-License-Identifier: Apache-2.0
// One expert at a time for the judge: out of a checkpoint, or joined from packed ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <vector>

#include "kernels/ref/reference.hpp"
#include "moxie/model.hpp"
#include "moxie/pack.hpp"
#include "moxie/plan.hpp"
#include "pack/scale_check.hpp"

namespace moxie {

// Hands out the checkpoint's own bytes, or what they mean where they are stored in another way,
// after refusing what pack() refuses. It holds until the next.
class CheckpointExperts {
 public:
  CheckpointExperts(const MoeModel& model, const LayerExperts& layer, const ShardPlan& plan)
      : model_(model), layer_(layer), act_scales_(consumes_act_scales(plan)) {}

  ref::Expert expert(std::uint64_t number);

 private:
  struct Rows {
    const std::uint8_t* first = nullptr;
    std::uint64_t stride = 0;
  };

  ref::Matrix matrix(std::uint64_t expert, ProjectionKind kind, const Projection& projection);
  Rows rows_of(const RowsView& view);
  Rows gathered_rows(const RowsView& view);
  [[nodiscard]] float act_dequant_mul(std::uint64_t expert, ProjectionKind kind,
                                      const Projection& projection) const;
  [[nodiscard]] double dequant_mul(std::uint64_t expert, ProjectionKind kind,
                                   const ScalarRef& scalar) const;

  const MoeModel& model_;
  const LayerExperts& layer_;
  bool act_scales_;                             // the plan consumes them
  std::list<std::vector<std::byte>> gathered_;  // of the expert that was handed out last
};

// Joins the ranks' parts of one expert at a time; what it hands out holds until the next.
class JoinedExperts {
 public:
  using BlobOf = std::function<std::span<const std::byte>(unsigned rank, std::uint64_t expert)>;

  JoinedExperts(const ShardPlan& plan, BlobOf blob_of);

  ref::Expert expert(std::uint64_t number);

 private:
  [[nodiscard]] const std::vector<std::byte>& tensor(Segment part, ProjectionKind kind) const;
  [[nodiscard]] ref::Matrix matrix(std::uint64_t expert, ProjectionKind kind,
                                   std::uint64_t columns) const;
  [[nodiscard]] double dequant_mul(std::uint64_t expert, ProjectionKind kind) const;
  [[nodiscard]] float act_dequant_mul(std::uint64_t expert, ProjectionKind kind) const;

  const ShardPlan& plan_;
  ExpertOwners owners_;
  BlobOf blob_of_;
  UnpackedExpert joined_;
};

}  // namespace moxie
