// SPDX-License-Identifier: Apache-2.0
// The judge's problem from a checkpoint or from packed experts: the same weights by two ways that
// share no code before the judge.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "formats/act_quant.hpp"
#include "formats/block_format.hpp"
#include "kernels/ref/reference.hpp"
#include "moxie/catalog.hpp"
#include "moxie/verify.hpp"
#include "pack/scale_check.hpp"

namespace moxie {

namespace {

[[noreturn]] void refuse_problem(std::string message) {
  throw Error(ErrorCode::unsupported, {.code = "MOXIE-R001", .message = std::move(message)});
}

void check_problem(const ShardPlan& plan, const LayerSpec& spec, const Probe& probe) {
  if (!plan.gated || !ref::supports(spec.activation)) {
    refuse_problem("there is no reference for the activation function " +
                   std::string(name_of(spec.activation)) +
                   (plan.gated ? "" : " of experts without a gate"));
  }
  if (!ref::supports(plan.act_format)) {
    refuse_problem("there is no reference for act_format " + std::string(name_of(plan.act_format)));
  }
  if (spec.activation == Activation::clamped_swiglu && !(spec.activation_limit.value_or(0) > 0))
    refuse_problem("clamped_swiglu needs an activation limit greater than 0");
  const std::uint64_t slots = probe.tokens * probe.top_k;
  MOXIE_CHECK(probe.hidden == plan.hidden && probe.top_k == spec.top_k,
              "probe, plan and spec are of one layer");
  MOXIE_CHECK(probe.topk_ids.size() == slots && probe.topk_weights.size() == slots,
              "the probe is routed");
}

// x as the judge takes it.
std::vector<float> floats_of(const Probe& probe) {
  std::vector<float> x(probe.tokens * probe.hidden);
  const bool is_bf16 = probe.x_dtype == DType::bf16;
  MOXIE_CHECK(is_bf16 || probe.x_dtype == DType::f32, "x is bf16 or f32");
  MOXIE_CHECK(probe.x.size() == x.size() * (is_bf16 ? 2 : 4), "x has [tokens, hidden] elements");
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (is_bf16) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, probe.x.data() + i * sizeof bits, sizeof bits);
      x[i] = decode_bf16(bits);
    } else {
      std::memcpy(&x[i], probe.x.data() + i * sizeof(float), sizeof(float));
    }
  }
  return x;
}

const KernelEntry& entry_of(std::string_view kernel) {
  const auto entries = kernel_catalog();
  const auto found = std::ranges::find(entries, kernel, &KernelEntry::name);
  MOXIE_CHECK(found != entries.end(), "a planned kernel is in the catalog");
  return *found;
}

LayerReference judge(const ShardPlan& plan, const LayerSpec& spec, const Probe& probe,
                     std::function<ref::Expert(std::uint64_t)> expert) {
  const std::vector<float> x = floats_of(probe);
  // Columns beyond the real ones are zero and round nothing.
  const SumOrder& order = entry_of(plan.kernel).sum_order;
  ref::Problem problem{.format = plan.format,
                       .act_format = plan.act_format,
                       .activation = spec.activation,
                       .activation_limit = spec.activation_limit.value_or(0),
                       .hidden = plan.hidden,
                       .inter = plan.inter().original.value,
                       .experts = plan.experts,
                       .tokens = probe.tokens,
                       .top_k = probe.top_k,
                       .gate_up_roundings = order.roundings(plan.hidden),
                       .down_roundings = order.roundings(plan.inter().original.value),
                       .x = x.data(),
                       .topk_ids = probe.topk_ids.data(),
                       .topk_weights = probe.topk_weights.data(),
                       .expert = std::move(expert)};
  if (auto starts = group_boundaries(plan); !starts.empty())
    problem.part_starts = std::move(starts);
  ref::Result result = ref::run(problem);
  return {.tokens = probe.tokens,
          .hidden = probe.hidden,
          .y = std::move(result.y),
          .bound = std::move(result.bound),
          .magnitude = std::move(result.magnitude),
          .unquantised = std::move(result.unquantised)};
}

