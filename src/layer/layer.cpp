// SPDX-License-Identifier: Apache-2.0
// Binds plan, packed experts and kernel; runs the ranks it holds one after another and sums them in
// rank order.
#include "moxie/layer.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/align.hpp"
#include "base/checked.hpp"
#include "base/clock.hpp"
#include "base/parallel.hpp"
#include "device/device.hpp"
#include "formats/act_quant.hpp"
#include "formats/bf16.hpp"
#include "kernels/registry/registry.hpp"
#include "layer/binding.hpp"
#include "layer/device_experts.hpp"
#include "moxie/device.hpp"
#include "pack/scale_check.hpp"

namespace moxie {

namespace {

constexpr std::uint64_t kAlign = 64;

const ExpertsKernel& kernel_of(const ShardPlan& plan) {
  const ExpertsKernel* kernel = find_experts_kernel(plan.kernel);
  if (kernel != nullptr) return *kernel;
  throw Error(ErrorCode::unsupported, {.code = "MOXIE-R001",
                                       .message = "the planned kernel is not built here",
                                       .expected = plan.kernel,
                                       .hint = "plan for a target that moxie devices lists"});
}

void check_top_k(const LayerSpec& spec) {
  if (spec.top_k > 0) return;
  throw Error(
      ErrorCode::usage,
      {.code = "MOXIE-R007", .message = "top_k is not set", .expected = "at least 1", .got = "0"});
}

void check_spec(const ShardPlan& plan, const LayerSpec& spec, const ExpertsKernel& kernel) {
  check_top_k(spec);
  const auto refuse = [&](std::string message, std::string expected, std::string hint = {}) {
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-R001",
                 .message = std::move(message),
                 .expected = std::move(expected),
                 .got = std::string(name_of(spec.activation)) + (plan.gated ? "" : ", no gate"),
                 .hint = std::move(hint)});
  };
  if (!kernel.supports(spec.activation))
    refuse(plan.kernel + " does not run this activation function", "another one");
  if (plan.gated != has_gate(spec.activation))
    refuse("the experts and the activation function differ in having a gate",
           plan.gated ? "a function of gate and up" : "relu2");
  // Without its limit the function is another one, and nothing in the numbers would show it.
  const bool limited = spec.activation_limit.has_value() && *spec.activation_limit > 0;
  if (has_limit(spec.activation) && !limited)
    refuse("the activation function has no limit", "a number above 0",
           "the config's swiglu_limit gives it");
}

void check_act_scale(const ShardPlan& plan) {
  if (!consumes_act_scales(plan) || plan.layout.find(Segment::down_act_dequant_mul) != nullptr)
    return;
  throw Error(ErrorCode::unsupported,
              {.code = "MOXIE-R001",
               .message = "the plan takes activation scales from experts that store none",
               .expected = "another act_scale",
               .got = std::string(name_of(plan.act_scale))});
}

[[noreturn]] void refuse_scales(std::string message, std::string expected, std::string got) {
  throw Error(ErrorCode::usage, {.code = "MOXIE-R017",
                                 .message = std::move(message),
                                 .expected = std::move(expected),
                                 .got = std::move(got)});
}

// Rows of partial sums, [tokens, hidden] f32 each.
std::uint64_t partial_bytes(const ShardPlan& plan, std::uint64_t tokens) {
  return round_up(tokens * plan.hidden * sizeof(float), kAlign);
}

std::uint64_t bytes_for(const ShardPlan& plan, const LayerSpec& spec, const ExpertsKernel& kernel,
                        std::uint64_t tokens) {
  std::uint64_t most = 0;  // ranks run one after another in the same space
  for (const RankPlan& rank : plan.ranks)
    most = std::max(most, kernel.workspace_bytes(experts_shape(plan, spec, rank), tokens));
  return kAlign + 2 * partial_bytes(plan, tokens) + most;
}

bool fits(std::uint64_t tokens, std::uint64_t top_k) { return tokens <= kMaxSlots / top_k; }

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

}  // namespace

LayerSpec spec_of(const ModelConfig& config) {
  return {.top_k = config.top_k,
          .activation = config.activation,
          .activation_limit = config.activation_limit};
}

std::uint64_t workspace_size(const ShardPlan& plan, const LayerSpec& spec, std::uint64_t tokens) {
  const ExpertsKernel& kernel = kernel_of(plan);
  check_top_k(spec);
  if (!fits(tokens, spec.top_k)) {
    throw Error(ErrorCode::usage,
                {.code = "MOXIE-R008",
                 .message = "more slots than one call may have",
                 .expected = "tokens * top_k up to " + std::to_string(kMaxSlots),
                 .got = std::to_string(tokens) + " * " + std::to_string(spec.top_k)});
  }
  return bytes_for(plan, spec, kernel, tokens);
}

