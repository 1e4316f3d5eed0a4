// SPDX-License-Identifier: Apache-2.0
// A document to its ShardPlan: decisions are read, what follows from them is derived and must be
// the same.
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "formats/block_format.hpp"
#include "plan/engine.hpp"
#include "plan/plan_document.hpp"
#include "plan/ranks.hpp"

namespace moxie {

namespace {

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

ShardPlan plan_from_json(const Json& document, std::string_view origin) {
  const Reader read(origin);
  if (const std::string schema = read.field(document, "schema").as_string(); schema != kPlanSchema)
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