// SPDX-License-Identifier: Apache-2.0
// ShardPlan to its document and back.
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "formats/block_format.hpp"
#include "plan/layout.hpp"

namespace moxie {

namespace {

constexpr std::string_view kSchema = "moxie.plan/1";

// One decimal, as documents show percentages.
double one_decimal(double value) { return std::round(value * 10.0) / 10.0; }

template <class Unit>
Json slice_json(Segment tensor, std::string_view unit, const UnitRange<Unit>& range) {
  Json slice;
  slice.set("tensor", name_of(tensor))
      .set("unit", unit)
      .set("src", range.src.value)
      .set("count", range.count.value);
  slice.set("dst", range.dst.value).set("zero", range.zero().value);
  return slice;
}

Json slices_json(const InterSlice& slice, bool gated) {
  Json slices = Json::array();
  if (gated) slices.push_back(slice_json(Segment::gate, "row", slice.rows));
  slices.push_back(slice_json(Segment::up, "row", slice.rows));
  slices.push_back(slice_json(Segment::down, "byte", slice.bytes));
  if (gated) slices.push_back(slice_json(Segment::gate_scale, "row", slice.rows));
  slices.push_back(slice_json(Segment::up_scale, "row", slice.rows));
  slices.push_back(slice_json(Segment::down_scale, "group", slice.groups));
  return slices;
}

Json axis_json(const AxisPlan& axis) {
  Json json;
  json.set("axis", axis.axis)
      .set("original", axis.original.value)
      .set("virtual", axis.virtual_global.value);
  json.set("local", axis.local.value).set("kernel", axis.kernel.value).set("unit", axis.unit.value);
  json.set("overhead_pct", one_decimal(axis.overhead_pct));
  json.set("kernel_overhead_pct", one_decimal(axis.kernel_overhead_pct));
  return json;
}

Json rank_json(const RankPlan& rank, bool gated) {
  Json experts = Json::array();
  experts.push_back(rank.experts.first);
  experts.push_back(rank.experts.end);
  Json json;
  json.set("rank", rank.rank).set("tp_rank", rank.tp_rank).set("ep_rank", rank.ep_rank);
  json.set("experts", std::move(experts)).set("slices", slices_json(rank.slice, gated));
  json.set("bytes_layer", rank.bytes_layer).set("bytes_total", rank.bytes_total);
  return json;
}

// Reads fields of one document, naming the field that does not fit.
class Reader {
 public:
  explicit Reader(std::string_view origin) : origin_(origin) {}

  [[noreturn]] void refuse(std::string_view field, std::string_view got = {}) const {
    throw Error(ErrorCode::input, {.code = "MOXIE-K006",
                                   .message = "plan has no usable field " + std::string(field),
                                   .where = {.file = std::string(origin_)},
                                   .got = std::string(got)});
  }
  [[nodiscard]] const Json& field(const Json& json, std::string_view key) const {
    const Json* value = json.find(key);
    if (value == nullptr) refuse(key);
    return *value;
  }
  [[nodiscard]] std::uint64_t number(const Json& json, std::string_view key) const {
    constexpr std::uint64_t kAbsent = ~std::uint64_t{0};
    const Json& value = field(json, key);
    const std::uint64_t number = value.as_unsigned(kAbsent);
    if (number == kAbsent) refuse(key, value.dump_compact());
    return number;
  }
  [[nodiscard]] unsigned small_number(const Json& json, std::string_view key) const {
    const std::uint64_t value = number(json, key);
    if (value > (std::uint64_t{1} << 20)) refuse(key, std::to_string(value));
    return static_cast<unsigned>(value);
  }
  // The enumerator whose name stands in the field.
  template <class Enum>
  [[nodiscard]] Enum named(const Json& json, std::string_view key, unsigned count) const {
    const std::string text = field(json, key).as_string();
    for (unsigned value = 0; value < count; ++value) {
      if (name_of(static_cast<Enum>(value)) == text) return static_cast<Enum>(value);
    }
    refuse(key, text);
  }

