// SPDX-License-Identifier: Apache-2.0
// ShardPlan to its document.
#include <cmath>
#include <string>
#include <utility>

#include "formats/block_format.hpp"
#include "plan/plan_document.hpp"

namespace moxie {

namespace {

// One decimal, as documents show percentages.
double one_decimal(double value) { return std::round(value * 10.0) / 10.0; }

template <class Unit>
Json slice_json(std::string_view tensor, std::string_view unit, const UnitRange<Unit>& range) {
  Json slice;
  slice.set("tensor", tensor)
      .set("unit", unit)
      .set("src", range.src.value)
      .set("count", range.count.value);
  slice.set("dst", range.dst.value).set("zero", range.zero().value);
  return slice;
}

// The tensors around the experts, in stored entries of their own.
void add_cut_slices(const ShardPlan& plan, unsigned tp_rank, Json& slices) {
  if (!plan.widths) return;
  for (const CutTensor& tensor : cut_tensors(*plan.widths)) {
    const UnitRange<Entries> range = cut_range(tensor.cut, *plan.find(tensor.cut.axis), tp_rank);
    Json slice = slice_json(tensor.tensor, name_of(tensor.cut.unit), range);
    if (tensor.cut.tail == Tail::minus_infinity) slice.set("tail", "-inf");
    slices.push_back(std::move(slice));
  }
}

Json slices_json(const ShardPlan& plan, const RankPlan& rank) {
  const InterSlice& slice = rank.slice;
  const bool gated = plan.gated;
  Json slices = Json::array();
  if (gated) slices.push_back(slice_json(name_of(Segment::gate), "row", slice.rows));
  slices.push_back(slice_json(name_of(Segment::up), "row", slice.rows));
  slices.push_back(slice_json(name_of(Segment::down), "byte", slice.bytes));
  if (gated) slices.push_back(slice_json(name_of(Segment::gate_scale), "row", slice.rows));
  slices.push_back(slice_json(name_of(Segment::up_scale), "row", slice.rows));
  slices.push_back(slice_json(name_of(Segment::down_scale), "group", slice.groups));
  if (plan.biases) {
    if (gated) slices.push_back(slice_json(name_of(Segment::gate_bias), "row", slice.rows));
    slices.push_back(slice_json(name_of(Segment::up_bias), "row", slice.rows));
    const Elems hidden{plan.hidden};
    const UnitRange<Elems> once{{}, rank.tp_rank == 0 ? hidden : Elems{}, hidden};
    slices.push_back(slice_json(name_of(Segment::down_bias), "row", once));
  }
  add_cut_slices(plan, rank.tp_rank, slices);
  return slices;
}

Json axis_json(const AxisPlan& axis) {
  Json json;
  json.set("axis", name_of(axis.axis))
      .set("original", axis.original.value)
      .set("virtual", axis.virtual_global.value);
  json.set("local", axis.local.value).set("kernel", axis.kernel.value).set("unit", axis.unit.value);
  if (axis.axis != Axis::moe_inter) json.set("backend_only", axis.backend_only().value);
  json.set("overhead_pct", one_decimal(axis.overhead_pct));
  json.set("kernel_overhead_pct", one_decimal(axis.kernel_overhead_pct));
  return json;
}

Json rank_json(const ShardPlan& plan, const RankPlan& rank) {
  const std::optional<ExpertRange> range = rank.experts.range();
  const bool as_range = plan.placement.kind == PlacementKind::contiguous && range;
  Json experts = Json::array();
  if (as_range) {
    experts.push_back(range->first);
    experts.push_back(range->end);
  } else {
    for (std::uint64_t slot = 0; slot < rank.experts.count(); ++slot)
      experts.push_back(rank.experts.id(slot));
  }
  Json json;
  json.set("rank", rank.rank).set("tp_rank", rank.tp_rank).set("ep_rank", rank.ep_rank);
  json.set(as_range ? "experts" : "expert_ids", std::move(experts));
  json.set("slices", slices_json(plan, rank));
  json.set("bytes_layer", rank.bytes_layer).set("bytes_total", rank.bytes_total);
  return json;
}

}  // namespace

Json to_json(const PackedLayout& layout) {
  Json segments = Json::array();
  for (const PackedSegment& segment : layout.segments) {
    Json json;
    json.set("tensor", name_of(segment.segment)).set("offset", segment.offset);
    json.set("rows", segment.rows).set("row_bytes", segment.row_bytes);
    segments.push_back(std::move(json));
  }
  Json json;
  json.set("kind", name_of(layout.kind))
      .set("expert_bytes", layout.expert_bytes)
      .set("stride", layout.stride);
  json.set("segments", std::move(segments));
  return json;
}

Json to_json(const ShardPlan& plan) {
  Json json;
  json.set("schema", kPlanSchema).set("model", plan.model).set("format", name_of(plan.format));
  json.set("tp", plan.tp).set("ep", plan.ep);
  if (plan.placement.kind != PlacementKind::contiguous)
    json.set("placement", name_of(plan.placement.kind));
  json.set("target", name_of(plan.target)).set("act_format", name_of(plan.act_format));
  if (plan.act_format == ActFormat::nvfp4) {
    json.set("act_scale", name_of(plan.act_scale));
    if (plan.act_scale == ActScale::warmup) json.set("act_margin", plan.act_margin);
  }
  json.set("identity", plan.identity);
  json.set("hidden", plan.hidden)
      .set("experts", plan.experts)
      .set("layers", plan.layers)
      .set("gated", plan.gated);
  if (plan.biases) json.set("biases", true);
  if (plan.recast) json.set("recast", true);
  Json axes = Json::array();
  for (const AxisPlan& axis : plan.axes) axes.push_back(axis_json(axis));
  json.set("axes", std::move(axes));
  if (plan.widths) {
    json.set("widths", Json::object()
                           .set("head_dim", plan.widths->head_dim)
                           .set("o_lora_rank", plan.widths->o_rank)
                           .set("fp8_tile", plan.widths->tile));
  }
  Json ranks = Json::array();
  for (const RankPlan& rank : plan.ranks) ranks.push_back(rank_json(plan, rank));
  json.set("ranks", std::move(ranks));
  if (plan.engine) {
    json.set("engine",
             Json::object().set("attention", plan.engine->attention).set("moe", plan.engine->moe));
  }
  json.set("kernels", Json::object().set("route", plan.route_kernel).set("experts", plan.kernel));
  json.set("workspace_bytes", plan.workspace_bytes ? Json(*plan.workspace_bytes) : Json());
  return json;
}

}  // namespace moxie
