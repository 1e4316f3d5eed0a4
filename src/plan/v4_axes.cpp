// SPDX-License-Identifier: Apache-2.0
// The axes of DeepSeek-V4 beside the experts' own. Sizes are in elements; stored entries come last.
#include <algorithm>
#include <numeric>

#include "base/checked.hpp"
#include "moxie/plan.hpp"

namespace moxie {

namespace {

double overhead_pct(std::uint64_t enlarged, std::uint64_t original) {
  return 100.0 * (static_cast<double>(enlarged) / static_cast<double>(original) - 1.0);
}

AxisPlan sized(Axis axis, std::uint64_t original, unsigned tp, std::uint64_t unit,
               std::uint64_t local) {
  AxisPlan plan;
  plan.axis = axis;
  plan.original = Elems{original};
  plan.unit = Elems{unit};
  plan.local = plan.kernel = Elems{local};
  plan.virtual_global = plan.local * tp;
  plan.overhead_pct = plan.kernel_overhead_pct = overhead_pct(local * tp, original);
  return plan;
}

// Attention backends have kernels for these counts of local heads.
std::uint64_t backend_heads(std::uint64_t local) {
  for (const std::uint64_t heads : {16U, 32U, 64U, 128U}) {
    if (local <= heads) return heads;
  }
  return local;
}

// The smallest count of `entries` that is whole tiles.
std::uint64_t whole_tiles(std::uint64_t entries, std::uint64_t tile) {
  return tile / std::gcd(entries, tile);
}

constexpr std::uint64_t kVocabAlign = 64;

}  // namespace

std::vector<AxisPlan> plan_v4_axes(const V4AxisSizes& sizes, unsigned tp) {
  const CutWidths& widths = sizes.widths;
  const std::uint64_t group_heads = sizes.heads / sizes.output_groups;
  // Output groups that are whole tiles of wq_b, wo_a and wo_b: one in every published model.
  const std::uint64_t groups = std::lcm(whole_tiles(widths.o_rank, widths.tile),
                                        whole_tiles(widths.head_dim * group_heads, widths.tile));
  const std::uint64_t head_unit = group_heads * groups;
  AxisPlan heads = sized(Axis::heads, sizes.heads, tp, head_unit,
                         round_up(divide_up(sizes.heads, tp), head_unit));
  heads.kernel = Elems{backend_heads(heads.local.value)};
  heads.kernel_overhead_pct = overhead_pct(heads.kernel.value * tp, sizes.heads);
  const std::uint64_t vocab_unit = std::lcm(kVocabAlign, std::uint64_t{tp});
  return {
      heads,
      sized(Axis::output_groups, sizes.output_groups, tp, groups, heads.local.value / group_heads),
      sized(Axis::shared_inter, sizes.shared_inter, tp, widths.tile,
            round_up(divide_up(sizes.shared_inter, tp), widths.tile)),
      sized(Axis::vocab, sizes.vocab, tp, vocab_unit, round_up(sizes.vocab, vocab_unit) / tp)};
}

UnitRange<Entries> cut_range(const TensorCut& cut, const AxisPlan& axis, unsigned tp_rank) {
  const UnitRange<Elems> part = slice_axis(axis, tp_rank);
  const auto entries = [&](Elems elems) {
    return Entries{divide_up(elems.value * cut.entries, cut.elems)};
  };
  const bool begins_whole =
      part.src.value * cut.entries % cut.elems == 0 || part.src == axis.original;
  MOXIE_CHECK(begins_whole, "a rank's part begins on a whole entry");
  const Entries src = entries(part.src);
  return {.src = src,
          .count = entries(part.src + part.count) - src,
          .dst = entries(cut.width == PartWidth::kernel ? axis.kernel : axis.local)};
}

const AxisPlan* ShardPlan::find(Axis axis) const {
  const auto found = std::ranges::find(axes, axis, &AxisPlan::axis);
  return found == axes.end() ? nullptr : &*found;
}

}  // namespace moxie