 private:
  std::string_view origin_;
};

// Sizes beyond this are refused before any arithmetic with them.
constexpr std::uint64_t kMaxWidth = std::uint64_t{1} << 24;

AxisPlan read_axis(const Reader& read, const Json& json) {
  AxisPlan axis{.axis = read.field(json, "axis").as_string(),
                .original = Elems{read.number(json, "original")},
                .virtual_global = Elems{read.number(json, "virtual")},
                .local = Elems{read.number(json, "local")},
                .kernel = Elems{read.number(json, "kernel")},
                .unit = Elems{read.number(json, "unit")}};
  const auto percent = [&](Elems enlarged) {
    return 100.0 *
           (static_cast<double>(enlarged.value) / static_cast<double>(axis.original.value) - 1.0);
  };
  for (const Elems length :
       {axis.original, axis.virtual_global, axis.local, axis.kernel, axis.unit}) {
    if (length.value == 0 || length.value > kMaxWidth)
      read.refuse("axes", std::to_string(length.value));
  }
  axis.overhead_pct = percent(axis.virtual_global);
  axis.kernel_overhead_pct = percent(axis.kernel * (axis.virtual_global.value / axis.local.value));
  return axis;
}

template <class Unit>
UnitRange<Unit> read_range(const Reader& read, const Json& slices, Segment tensor) {
  for (const Json& slice : slices.elements()) {
    if (read.field(slice, "tensor").as_string() != name_of(tensor)) continue;
    return {.src = Unit{read.number(slice, "src")},
            .count = Unit{read.number(slice, "count")},
            .dst = Unit{read.number(slice, "dst")}};
  }
  read.refuse("slices: " + std::string(name_of(tensor)));
}

RankPlan read_rank(const Reader& read, const Json& json) {
  const Json& experts = read.field(json, "experts");
  if (experts.elements().size() != 2) read.refuse("experts");
  const Json& slices = read.field(json, "slices");
  return {.rank = read.small_number(json, "rank"),
          .tp_rank = read.small_number(json, "tp_rank"),
          .ep_rank = read.small_number(json, "ep_rank"),
          .experts = {experts.elements()[0].as_unsigned(), experts.elements()[1].as_unsigned()},
          .slice = {.rows = read_range<Elems>(read, slices, Segment::up),
                    .bytes = read_range<PackedBytes>(read, slices, Segment::down),
                    .groups = read_range<ScaleGroups>(read, slices, Segment::down_scale)},
          .bytes_layer = read.number(json, "bytes_layer"),
          .bytes_total = read.number(json, "bytes_total")};
}

// What follows from the axis and the topology must be what the document states; a plan that was
// edited is not packed.
void check_consistent(const Reader& read, const ShardPlan& plan) {
  const AxisPlan& axis = plan.inter();
  const Elems unit{scale_group(plan.format)};
  const bool widths = axis.unit == unit && axis.local.value % unit.value == 0 &&
                      axis.kernel.value % unit.value == 0 &&
                      axis.original.value % unit.value == 0 && axis.kernel >= axis.local &&
                      axis.virtual_global == axis.local * plan.tp &&
                      axis.original <= axis.virtual_global;
  if (!widths) read.refuse("axes");
  if (plan.hidden == 0 || plan.hidden > kMaxWidth || plan.hidden % unit.value != 0)
    read.refuse("hidden");
  if (plan.experts == 0 || plan.experts > kMaxWidth || plan.ep > plan.experts)
    read.refuse("experts");
  for (unsigned i = 0; i < plan.ranks.size(); ++i) {
    const RankPlan& rank = plan.ranks[i];
    if (rank.rank != i || rank.tp_rank != i % plan.tp || rank.ep_rank != i / plan.tp)
      read.refuse("ranks");
    if (rank.experts != experts_of(plan.experts, plan.ep, rank.ep_rank)) read.refuse("experts");
    if (rank.slice != slice_inter(axis, rank.tp_rank, plan.format)) read.refuse("slices");
  }
  if (plan.layout != linear_layout(plan.hidden, axis.kernel, plan.format, plan.gated))
    read.refuse("layout");
}

PackedLayout read_layout(const Reader& read, const Json& json) {
  PackedLayout layout{.kind = read.named<LayoutKind>(json, "kind", 1),
                      .segments = {},
                      .expert_bytes = read.number(json, "expert_bytes"),
                      .stride = read.number(json, "stride")};
  for (const Json& segment : read.field(json, "segments").elements()) {
    layout.segments.push_back({.segment = read.named<Segment>(segment, "tensor", 12),
                               .offset = read.number(segment, "offset"),
                               .rows = read.number(segment, "rows"),
                               .row_bytes = read.number(segment, "row_bytes")});
  }
  return layout;
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
  json.set("schema", kSchema).set("model", plan.model).set("format", name_of(plan.format));
  json.set("tp", plan.tp).set("ep", plan.ep).set("target", name_of(plan.target));
  json.set("act_format", name_of(plan.act_format)).set("identity", plan.identity);
  json.set("hidden", plan.hidden)
      .set("experts", plan.experts)
      .set("layers", plan.layers)
      .set("gated", plan.gated);
  Json axes = Json::array();
  for (const AxisPlan& axis : plan.axes) axes.push_back(axis_json(axis));
  json.set("axes", std::move(axes));
  Json ranks = Json::array();
  for (const RankPlan& rank : plan.ranks) ranks.push_back(rank_json(rank, plan.gated));
  json.set("ranks", std::move(ranks));
  json.set("kernels", Json::object().set("route", nullptr).set("experts", plan.kernel));
  json.set("workspace_bytes", plan.workspace_bytes ? Json(*plan.workspace_bytes) : Json());
  return json;
}

ShardPlan plan_from_json(const Json& document, std::string_view origin) {
  const Reader read(origin);
  if (read.field(document, "schema").as_string() != kSchema) {
    read.refuse("schema", read.field(document, "schema").as_string());
  }
  ShardPlan plan;
  plan.model = read.field(document, "model").as_string();
  plan.format = read.named<BlockFormat>(document, "format", 2);
  plan.tp = read.small_number(document, "tp");
  plan.ep = read.small_number(document, "ep");
  plan.target = read.named<Target>(document, "target", 4);
  plan.act_format = read.named<ActFormat>(document, "act_format", 7);
  plan.identity = read.field(document, "identity").as_bool();
  plan.hidden = read.number(document, "hidden");
  plan.experts = read.number(document, "experts");
  plan.layers = read.number(document, "layers");
  plan.gated = read.field(document, "gated").as_bool();
  for (const Json& axis : read.field(document, "axes").elements())
    plan.axes.push_back(read_axis(read, axis));
  if (plan.axes.empty()) read.refuse("axes");
  for (const Json& rank : read.field(document, "ranks").elements())
    plan.ranks.push_back(read_rank(read, rank));
  if (plan.tp == 0 || plan.ep == 0 || plan.ranks.size() != std::uint64_t{plan.tp} * plan.ep)
    read.refuse("ranks");
  plan.kernel = read.field(read.field(document, "kernels"), "experts").as_string();
  const Json* layout = document.find("layout");
  plan.layout = layout != nullptr
                    ? read_layout(read, *layout)
                    : linear_layout(plan.hidden, plan.inter().kernel, plan.format, plan.gated);
  check_consistent(read, plan);
  return plan;
}

}  // namespace moxie