const std::uint8_t* octets(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

// Hands out the checkpoint's own bytes, after refusing what pack() refuses.
class CheckpointExperts {
 public:
  CheckpointExperts(const MoeModel& model, const LayerExperts& layer)
      : model_(model), layer_(layer) {}

  [[nodiscard]] ref::Expert expert(std::uint64_t number) const {
    const ExpertTensors& tensors = layer_.experts[number];
    return {.gate = matrix(number, ProjectionKind::gate, tensors.gate),
            .up = matrix(number, ProjectionKind::up, tensors.up),
            .down = matrix(number, ProjectionKind::down, tensors.down)};
  }

 private:
  [[nodiscard]] ref::Matrix matrix(std::uint64_t expert, ProjectionKind kind,
                                   const Projection& projection) const {
    const RowsView& scales = projection.block_scales;
    for (std::uint64_t row = 0; row < scales.rows; ++row) {
      const auto bytes = row_bytes(model_.checkpoint, scales, row);
      const std::size_t bad = first_bad_scale(layer_.format, bytes);
      if (bad == bytes.size()) continue;
      refuse_scale(model_.checkpoint, layer_, expert, *scales.tensor, row, bad, bytes[bad]);
    }
    return {.codes = first_byte(projection.codes),
            .codes_stride = projection.codes.row_stride,
            .scales = first_byte(scales),
            .scales_stride = scales.row_stride,
            .dequant_mul = dequant_mul(expert, kind, projection.dequant_mul)};
  }

  [[nodiscard]] const std::uint8_t* first_byte(const RowsView& view) const {
    return octets(model_.checkpoint.bytes(*view.tensor).subspan(view.offset));
  }

  [[nodiscard]] double dequant_mul(std::uint64_t expert, ProjectionKind kind,
                                   const TensorInfo* tensor) const {
    if (!block_spec(layer_.format).has_global) return 1;
    if (tensor == nullptr) {
      throw Error(ErrorCode::input, {.code = "MOXIE-M006",
                                     .message = std::string(name_of(kind)) + " has no global scale",
                                     .where = {.file = model_.checkpoint.path().string(),
                                               .layer = layer_.layer,
                                               .expert = expert},
                                     .expected = "an f32 scalar",
                                     .got = "none"});
    }
    try {
      return read_scalar(model_.checkpoint, *tensor);
    } catch (const Error& error) {
      Finding finding = error.findings().front();
      finding.where.layer = layer_.layer;
      finding.where.expert = expert;
      throw Error(error.code(), std::move(finding));
    }
  }

  const MoeModel& model_;
  const LayerExperts& layer_;
};

// Joins the ranks' parts of one expert at a time.
class JoinedExperts {
 public:
  JoinedExperts(const ShardPlan& plan, std::span<const PackedExperts> ranks)
      : plan_(plan), ranks_(ranks), joined_(make_unpacked(plan, std::byte{0xFF})) {}

  ref::Expert expert(std::uint64_t number) {
    for (std::vector<std::byte>& tensor : joined_.tensors)
      std::ranges::fill(tensor, std::byte{0xFF});
    for (const RankPlan& rank : plan_.ranks) {
      if (number < rank.experts.first || number >= rank.experts.end) continue;
      unpack_expert(plan_, rank, ranks_[rank.rank].blob(number), joined_);
    }
    return {.gate = matrix(number, ProjectionKind::gate, plan_.hidden),
            .up = matrix(number, ProjectionKind::up, plan_.hidden),
            .down = matrix(number, ProjectionKind::down, plan_.inter().original.value)};
  }

 private:
  // Segments are numbered part by part, projection by projection.
  [[nodiscard]] const std::vector<std::byte>& tensor(Segment part, ProjectionKind kind) const {
    return joined_.tensors[static_cast<std::size_t>(part) + static_cast<std::size_t>(kind)];
  }

  [[nodiscard]] ref::Matrix matrix(std::uint64_t expert, ProjectionKind kind,
                                   std::uint64_t columns) const {
    const auto& scales = tensor(Segment::gate_scale, kind);
    const std::uint64_t groups = to_scale_groups(Elems{columns}, plan_.format).value;
    if (const std::size_t bad = first_bad_scale(plan_.format, scales); bad != scales.size()) {
      throw Error(
          ErrorCode::input,
          {.code = "MOXIE-K003",
           .message = std::string(name_of(kind)) + " has a scale that is no number at row " +
                      std::to_string(bad / groups) + ", group " + std::to_string(bad % groups),
           .where = {.expert = expert},
           .hint = "pack the expert again from its checkpoint"});
    }
    return {.codes = octets(tensor(Segment::gate, kind)),
            .codes_stride = to_packed_bytes(Elems{columns}).value,
            .scales = octets(scales),
            .scales_stride = groups,
            .dequant_mul = dequant_mul(expert, kind)};
  }

  [[nodiscard]] double dequant_mul(std::uint64_t expert, ProjectionKind kind) const {
    if (!block_spec(plan_.format).has_global) return 1;
    float value = std::numeric_limits<float>::quiet_NaN();
    const auto& bytes = tensor(Segment::gate_dequant_mul, kind);
    if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
    if (!(std::isfinite(value) && value > 0)) {
      throw Error(ErrorCode::input,
                  {.code = "MOXIE-M007",
                   .message = std::string(name_of(kind)) + " has no usable global scale",
                   .where = {.expert = expert},
                   .expected = "a finite number greater than zero",
                   .got = std::to_string(value),
                   .hint = "pack the expert again from its checkpoint"});
    }
    return value;
  }

  const ShardPlan& plan_;
  std::span<const PackedExperts> ranks_;
  UnpackedExpert joined_;
};

void check_ranks(const ShardPlan& plan, std::span<const PackedExperts> ranks) {
  bool fits = ranks.size() == plan.ranks.size();
  for (std::size_t i = 0; fits && i < ranks.size(); ++i) {
    fits = ranks[i].rank == plan.ranks[i].rank && ranks[i].experts == plan.ranks[i].experts &&
           ranks[i].layout == plan.layout &&
           ranks[i].blobs.size() == ranks[i].experts.count() * plan.layout.stride;
  }
  if (fits) return;
  throw Error(ErrorCode::unsupported,
              {.code = "MOXIE-R002",
               .message = "a reference needs every rank of the plan, packed under it, in order",
               .expected = std::to_string(plan.ranks.size()) + " ranks",
               .got = std::to_string(ranks.size())});
}

}  // namespace

