// SPDX-License-Identifier: Apache-2.0
// The decision: who owns which expert, which part of the intermediate axis, in which layout, for
// which kernel.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/catalog.hpp"
#include "moxie/engines.hpp"
#include "moxie/json.hpp"
#include "moxie/model.hpp"
#include "moxie/placement.hpp"
#include "moxie/status.hpp"
#include "moxie/types.hpp"

namespace moxie {

// Backends of an engine that takes moxie's plan and packed set, as the engine spells them.
struct EngineBackends {
  std::string attention;
  std::string moe;

  friend bool operator==(const EngineBackends&, const EngineBackends&) = default;
};

// How much larger than what warm-up saw activations may be before they are clipped.
inline constexpr double kDefaultActMargin = 8;

struct PlanOptions {
  unsigned tp = 1;  // ranks that share the intermediate axis, 1..64
  unsigned ep = 1;  // groups of ranks that share the experts
  Target target = Target::cpu;
  ActFormat act_format = ActFormat::bf16;
  std::optional<BlockFormat> format;          // when config and tensors leave it open
  std::optional<std::uint64_t> kernel_align;  // raises the kernel's own alignment
  // For act_format nvfp4 alone; by default `checkpoint` where the config declares input scales.
  std::optional<ActScale> act_scale{};
  std::optional<double> act_margin{};  // for warmup alone, from 1 up; by default kDefaultActMargin
  bool batch_invariant = false;        // refuse what require_batch_invariant() does
  // The kernels are then the engine's: the catalog is not asked, and a padded plan needs a vetted
  // combination (moxie/engines.hpp).
  std::optional<EngineBackends> engine{};
  Placement placement{};  // of the experts on the groups
};

// A rank's part of one axis in one unit: `count` units from `src` of the source, then zeros up to
// `dst` units.
template <class Unit>
struct UnitRange {
  Unit src;
  Unit count;
  Unit dst;

  [[nodiscard]] constexpr Unit zero() const { return dst - count; }
  friend constexpr bool operator==(const UnitRange&, const UnitRange&) = default;
};

// One rank's part of the intermediate axis in every unit in which tensors store it.
struct InterSlice {
  UnitRange<Elems> rows;          // rows of gate and up, codes and scales alike
  UnitRange<PackedBytes> bytes;   // columns of down
  UnitRange<ScaleGroups> groups;  // columns of down's scales

  friend constexpr bool operator==(const InterSlice&, const InterSlice&) = default;
};

// The widths of a cut axis, in elements: columns of the experts, heads, output groups, rows of the
// vocabulary.
struct AxisPlan {
  Axis axis = Axis::moe_inter;
  Elems original;                  // in the checkpoint
  Elems virtual_global;            // local * tp
  Elems local;                     // one rank's share: which checkpoint data it loads
  Elems kernel;                    // what the kernel reads: how much is allocated
  Elems unit;                      // local is a multiple of this; of vocab, virtual_global
  double overhead_pct = 0;         // 100 * (virtual / original - 1)
  double kernel_overhead_pct = 0;  // 100 * (tp * kernel / original - 1)

  // Heads that an attention backend allocates beyond the rank's share: never loaded, and sliced off
  // before the output projection.
  [[nodiscard]] Elems backend_only() const {
    return axis == Axis::heads ? kernel - local : Elems{0};
  }
};

// Sizes one axis. `unit` is the scale group, `kernel_align` what the kernel asks for. Errors:
// Error(unsupported) MOXIE-P003 when `original` or `kernel_align` is no multiple of the unit;
// MOXIE-P001 for tp 0.
MOXIE_API AxisPlan plan_axis(Elems original, unsigned tp, Elems unit, Elems kernel_align);
// One rank's part. A rank past the end gets count 0 with src at the full size.
MOXIE_API InterSlice slice_inter(const AxisPlan& axis, unsigned tp_rank, BlockFormat format);

// The axes of a DeepSeek-V4 model beside the experts' own.
struct V4AxisSizes {
  std::uint64_t heads = 0;
  std::uint64_t output_groups = 0;
  std::uint64_t shared_inter = 0;
  std::uint64_t vocab = 0;
  CutWidths widths;
};
// heads, output_groups, shared_inter and vocab, in this order. Heads are padded in whole output
// groups: a head without data computes something, and only its group's zero rows and columns of
// wo_a and wo_b make that nothing. All but vocab are padded to whole tiles of FP8.
MOXIE_API std::vector<AxisPlan> plan_v4_axes(const V4AxisSizes& sizes, unsigned tp);

// One rank's part of an axis, in elements; `dst` is the kernel's width.
MOXIE_API UnitRange<Elems> slice_axis(const AxisPlan& axis, unsigned tp_rank);
// The same in stored entries of one tensor; `dst` is what the tensor's part takes. A last tile that
// is not full belongs to the rank that owns its first entry.
MOXIE_API UnitRange<Entries> cut_range(const TensorCut& cut, const AxisPlan& axis,
                                       unsigned tp_rank);

// The tensors of one packed expert.
enum class Segment : std::uint8_t {
  gate,
  up,
  down,
  gate_scale,
  up_scale,
  down_scale,
  gate_dequant_mul,
  up_dequant_mul,
  down_dequant_mul,
  gate_act_dequant_mul,
  up_act_dequant_mul,
  down_act_dequant_mul,
  gate_bias,
  up_bias,
  down_bias  // real on the first rank of a tensor-parallel group alone, so that it is added once
};
MOXIE_API std::string_view name_of(Segment segment);

// Where a tensor lies inside an expert's blob: `rows` rows of `row_bytes`, from byte `offset`.
struct PackedSegment {
  Segment segment = Segment::gate;
  std::uint64_t offset = 0;
  std::uint64_t rows = 0;
  std::uint64_t row_bytes = 0;