struct MoeLayer::State {
  // One rank of the plan with its experts.
  struct HeldRank {
    PackedExperts packed;
    ExpertsShape shape;
    std::vector<std::int32_t> local_of_expert;  // [experts]
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
  unsigned threads = 1;

  void hold(PackedExperts packed);
  void check_ranks() const;
  // Place in `held` of the rank that owns the expert.
  [[nodiscard]] std::size_t require(unsigned rank, std::uint64_t expert) const;
  [[nodiscard]] bool accepts(const LayerIo& io) const;
  void run(const LayerIo& io, std::byte* workspace) const;
  [[nodiscard]] CallStatus run_on_device(const LayerIo& io, std::byte* workspace,
                                         void* stream) const;
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
  [[nodiscard]] ActScales warm_up(const HeldRank& rank, const LayerIo& io, float margin,
                                  std::byte* workspace) const;
};

void MoeLayer::State::hold(PackedExperts packed) {
  if (packed.rank >= plan.ranks.size() || !(packed.layout == plan.layout) ||
      !(packed.experts == plan.ranks[packed.rank].experts) ||
      packed.blobs.size() != packed.experts.count() * plan.layout.stride) {
    throw Error(ErrorCode::input, {.code = "MOXIE-R003",
                                   .message = "packed experts are not those of this plan",
                                   .where = {.rank = packed.rank},
                                   .hint = "pack them under the plan that the layer gets"});
  }
  const RankPlan& rank = plan.ranks[packed.rank];
  for (std::uint64_t expert = rank.experts.first; expert < rank.experts.end; ++expert)
    check_blob(plan, packed.rank, expert, packed.blob(expert));
  std::vector<std::int32_t> local(plan.experts, -1);
  for (std::uint64_t i = 0; i < rank.experts.count(); ++i)
    local[rank.experts.first + i] = static_cast<std::int32_t>(i);
  DeviceExperts on_device;
  if (partials != nullptr) {
    on_device = DeviceExperts(packed, local);
    packed.blobs = {};
  }
  held.push_back({.packed = std::move(packed),
                  .shape = experts_shape(plan, spec, rank),
                  .local_of_expert = std::move(local),
                  .on_device = std::move(on_device),
                  .scales = {},
                  .empty = rank.slice.rows.count == Elems{0}});
}

void MoeLayer::State::check_ranks() const {
  const bool distinct = std::ranges::adjacent_find(held, [](const auto& a, const auto& b) {
                          return a.packed.rank == b.packed.rank;
                        }) == held.end();
  const std::size_t wanted = spec.reduction == Reduction::layer ? plan.ranks.size() : 1;
  if (distinct && held.size() == wanted) return;
  throw Error(ErrorCode::unsupported,
              {.code = "MOXIE-R002",
               .message = spec.reduction == Reduction::layer
                              ? "a layer that sums over the ranks holds every rank once"
                              : "where the caller sums over the ranks a layer holds one rank",
               .expected = std::to_string(wanted) + " ranks",
               .got = std::to_string(held.size())});
}

std::size_t MoeLayer::State::require(unsigned rank, std::uint64_t expert) const {
  for (std::size_t i = 0; i < held.size(); ++i) {
    const PackedExperts& packed = held[i].packed;
    if (packed.rank == rank && expert >= packed.experts.first && expert < packed.experts.end)
      return i;
  }
  throw Error(ErrorCode::usage, {.code = "MOXIE-R009",
                                 .message = "the layer does not hold this expert",
                                 .where = {.expert = expert, .rank = rank}});
}

bool MoeLayer::State::accepts(const LayerIo& io) const {
  const std::uint64_t tokens = io.x.rows;
  const bool shapes = io.x.cols == plan.hidden && io.y.cols == plan.hidden && io.y.rows == tokens &&
                      io.x.row_stride >= plan.hidden && io.y.row_stride >= plan.hidden &&
                      is_float(io.x.dtype) && is_float(io.y.dtype) && fits(tokens, spec.top_k);
  const bool pointers = io.flags != nullptr &&
                        (tokens == 0 || (io.x.data != nullptr && io.y.data != nullptr &&
                                         io.topk_ids != nullptr && io.topk_weights != nullptr));
  return shapes && pointers;
}

void MoeLayer::State::run_rank(const HeldRank& rank, const LayerIo& io, float* y, float* act_tap,
                               std::byte* workspace) const {
  if (rank.empty) {
    std::fill_n(y, io.x.rows * plan.hidden, 0.0F);
    return;
  }
  ExpertsArgs args = args_of(rank, io);
  args.y = y;
  args.act_tap = act_tap;
  args.workspace = workspace;
  kernel->run(args);
}

ExpertsArgs MoeLayer::State::args_of(const HeldRank& rank, const LayerIo& io) const {
  return {
      .shape = rank.shape,
      .weights = {.blobs = partials == nullptr ? rank.packed.blobs.data() : rank.on_device.blobs(),
                  .stride = plan.layout.stride,
                  .offsets = offsets,
                  .local_of_expert = partials == nullptr ? rank.local_of_expert.data()
                                                         : rank.on_device.local_of_expert()},
      .tokens = io.x.rows,
      .x = io.x,
      .topk_ids = io.topk_ids,
      .topk_weights = io.topk_weights,
      .x_scale = rank.scales.x,
      .act_scale = rank.scales.act,
      .stats = io.act_stats,
      .flags = io.flags,
      .threads = threads,
      .trace = io.trace};
}

// A call with dynamic scales: what it quantises with is what it has measured.
ActScales MoeLayer::State::warm_up(const HeldRank& rank, const LayerIo& io, float margin,
                                   std::byte* workspace) const {
  std::byte* base = align_up(workspace, kAlign);
  Measured measured;
  ExpertsArgs args = args_of(rank, io);
  args.shape.act_scale = ActScale::dynamic;
  args.act_margin = margin;
  args.y = reinterpret_cast<float*>(base);
  args.workspace = base + 2 * partial_bytes(plan, io.x.rows);
  args.trace = nullptr;
  if (partials == nullptr) {
    args.flags = &measured.flags;
    args.stats = &measured.stats;
    if (io.x.rows > 0) kernel->run(args);
  } else {
    measure_on_device(args, measured);
  }
  ActScales scales{.x = kNvfp4Fallback, .act = kNvfp4Fallback, .slots = 0};
  for (const std::int64_t id : host_ids(io)) {
    const bool known = id >= 0 && static_cast<std::uint64_t>(id) < plan.experts;
    if (known && rank.local_of_expert[static_cast<std::size_t>(id)] >= 0) ++scales.slots;
  }
  if (scales.slots > 0) {
    scales.x = measured.stats.x.most_scale;
    scales.act = measured.stats.act.most_scale;
    scales.guarded = measured.stats.x.guarded + measured.stats.act.guarded > 0;
  }
  return scales;
}

void MoeLayer::State::measure_on_device(const ExpertsArgs& args, Measured& measured) const {
  const device::Stream stream;
  const device::Buffer there(sizeof measured);
  int error = device::fill(there.data(), std::byte{0}, sizeof measured, stream.handle());
  auto* at = reinterpret_cast<Measured*>(there.data());
  ExpertsArgs call = args;
  call.flags = &at->flags;
  call.stats = &at->stats;
  call.stream = stream.handle();
  call.launch_error = &error;
  if (call.tokens > 0) kernel->run(call);
  if (error != 0) {
    throw Error(ErrorCode::environment, {.code = "MOXIE-E005",
                                         .message = "the device did not take a launch",
                                         .got = device::error_text(error)});
  }
  stream.wait();
  device::copy_to_host(std::as_writable_bytes(std::span(&measured, 1)), there.data());
}

std::vector<std::int32_t> MoeLayer::State::host_ids(const LayerIo& io) const {
  std::vector<std::int32_t> ids(io.x.rows * spec.top_k);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(ids));
  if (partials != nullptr) {
    device::copy_to_host(bytes, reinterpret_cast<const std::byte*>(io.topk_ids));
  } else if (!ids.empty()) {
    std::memcpy(bytes.data(), io.topk_ids, bytes.size());
  }
  return ids;
}

