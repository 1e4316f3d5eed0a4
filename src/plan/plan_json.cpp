// SPDX-License-Identifier: Apache-2.0
// ShardPlan to its document and back.
#include <cmath>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "formats/block_format.hpp"
#include "plan/engine.hpp"
#include "plan/ranks.hpp"

namespace moxie {

namespace {

constexpr std::string_view kSchema = "moxie.plan/1";

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

// The experts' axis, sized again from what decides it. The kernel width stands for the alignment:
// it is at least the local width, so that rounding up to it gives it back.
AxisPlan read_inter_axis(const Reader& read, const Json& document, const ShardPlan& plan) {
  const Json::Array& axes = read.field(document, "axes").elements();
  if (axes.size() != (plan.widths ? kAxes : 1)) read.refuse("axes");
  const Elems original{read.number(axes.front(), "original")};
  const Elems kernel{read.number(axes.front(), "kernel")};
  for (const Elems length : {original, kernel}) {
    if (length.value > kMaxWidth) read.refuse("axes", std::to_string(length.value));
  }
  return plan_axis(original, plan.tp, Elems{scale_group(plan.format)}, kernel);
}

std::optional<CutWidths> read_widths(const Reader& read, const Json& document) {
  const Json* widths = document.find("widths");
  if (widths == nullptr) return std::nullopt;
  const CutWidths found{.head_dim = read.number(*widths, "head_dim"),
                        .o_rank = read.number(*widths, "o_lora_rank"),
                        .tile = read.number(*widths, "fp8_tile")};
  for (const std::uint64_t width : {found.head_dim, found.o_rank, found.tile}) {
    if (width == 0 || width > kMaxWidth) read.refuse("widths", std::to_string(width));
  }
  return found;
}

// The other axes likewise.
std::vector<AxisPlan> read_v4_axes(const Reader& read, const Json& document,
                                   const ShardPlan& plan) {
  const auto original = [&](Axis axis, std::uint64_t most) {
    const std::uint64_t size = read.number(
        read.field(document, "axes").elements()[static_cast<std::size_t>(axis)], "original");
    if (size == 0 || size > most) read.refuse("axes", std::to_string(size));
    return size;
  };
  constexpr std::uint64_t kMaxVocab = std::uint64_t{1} << 32;
  const V4AxisSizes sizes{.heads = original(Axis::heads, kMaxWidth),
                          .output_groups = original(Axis::output_groups, kMaxWidth),
                          .shared_inter = original(Axis::shared_inter, kMaxVocab),
                          .vocab = original(Axis::vocab, kMaxVocab),
                          .widths = *plan.widths};
  if (sizes.heads % sizes.output_groups != 0) read.refuse("axes", std::to_string(sizes.heads));
  return plan_v4_axes(sizes, plan.tp);
}

// The named kernel must exist and take this problem.
const KernelEntry& read_kernel(const Reader& read, const Json& document, const ShardPlan& plan) {
  const std::string name = read.field(read.field(document, "kernels"), "experts").as_string();
  for (const KernelEntry& kernel : kernel_catalog()) {
    if (kernel.name != name) continue;
    const std::string reason =
        refusal(kernel, with_placement({.target = plan.target,
                                        .format = plan.format,
                                        .act_format = plan.act_format,
                                        .hidden = plan.hidden,
                                        .inter = plan.inter().kernel.value},
                                       plan.placement, plan.experts, plan.ep));
    if (!reason.empty() || plan.inter().kernel.value % kernel.inter_multiple != 0)
      read.refuse("kernels: " + name, reason);
    return kernel;
  }
  read.refuse("kernels", name);
}

void read_kernels(const Reader& read, const Json& document, ShardPlan& plan) {
  if (const Json* engine = document.find("engine")) {
    plan.engine = {.attention = read.field(*engine, "attention").as_string(),
                   .moe = read.field(*engine, "moe").as_string()};
    plan.kernel = plan.route_kernel = plan.engine->moe;
    return;
  }
  const KernelEntry& kernel = read_kernel(read, document, plan);
  plan.kernel = kernel.name;
  plan.route_kernel = kernel.route;
}

// Every member that `expected` has must stand in the document with the same text; a plan that was
// edited is not packed.
void require_same(const Reader& read, const Json& expected, const Json& document) {
  for (const JsonMember& member : expected.members()) {
    const std::string got = read.field(document, member.key).dump_compact();
    if (got != member.value.dump_compact()) read.refuse(member.key, got.substr(0, 200));
  }
}

// The policy of nvfp4 activations; there is none for other formats.
void read_act_scale(const Reader& read, const Json& document, ShardPlan& plan) {
  if (plan.act_format != ActFormat::nvfp4) return;
  plan.act_scale = read.named<ActScale>(document, "act_scale", 4);
  if (plan.act_scale == ActScale::checkpoint && !plan.recast && !block_spec(plan.format).has_global)
    read.refuse("act_scale", name_of(plan.act_scale));
  if (plan.act_scale != ActScale::warmup) return;
  plan.act_margin = read.field(document, "act_margin").as_double();
  if (!(plan.act_margin >= 1 && plan.act_margin <= 0x1p20)) read.refuse("act_margin");
}

// The ids that the ranks of one expert-parallel group hold alike. Read for every placement with
// ids: what the ranks are derived into is then no larger than the document.
void read_placement(const Reader& read, const Json& document, ShardPlan& plan) {
  if (document.find("placement") == nullptr) return;
  const auto kind = read.named<PlacementKind>(document, "placement", 3);
  const bool implied = kind == PlacementKind::interleaved && plan.ep == 1;
  if (kind == PlacementKind::contiguous || implied) read.refuse("placement", name_of(kind));
  std::vector<std::vector<std::uint64_t>> map;
  const Json::Array& ranks = read.field(document, "ranks").elements();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<std::uint64_t> ids;
    for (const Json& id : read.field(ranks[rank], "expert_ids").elements())
      ids.push_back(id.as_unsigned(kMaxWidth));
    if (rank % plan.tp == 0) {
      map.push_back(std::move(ids));
    } else if (ids != map.back()) {
      read.refuse("expert_ids", "ranks of one group that differ");
    }
  }
  plan.placement = {.kind = PlacementKind::file, .map = std::move(map)};
  try {
    check_placement(plan.placement, plan.experts, plan.ep);
  } catch (const Error& error) {
    read.refuse("expert_ids", error.what());
  }
  if (kind == PlacementKind::interleaved) plan.placement = {.kind = kind};
}

// What decides the plan, from the document; the rest follows from it.
ShardPlan read_decision(const Reader& read, const Json& document) {
  ShardPlan plan;
  plan.model = read.field(document, "model").as_string();
  plan.format = read.named<BlockFormat>(document, "format", 2);
  plan.tp = read.small_number(document, "tp");
  plan.ep = read.small_number(document, "ep");
  plan.target = read.named<Target>(document, "target", 4);
  plan.act_format = read.named<ActFormat>(document, "act_format", 7);
  plan.hidden = read.number(document, "hidden");
  plan.experts = read.number(document, "experts");
  plan.layers = read.number(document, "layers");
  plan.gated = read.field(document, "gated").as_bool();
  if (const Json* biases = document.find("biases")) plan.biases = biases->as_bool();
  if (const Json* recast = document.find("recast")) plan.recast = recast->as_bool();
  read_act_scale(read, document, plan);
  const std::size_t ranks = read.field(document, "ranks").elements().size();
  if (plan.tp == 0 || plan.ep == 0 || ranks != std::size_t{plan.tp} * plan.ep) read.refuse("ranks");
  if (plan.recast && plan.format != BlockFormat::mxfp4) read.refuse("recast");
  if (plan.hidden == 0 || plan.hidden > kMaxWidth || plan.hidden % scale_group(plan.format) != 0)
    read.refuse("hidden");
  if (plan.experts > kMaxWidth || plan.ep > plan.experts) read.refuse("experts");
  read_placement(read, document, plan);
  const Json& workspace = read.field(document, "workspace_bytes");
  if (!workspace.is_null()) plan.workspace_bytes = read.number(document, "workspace_bytes");
  plan.widths = read_widths(read, document);
  plan.axes.push_back(read_inter_axis(read, document, plan));
  if (plan.widths) {
    const std::vector<AxisPlan> others = read_v4_axes(read, document, plan);
    plan.axes.insert(plan.axes.end(), others.begin(), others.end());
  }
  read_kernels(read, document, plan);
  derive_ranks(plan);
  if (plan.engine) require_vetted(plan);
  return plan;
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

ShardPlan plan_from_json(const Json& document, std::string_view origin) {
  const Reader read(origin);
  if (const std::string schema = read.field(document, "schema").as_string(); schema != kSchema)
    read.refuse("schema", schema);
  try {
    ShardPlan plan = read_decision(read, document);
    require_same(read, to_json(plan), document);
    const Json* layout = document.find("layout");
    if (layout != nullptr) require_same(read, to_json(plan.layout), *layout);
    return plan;
  } catch (const Error& error) {
    // What can not be planned is no plan.
    if (error.code() == ErrorCode::input) throw;
    read.refuse("axes", error.what());
  }
}

}  // namespace moxie