  [[nodiscard]] std::uint64_t bytes() const { return rows * row_bytes; }
  friend bool operator==(const PackedSegment&, const PackedSegment&) = default;
};

// All offsets of an expert, the same for every expert and rank of a plan. The expert in slot s of a
// rank starts at s * stride.
struct PackedLayout {
  LayoutKind kind = LayoutKind::linear;
  std::vector<PackedSegment> segments;
  std::uint64_t expert_bytes = 0;  // sum of the segments
  std::uint64_t stride = 0;        // expert_bytes rounded up to 64

  [[nodiscard]] const PackedSegment* find(Segment segment) const;
  friend bool operator==(const PackedLayout&, const PackedLayout&) = default;
};

struct RankPlan {
  unsigned rank = 0;  // ep_rank * tp + tp_rank
  unsigned tp_rank = 0;
  unsigned ep_rank = 0;
  RankExperts experts;
  InterSlice slice;
  std::uint64_t bytes_layer = 0;  // expert_bytes * local experts
  std::uint64_t bytes_total = 0;  // over all main layers with experts
};

// A kernel's answer to this problem; `refusal` is empty for one that can run it.
struct KernelAnswer {
  std::string kernel;
  std::string refusal;
};

// Pure and immutable: the same model, options and catalog give the same plan, and a plan that
// exists can be packed.
struct ShardPlan {
  std::string model;  // model_type
  BlockFormat format = BlockFormat::mxfp4;
  bool recast = false;  // of NVFP4, whose globals stay; the format is then MXFP4
  unsigned tp = 1;
  unsigned ep = 1;
  Placement placement;  // contiguous for interleaved on one group, which is the same
  Target target = Target::cpu;
  ActFormat act_format = ActFormat::bf16;
  ActScale act_scale = ActScale::checkpoint;  // of nvfp4; means nothing for other formats
  double act_margin = kDefaultActMargin;      // of warmup
  std::uint64_t hidden = 0;
  std::uint64_t experts = 0;
  std::uint64_t layers = 0;  // main layers with experts
  bool gated = true;
  bool biases = false;
  bool identity = true;  // no virtual padding on any axis
  // The experts' own axis first. The others are there for DeepSeek-V4 models whose config gives all
  // sizes, all of them or none.
  std::vector<AxisPlan> axes;
  std::optional<CutWidths> widths;  // with the other axes
  std::vector<RankPlan> ranks;
  std::optional<EngineBackends> engine;
  std::string kernel;        // catalog name of the experts kernel, or the engine's backend
  std::string route_kernel;  // and of the routing kernel that goes with it
  PackedLayout layout;
  std::optional<std::uint64_t> workspace_bytes;
  std::vector<KernelAnswer> considered;  // every kernel, in order of preference
  std::vector<Finding> findings;

  [[nodiscard]] const AxisPlan& inter() const { return axes.front(); }
  // nullptr for an axis that the plan does not have.
  [[nodiscard]] const AxisPlan* find(Axis axis) const;
};

// Decides. Needs config facts and the format only; reads no tensor. Errors: Error(usage) for tp or
// ep out of range, and for act_scale or act_margin that nothing consumes; Error(unsupported) with
// every kernel's reason, for ep > experts, an unknown format, a width no scale group divides, or
// nvfp4 activations without a source of global scales; for an engine MOXIE-P017 with every element
// that is not vetted, MOXIE-P018; those of check_placement().
MOXIE_API ShardPlan make_plan(const MoeModel& model, const PlanOptions& options);

// One rank's share as a plan of its own, tp 1 and ep 1, to run where the others are not: its part
// of the intermediate axis is the whole axis, its experts keep their global ids, and the others
// have none. Holds for weights that are drawn, not for a checkpoint's. Errors: Error(usage)
// MOXIE-P001 for a rank outside the plan or without a real part; Error(unsupported) MOXIE-P024
// where experts lie on several ranks, of which one alone computes a part.
MOXIE_API ShardPlan plan_of_rank(const ShardPlan& plan, unsigned rank);

// Who computes the choices of tokens under the plan.
MOXIE_API ExpertOwners owners_of(const ShardPlan& plan);
// Whether an expert lies on several expert-parallel ranks. Allocates nothing.
MOXIE_API bool has_redundant_experts(const ShardPlan& plan);

// That a token's result does not depend on what else is in the batch. It holds for every kernel;
// nvfp4 activations with dynamic scales give it up. Errors: Error(unsupported) MOXIE-P016.
MOXIE_API void require_batch_invariant(const ShardPlan& plan);

// {"kind", "expert_bytes", "stride", "segments"}.
MOXIE_API Json to_json(const PackedLayout& layout);
// That a draft (multi-token-prediction) model is cut as its main model is. Errors:
// Error(unsupported) MOXIE-P019 with the first axis or option that differs.
MOXIE_API void require_same_cut(const ShardPlan& main, const ShardPlan& draft);

// The document of `moxie plan` (schema moxie.plan/1), without findings and the list of considered
// kernels.
MOXIE_API Json to_json(const ShardPlan& plan);
// The inverse; offsets come from `layout` where the document has one. Error(input) MOXIE-K006 when
// a field is absent or inconsistent.
MOXIE_API ShardPlan plan_from_json(const Json& document, std::string_view origin);

}  // namespace moxie