void MoeLayer::State::run(const LayerIo& io, std::byte* workspace) const {
  const std::uint64_t tokens = io.x.rows;
  const std::uint64_t hidden = plan.hidden;
  std::byte* base = align_up(workspace, kAlign);
  const bool dense = io.y.dtype == DType::f32 && io.y.row_stride == hidden;
  float* sum = dense ? static_cast<float*>(io.y.data) : reinterpret_cast<float*>(base);
  auto* partial = reinterpret_cast<float*>(base + partial_bytes(plan, tokens));
  std::byte* rest = base + 2 * partial_bytes(plan, tokens);

  std::uint64_t reduce_ns = 0;
  for (const HeldRank& rank : held) {
    const bool first = &rank == &held.front();
    const auto index = static_cast<std::uint64_t>(&rank - held.data());
    float* tap = io.act_tap == nullptr
                     ? nullptr
                     : io.act_tap + index * tokens * spec.top_k * plan.inter().kernel.value;
    run_rank(rank, io, first ? sum : partial, tap, rest);
    if (first) continue;
    const std::uint64_t start = now_ns();
    parallel_team(tokens * hidden < 100'000 ? 1 : threads, [&](Team& team) {
      team.for_each(tokens, [&](std::uint64_t token) {
        float* to = sum + token * hidden;
        const float* from = partial + token * hidden;
        for (std::uint64_t i = 0; i < hidden; ++i) to[i] += from[i];
      });
    });
    reduce_ns += now_ns() - start;
  }
  if (!dense) {
    const std::uint64_t start = now_ns();
    for (std::uint64_t token = 0; token < tokens; ++token) {
      const float* from = sum + token * hidden;
      if (io.y.dtype == DType::f32) {
        std::copy_n(from, hidden, static_cast<float*>(io.y.data) + token * io.y.row_stride);
      } else {
        auto* to = static_cast<std::uint16_t*>(io.y.data) + token * io.y.row_stride;
        std::transform(from, from + hidden, to, encode_bf16);
      }
    }
    reduce_ns += now_ns() - start;
  }
  if (io.trace != nullptr) (*io.trace)[Stage::reduce] += reduce_ns;
}