std::vector<std::uint64_t> group_boundaries(const ShardPlan& plan) {
  std::vector<std::uint64_t> starts;
  if (act_group(plan.act_format) == 1) return starts;
  for (const RankPlan& rank : plan.ranks) {
    if (rank.ep_rank == 0 && rank.slice.rows.count > Elems{0})
      starts.push_back(rank.slice.rows.src.value);
  }
  std::ranges::sort(starts);
  return starts;
}

LayerReference make_reference(const MoeModel& model, int layer, const ShardPlan& plan,
                              const LayerSpec& spec, const Probe& probe) {
  const LayerExperts& source = model.require_layer(layer);
  if (source.format != plan.format || source.experts.size() != plan.experts) {
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-M009",
                 .message = "the layer differs from the plan in format or number of experts",
                 .where = {.layer = layer},
                 .expected = std::to_string(plan.experts) + " experts in " +
                             std::string(name_of(plan.format)),
                 .got = std::to_string(source.experts.size()) + " experts in " +
                        std::string(name_of(source.format))});
  }
  check_problem(plan, spec, probe);
  const CheckpointExperts experts(model, source);
  return judge(plan, spec, probe, [&](std::uint64_t expert) { return experts.expert(expert); });
}

LayerReference make_reference(const ShardPlan& plan, std::span<const PackedExperts> ranks,
                              const LayerSpec& spec, const Probe& probe) {
  check_problem(plan, spec, probe);
  check_ranks(plan, ranks);
  JoinedExperts experts(plan, ranks);
  return judge(plan, spec, probe, [&](std::uint64_t expert) { return experts.expert(expert); });
}

}  // namespace moxie
