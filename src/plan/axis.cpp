// SPDX-License-Identifier: Apache-2.0
// Sizes and cuts of the intermediate axis: all arithmetic in elements, converted to a tensor's own
// unit last.
#include <algorithm>

#include "base/checked.hpp"
#include "formats/block_format.hpp"
#include "moxie/plan.hpp"

namespace moxie {

namespace {

[[noreturn]] void refuse(ErrorCode code, Finding finding) { throw Error(code, std::move(finding)); }

void require_multiple(std::string_view what, Elems length, Elems unit) {
  if (length.value % unit.value == 0) return;
  refuse(ErrorCode::unsupported,
         {.code = "MOXIE-P003",
          .message = std::string(what) + " is no multiple of the scale group",
          .where = {.axis = "moe_inter"},
          .expected = "a multiple of " + std::to_string(unit.value),
          .got = std::to_string(length.value)});
}

double overhead_pct(std::uint64_t enlarged, std::uint64_t original) {
  return 100.0 * (static_cast<double>(enlarged) / static_cast<double>(original) - 1.0);
}

// The one place where a range changes its unit. All three lengths are multiples of the scale group,
// so that every conversion is exact.
template <class Unit, class Convert>
UnitRange<Unit> convert(const UnitRange<Elems>& range, Convert to_unit) {
  return {.src = to_unit(range.src), .count = to_unit(range.count), .dst = to_unit(range.dst)};
}

}  // namespace

AxisPlan plan_axis(Elems original, unsigned tp, Elems unit, Elems kernel_align) {
  if (tp == 0 || original.value == 0 || unit.value == 0 || kernel_align.value == 0) {
    refuse(ErrorCode::usage, {.code = "MOXIE-P001",
                              .message = "ranks, widths and alignments must be positive",
                              .where = {.axis = "moe_inter"}});
  }
  require_multiple("the intermediate size", original, unit);
  require_multiple("the kernel alignment", kernel_align, unit);
  AxisPlan axis;
  axis.original = original;
  axis.unit = unit;
  axis.local = Elems{round_up(divide_up(original.value, tp), unit.value)};
  axis.virtual_global = axis.local * tp;
  axis.kernel = Elems{round_up(axis.local.value, kernel_align.value)};
  axis.overhead_pct = overhead_pct(axis.virtual_global.value, original.value);
  axis.kernel_overhead_pct = overhead_pct(axis.kernel.value * tp, original.value);
  return axis;
}

UnitRange<Elems> slice_axis(const AxisPlan& axis, unsigned tp_rank) {
  const Elems start{std::min(axis.local.value * tp_rank, axis.original.value)};
  const Elems real = std::min(axis.local, axis.original - start);
  return {.src = start, .count = real, .dst = axis.kernel};
}

InterSlice slice_inter(const AxisPlan& axis, unsigned tp_rank, BlockFormat format) {
  const UnitRange<Elems> rows = slice_axis(axis, tp_rank);
  return {.rows = rows,
          .bytes = convert<PackedBytes>(rows, [](Elems e) { return to_packed_bytes(e); }),
          .groups =
              convert<ScaleGroups>(rows, [format](Elems e) { return to_scale_groups(e, format); })};
}

}  // namespace moxie