CallStatus MoeLayer::State::run_on_device(const LayerIo& io, std::byte* workspace,
                                          void* stream) const {
  const std::uint64_t tokens = io.x.rows;
  int error = 0;
  const auto note = [&error](int code) { error = error == 0 ? code : error; };
  std::byte* base = align_up(workspace, kAlign);
  const bool dense = io.y.dtype == DType::f32 && io.y.row_stride == plan.hidden;
  PartialsArgs sums{.sum = dense ? static_cast<float*>(io.y.data) : reinterpret_cast<float*>(base),
                    .partial = reinterpret_cast<const float*>(base + partial_bytes(plan, tokens)),
                    .y = io.y,
                    .tokens = tokens,
                    .hidden = plan.hidden,
                    .stream = stream,
                    .launch_error = &error};
  if (io.act_stats != nullptr)
    note(device::fill(io.act_stats, std::byte{0}, sizeof *io.act_stats, stream));
  for (std::size_t i = 0; i < held.size() && tokens > 0; ++i) {
    float* y = i == 0 ? sums.sum : const_cast<float*>(sums.partial);
    if (held[i].empty) {
      note(device::fill(y, std::byte{0}, tokens * plan.hidden * sizeof(float), stream));
    } else {
      ExpertsArgs args = args_of(held[i], io);
      args.y = y;
      if (io.act_tap != nullptr)
        args.act_tap = io.act_tap + i * tokens * spec.top_k * plan.inter().kernel.value;
      args.workspace = base + 2 * partial_bytes(plan, tokens);
      args.trace = nullptr;
      args.stream = stream;
      args.launch_error = &error;
      kernel->run(args);
    }
    if (i > 0) partials->add(sums);
  }
  if (!dense) partials->store(sums);
  return error == 0 ? CallStatus::ok : CallStatus::device_failed;
}

MoeLayer::MoeLayer(const ShardPlan& plan, const LayerSpec& spec, std::vector<PackedExperts> ranks)
    : state_(std::make_unique<State>()) {
  state_->plan = plan;
  state_->spec = spec;
  state_->kernel = &kernel_of(plan);
  check_spec(plan, spec, *state_->kernel);
  check_act_scale(plan);
  require_device(plan.target);
  state_->partials = find_partials_kernel(plan.target);
  if (const int code = state_->kernel->prepare == nullptr ? 0 : state_->kernel->prepare();
      code != 0) {
    throw Error(ErrorCode::environment, {.code = "MOXIE-E005",
                                         .message = "the device does not load " + plan.kernel,
                                         .got = device::error_text(code)});
  }
  state_->offsets = blob_offsets(plan.layout);
  state_->threads = spec.threads == 0 ? usable_threads() : std::min(spec.threads, usable_threads());
  for (PackedExperts& packed : ranks) state_->hold(std::move(packed));
  std::ranges::sort(state_->held, {}, [](const auto& rank) { return rank.packed.rank; });
  state_->check_ranks();
}

MoeLayer::~MoeLayer() = default;
MoeLayer::MoeLayer(MoeLayer&&) noexcept = default;
MoeLayer& MoeLayer::operator=(MoeLayer&&) noexcept = default;

