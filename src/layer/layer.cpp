// SPDX-License-Identifier: Apache-2.0
// Binds plan, packed experts and kernel, and refuses what does not go together.
#include "moxie/layer.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/clock.hpp"
#include "base/cpu_features.hpp"
#include "base/parallel.hpp"
#include "device/device.hpp"
#include "formats/act_quant.hpp"
#include "kernels/registry/registry.hpp"
#include "layer/binding.hpp"
#include "layer/layer_state.hpp"
#include "layer/staging_memory.hpp"
#include "moxie/catalog.hpp"
#include "moxie/device.hpp"
#include "pack/scale_check.hpp"

namespace moxie {

namespace {

// A plan may come from another machine.
void require_features(const ShardPlan& plan) {
  const auto entries = kernel_catalog();
  const auto entry = std::ranges::find(entries, plan.kernel, &KernelEntry::name);
  if (entry == entries.end()) return;
  const std::string missing = missing_features(*entry, cpu_features());
  if (missing.empty()) return;
  throw Error(ErrorCode::unsupported,
              {.code = "MOXIE-R001",
               .message = "this machine does not run the planned kernel " + plan.kernel,
               .expected = "a machine with " + missing,
               .got = host_cpu().name,
               .hint = "plan again on this machine, from the checkpoint or its logical files"});
}

// So may it come from another environment.
void require_allowed(const ShardPlan& plan) {
  const std::string forced = forced_kernels();
  const auto entries = kernel_catalog();
  const auto entry = std::ranges::find(entries, plan.kernel, &KernelEntry::name);
  if (entry == entries.end() || is_allowed(*entry, forced)) return;
  throw Error(ErrorCode::usage, {.code = "MOXIE-R013",
                                 .message = "the plan was made without MOXIE_FORCE=" + forced,
                                 .expected = "a kernel whose name starts with " + forced,
                                 .got = plan.kernel,
                                 .hint = "unset it, or plan again"});
}

const ExpertsKernel& kernel_of(const ShardPlan& plan) {
  if (plan.engine) {
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-R001",
                 .message = "the plan is for an engine, whose own kernels run it",
                 .expected = "a plan without --attention and --moe",
                 .got = plan.engine->attention + ", " + plan.engine->moe,
                 .hint = "run the plan in that engine, or plan the layer for moxie"});
  }
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

std::uint64_t bytes_for(const ShardPlan& plan, const LayerSpec& spec, const ExpertsKernel& kernel,
                        std::uint64_t tokens) {
  std::uint64_t most = 0;  // ranks run one after another in the same space
  for (const RankPlan& rank : plan.ranks)
    most = std::max(most, kernel.workspace_bytes(experts_shape(plan, spec, rank), tokens));
  return kWorkspaceAlign + partials_bytes(plan, spec, kernel, tokens) +
         own_ids_bytes(has_redundant_experts(plan), spec, tokens) + most;
}

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

void MoeLayer::State::bind(const ShardPlan& of, const LayerSpec& with,
                           std::vector<unsigned> ranks) {
  plan = of;
  spec = with;
  kernel = &kernel_of(plan);
  require_allowed(plan);
  require_features(plan);
  check_spec(plan, spec, *kernel);
  check_act_scale(plan);
  check_ranks(std::move(ranks));
  require_device(plan.target);
  partials = find_partials_kernel(plan.target);
  owners = owners_of(plan);
  MOXIE_CHECK(partials == nullptr || !owners.redundant(),
              "no kernel of a GPU leaves choices to another holder of their expert");
  const auto load = [](const auto* loaded) {
    return loaded == nullptr || loaded->prepare == nullptr ? 0 : loaded->prepare();
  };
  int code = load(kernel);
  if (code == 0) code = load(find_rows_kernel(plan.target));
  if (code != 0) {
    throw Error(ErrorCode::environment, {.code = "MOXIE-E005",
                                         .message = "the device does not load " + plan.kernel,
                                         .got = device::error_text(code)});
  }
  offsets = blob_offsets(plan.layout);
  threads = spec.threads == 0 ? usable_threads() : std::min(spec.threads, usable_threads());
}

MoeLayer::MoeLayer(const ShardPlan& plan, const LayerSpec& spec, std::vector<PackedExperts> ranks)
    : state_(std::make_unique<State>()) {
  std::vector<unsigned> numbers;
  for (const PackedExperts& packed : ranks) numbers.push_back(packed.rank);
  state_->bind(plan, spec, std::move(numbers));
  for (PackedExperts& packed : ranks) state_->hold(std::move(packed));
  state_->sort_ranks();
}

MoeLayer::MoeLayer(const ShardPlan& plan, const LayerSpec& spec,
                   const std::vector<BlobSource>& sources, LoadStaging* staging)
    : state_(std::make_unique<State>()) {
  std::vector<unsigned> numbers;
  for (const BlobSource& source : sources) numbers.push_back(source.rank);
  state_->bind(plan, spec, std::move(numbers));
  LoadStaging own;
  for (const BlobSource& source : sources)
    state_->hold(source, *(staging == nullptr ? own : *staging).memory_);
  state_->sort_ranks();
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
  const std::uint64_t slot = packed.experts.slot_of(expert).value();
  check_blob(state_->plan, rank, expert, blob);
  if (state_->partials != nullptr) {
    held.on_device.write(slot, blob);
    return;
  }
  std::memcpy(held.blobs.data() + slot * packed.layout.stride, blob.data(), blob.size());
}

std::span<const std::byte> MoeLayer::blob(unsigned rank, std::uint64_t expert) const {
  const State::HeldRank& held = state_->held[state_->require(rank, expert)];
  if (state_->partials != nullptr)
    return held.on_device.read(held.packed.experts.slot_of(expert).value());
  const std::uint64_t stride = held.packed.layout.stride;
  return held.blobs.subspan(held.packed.experts.slot_of(expert).value() * stride, stride);
}

}  // namespace moxie