const ShardPlan& MoeLayer::plan() const { return state_->plan; }
const LayerSpec& MoeLayer::spec() const { return state_->spec; }

std::uint64_t MoeLayer::workspace_size(std::uint64_t tokens) const {
  return moxie::workspace_size(state_->plan, state_->spec, tokens);
}

CallStatus MoeLayer::forward(const LayerIo& io, std::span<std::byte> workspace,
                             void* stream) const noexcept {
  const State& state = *state_;
  if (!state.accepts(io)) return CallStatus::bad_argument;
  if (workspace.size() < bytes_for(state.plan, state.spec, *state.kernel, io.x.rows))
    return CallStatus::workspace_too_small;
  if (state.partials != nullptr) {
    if (io.trace != nullptr) *io.trace = {};
    return state.run_on_device(io, workspace.data(), stream);
  }
  const std::uint64_t start = now_ns();
  if (io.trace != nullptr) *io.trace = {};
  if (io.act_stats != nullptr) *io.act_stats = {};
  if (io.x.rows > 0) state.run(io, workspace.data());
  if (io.trace != nullptr) io.trace->total_ns = now_ns() - start;
  return CallStatus::ok;
}

std::vector<ActScales> MoeLayer::warm_up(const LayerIo& io, std::span<std::byte> workspace,
                                         double margin) const {
  const State& state = *state_;
  if (state.plan.act_format != ActFormat::nvfp4 || state.plan.act_scale != ActScale::warmup)
    refuse_scales("the plan's activations need no warm-up", "act_scale warmup", "another");
  if (!(margin >= 1)) refuse_scales("a margin is a factor", "at least 1", std::to_string(margin));
  if (!state.accepts(io)) refuse_scales("the layer does not take this call", "ok", "bad_argument");
  if (workspace.size() < bytes_for(state.plan, state.spec, *state.kernel, io.x.rows))
    refuse_scales("the layer does not take this call", "ok", "workspace_too_small");
  std::vector<ActScales> scales;
  for (const State::HeldRank& rank : state.held)
    scales.push_back(state.warm_up(rank, io, static_cast<float>(margin), workspace.data()));
  return scales;
}

void MoeLayer::freeze(std::span<const ActScales> scales) {
  State& state = *state_;
  if (state.plan.act_format != ActFormat::nvfp4 || state.plan.act_scale != ActScale::warmup)
    refuse_scales("the plan's activations have no scales to freeze", "act_scale warmup", "another");
  if (scales.size() != state.held.size()) {
    refuse_scales("every rank held has scales of its own", std::to_string(state.held.size()),
                  std::to_string(scales.size()));
  }
  for (std::size_t i = 0; i < scales.size(); ++i) {
    for (const float scale : {scales[i].x, scales[i].act}) {
      if (!is_act_scale(scale))
        refuse_scales("a scale is out of range", "2^-117 to 2^116", std::to_string(scale));
    }
    const auto group = [&](std::size_t at) {
      return state.plan.ranks[state.held[at].packed.rank].ep_rank;
    };
    if (i > 0 && group(i) == group(i - 1) && scales[i].x != scales[i - 1].x) {
      refuse_scales("ranks of a tensor-parallel group quantise x with one scale",
                    std::to_string(scales[i - 1].x), std::to_string(scales[i].x));
    }
  }
  for (std::size_t i = 0; i < scales.size(); ++i) state.held[i].scales = scales[i];
}

std::vector<ActScales> MoeLayer::act_scales() const {
  std::vector<ActScales> scales;
  for (const State::HeldRank& rank : state_->held) scales.push_back(rank.scales);
  return scales;
}

void MoeLayer::reload(unsigned rank, std::uint64_t expert, std::span<const std::byte> blob) {
  State::HeldRank& held = state_->held[state_->require(rank, expert)];
  PackedExperts& packed = held.packed;
  check_blob(state_->plan, rank, expert, blob);
  if (state_->partials != nullptr) {
    held.on_device.write(expert - packed.experts.first, blob);
    return;
  }
  std::memcpy(packed.blobs.data() + (expert - packed.experts.first) * packed.layout.stride,
              blob.data(), blob.size());
}

std::span<const std::byte> MoeLayer::blob(unsigned rank, std::uint64_t expert) const {
  const State::HeldRank& held = state_->held[state_->require(rank, expert)];
  if (state_->partials != nullptr) return held.on_device.read(expert - held.packed.experts.first);
  return held.packed.blob(expert);
}

}  // namespace moxie
