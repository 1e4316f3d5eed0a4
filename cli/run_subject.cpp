// SPDX-License-Identifier: Apache-2.0
// Opens what runs and makes its inputs; everything that can be refused is refused here, before any
// computation.
#include "cli/run_subject.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "cli/certificates.hpp"
#include "cli/output_place.hpp"
#include "cli/placements.hpp"
#include "moxie/checkpoint.hpp"
#include "moxie/device.hpp"

namespace moxie::cli {

namespace {

constexpr std::uint64_t kDefaultTokens = 64;

[[noreturn]] void refuse_usage(std::string code, std::string message, std::string expected,
                               std::string got) {
  throw Error(ErrorCode::usage, {.code = std::move(code),
                                 .message = std::move(message),
                                 .expected = std::move(expected),
                                 .got = std::move(got)});
}

// A given option must be what the set was packed with.
template <class Value>
void require_same(std::string_view option, const std::optional<Value>& given, Value packed) {
  if (!given || *given == packed) return;
  const auto text = [](Value value) {
    if constexpr (std::is_enum_v<Value>)
      return std::string(name_of(value));
    else
      return fmt::to_string(value);
  };
  refuse_usage("MOXIE-R013", "the set was packed with another " + std::string(option), text(packed),
               text(*given));
}

// The policy that the set was packed for.
void require_same_scales(const GivenPlan& given, const ShardPlan& plan) {
  const bool nvfp4 = plan.act_format == ActFormat::nvfp4;
  const auto refuse = [&](std::string_view option, std::string got) {
    refuse_usage("MOXIE-R013",
                 "the set was packed for activations that take no " + std::string(option),
                 "no " + std::string(option), std::move(got));
  };
  if (given.act_scale && !nvfp4) refuse("--act-scale", std::string(name_of(*given.act_scale)));
  require_same("--act-scale", given.act_scale, plan.act_scale);
  const bool warmup = nvfp4 && plan.act_scale == ActScale::warmup;
  if (given.act_margin && !warmup) refuse("--act-margin", fmt::to_string(*given.act_margin));
  require_same("--act-margin", given.act_margin, plan.act_margin);
}

void require_same_engine(const std::optional<EngineBackends>& asked,
                         const std::optional<EngineBackends>& packed) {
  if (!asked || asked == packed) return;
  const auto text = [](const std::optional<EngineBackends>& engine) {
    return engine ? engine->attention + ", " + engine->moe : std::string("none");
  };
  refuse_usage("MOXIE-R013", "the set was packed for another --attention and --moe", text(packed),
               text(asked));
}

// The width that the given alignment leads to must be the set's.
void require_same_width(const PackedFolder& folder, std::optional<std::uint64_t> kernel_align) {
  if (!kernel_align) return;
  const ShardPlan& plan = folder.plan;
  const MoeModel config_alone = read_model(open_checkpoint(folder.path / "config.json"));
  std::optional<ActScale> scale;
  if (plan.act_format == ActFormat::nvfp4) scale = plan.act_scale;
  const ShardPlan asked = make_plan(config_alone, {.tp = plan.tp,
                                                   .ep = plan.ep,
                                                   .target = plan.target,
                                                   .act_format = plan.act_format,
                                                   .format = plan.format,
                                                   .kernel_align = kernel_align,
                                                   .act_scale = scale,
                                                   .engine = plan.engine});
  if (asked.inter().kernel == plan.inter().kernel) return;
  refuse_usage("MOXIE-R013", "the set was packed with another --kernel-align",
               fmt::format("a kernel width of {}", plan.inter().kernel.value),
               fmt::to_string(asked.inter().kernel.value));
}

// What every rank holds must be what the set was packed with.
void require_same_placement(const std::optional<GivenPlacement>& given, const ShardPlan& plan) {
  if (!given || is_placed(plan, read_placement(given))) return;
  refuse_usage("MOXIE-R013", "the set was packed with another --placement",
               std::string(name_of(plan.placement.kind)), word_of(*given));
}

}  // namespace

RunSubject::RunSubject(const RunArgs& args) : path_(args.model) {
  if (is_packed_folder(args.model))
    open_folder(args);
  else
    open_checkpoint_folder(args);
  weights_seed_ = args.weights_seed;
  spec_ = spec_of(config());
  spec_.threads = args.threads;
  if (!weights_seed_) {
    choose_layer(args);
    follow_layer();
  }
  if (args.top_k) spec_.top_k = *args.top_k;
  const std::uint64_t experts = plans_.front().experts;
  if (spec_.top_k > experts) {
    refuse_usage("MOXIE-R007", "--top-k is larger than the number of experts",
                 "at most " + std::to_string(experts), std::to_string(spec_.top_k));
  }
  whole_plans_ = plans_;
  if (args.rank) keep_rank(*args.rank);
}

// Draft blocks may have experts of their own number, and choose another number of them.
void RunSubject::follow_layer() {
  for (ShardPlan& plan : plans_) {
    plan = folder_ ? plan_to_run(*folder_, layer_) : plan_to_run(opened_->model, plan, layer_);
  }
  const std::optional<V4Config>& v4 = config().v4;
  if (v4 && static_cast<std::uint64_t>(layer_) >= config().num_layers)
    spec_.top_k = v4->draft_top_k;
}

void RunSubject::keep_rank(unsigned rank) {
  if (!weights_seed_) {
    refuse_usage("MOXIE-B005", "--rank needs random weights", "--weights random", "a checkpoint's");
  }
  for (ShardPlan& plan : plans_) plan = plan_of_rank(plan, rank);
}

void RunSubject::open_folder(const RunArgs& args) {
  folder_ = open_packed_folder(args.model);
  const ShardPlan& plan = folder_->plan;
  if (args.plan.certificate) {
    refuse_usage("MOXIE-R013", "a packed set was planned already", "no --certificate",
                 args.plan.certificate->string());
  }
  for (const unsigned tp : args.plan.tp) require_same("--tp", std::optional(tp), plan.tp);
  require_same("--ep", args.plan.ep, plan.ep);
  require_same("--target", args.plan.target, plan.target);
  require_same("--act-format", args.plan.act_format, plan.act_format);
  require_same("--format", args.plan.format, plan.format);
  require_same_engine(args.plan.engine, plan.engine);
  require_same_scales(args.plan, plan);
  require_same_width(*folder_, args.plan.kernel_align);
  require_same_placement(args.plan.placement, plan);
  if (args.plan.batch_invariant) require_batch_invariant(plan);
  plans_.push_back(plan);
  findings_ = folder_->findings;
}

void RunSubject::open_checkpoint_folder(const RunArgs& args) {
  opened_ = open_model(args.model);
  const GivenPlan& given = args.plan;
  apply_certificate(*opened_, given.certificate);
  findings_ = opened_->findings;
  const Placement placement = read_placement(given.placement);
  const std::vector<unsigned> one = {1};
  for (const unsigned tp : given.tp.empty() ? one : given.tp) {
    plans_.push_back(
        make_plan(opened_->model, {.tp = tp,
                                   .ep = given.ep.value_or(1),
                                   .target = given.target.value_or(Target::cpu),
                                   .act_format = given.act_format.value_or(ActFormat::bf16),
                                   .format = given.format,
                                   .kernel_align = given.kernel_align,
                                   .act_scale = given.act_scale,
                                   .act_margin = given.act_margin,
                                   .batch_invariant = given.batch_invariant,
                                   .engine = given.engine,
                                   .placement = placement}));
    findings_.insert(findings_.end(), plans_.back().findings.begin(), plans_.back().findings.end());
  }
}

void RunSubject::choose_layer(const RunArgs& args) {
  if (folder_) {
    if (folder_->layers.empty()) {
      throw Error(ErrorCode::input,
                  {.code = "MOXIE-K005",
                   .message = "there is no layer that every rank of the set holds",
                   .where = {.file = path_.string()}});
    }
    layer_ = args.layer.value_or(folder_->layers.front());
    return;
  }
  const std::vector<LayerExperts>& layers = opened_->model.layers;
  const auto complete = std::ranges::find_if(
      layers, [](const LayerExperts& layer) { return !layer.mtp && layer.problems.empty(); });
  if (args.layer) {
    layer_ = *args.layer;
  } else if (complete != layers.end()) {
    layer_ = complete->layer;
  } else if (!layers.empty()) {
    layer_ = layers.front().layer;
  }
  (void)opened_->model.require_layer(layer_);
}

const ModelConfig& RunSubject::config() const {
  return folder_ ? folder_->config : opened_->model.config;
}

void RunSubject::require_not_own(const std::filesystem::path& file, const std::string& flag) const {
  require_outside(file, flag, path_, opened_ ? &opened_->model.checkpoint : nullptr);
}

// Pages that were read would stay beside the packed copy.
void RunSubject::release_source() const {
  const Checkpoint& checkpoint = opened_->model.checkpoint;
  for (std::uint32_t file = 0; file < checkpoint.files().size(); ++file) checkpoint.release(file);
}

namespace {

// Counts bytes of several threads.
class SharedProgress {
 public:
  SharedProgress(Progress progress, std::uint64_t total)
      : progress_(std::move(progress)), total_(total) {}

  void add(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    if (progress_(done_, total_)) return;
    throw Error(ErrorCode::interrupted, {.code = "MOXIE-U130", .message = "interrupted"});
  }

 private:
  Progress progress_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
  std::mutex mutex_;
};

}  // namespace

std::vector<BlobSource> RunSubject::sources(const ShardPlan& plan, const Progress& progress) const {
  std::vector<BlobSource> sources;
  std::uint64_t total = 0;
  for (const RankPlan& rank : plan.ranks) {
    total += rank.experts.count() * plan.layout.stride;
    sources.push_back(folder_         ? blob_source(*folder_, rank.rank, layer_)
                      : weights_seed_ ? drawn_source(plan, rank.rank, *weights_seed_)
                                      : blob_source(opened_->model, plan, rank.rank, layer_));
  }
  if (!progress) return sources;
  const auto shared = std::make_shared<SharedProgress>(progress, total);
  for (BlobSource& source : sources) {
    source.pack_expert = [shared, pack = std::move(source.pack_expert)](std::uint64_t expert,
                                                                        std::span<std::byte> blob) {
      pack(expert, blob);
      shared->add(blob.size());
    };
    if (!source.pack_part) continue;
    source.pack_part = [shared, parts = source.parts, pack = std::move(source.pack_part)](
                           std::uint64_t expert, unsigned part, std::span<std::byte> blob) {
      pack(expert, part, blob);
      // Together all of the blob.
      shared->add(blob.size() * (part + 1) / parts - blob.size() * part / parts);
    };
  }
  return sources;
}

LayerReference RunSubject::reference(const MoeLayer& layer, const Probe& probe,
                                     const ReferenceOptions& options) const {
  if (folder_ || weights_seed_) return make_reference(layer, probe, options);
  LayerReference reference =
      make_reference(opened_->model, layer_, layer.plan(), spec_, probe, options);
  release_source();
  return reference;
}

Router RunSubject::router() const {
  if (weights_seed_) {
    throw Error(ErrorCode::input, {.code = "MOXIE-M016",
                                   .message = "random weights have no router",
                                   .hint = "--weights synth, or another --routing"});
  }
  if (!folder_) {
    const ModelConfig& config = opened_->model.config;
    if (config.router_hidden == config.hidden) return {opened_->model, layer_, spec_.top_k};
    throw Error(
        ErrorCode::unsupported,
        {.code = "MOXIE-R004",
         .message = "the router reads the model's width, the experts its projection, which is not "
                    "part of the layer here",
         .where = {.layer = layer_},
         .expected = "rows of " + std::to_string(config.router_hidden) + " for the router",
         .got = "rows of " + std::to_string(config.hidden) + " for the experts",
         .hint = "route elsewhere and give --routing file:PATH, or topk_ids and topk_weights in "
                 "the input file"});
  }
  throw Error(ErrorCode::input, {.code = "MOXIE-M016",
                                 .message = "a packed set holds no router",
                                 .where = {.file = path_.string()},
                                 .hint = "run the checkpoint, or use another --routing"});
}

namespace {

void route_by_model(const RunArgs& args, const RunSubject& subject, RunProbe& run) {
  Probe& probe = run.probe;
  const Router router = subject.router();
  if (router.needs_token_ids() && probe.token_ids.empty() && probe.tokens > 0) {
    throw Error(ErrorCode::input, {.code = "MOXIE-R005",
                                   .message = "the layer routes by token id, and there are none",
                                   .where = {.file = args.input ? args.input->string() : "",
                                             .tensor = "token_ids",
                                             .layer = subject.layer()},
                                   .expected = "I64 [tokens]",
                                   .got = "none"});
  }
  probe.top_k = subject.spec().top_k;
  probe.topk_ids.resize(probe.tokens * probe.top_k);
  probe.topk_weights.resize(probe.tokens * probe.top_k);
  std::vector<std::byte> workspace(router.workspace_size(probe.tokens));
  std::uint32_t flags = 0;
  const CallStatus status =
      router.route({.x = probe.x_ref(),
                    .token_ids = probe.token_ids.empty() ? nullptr : probe.token_ids.data(),
                    .topk_ids = probe.topk_ids.data(),
                    .topk_weights = probe.topk_weights.data(),
                    .flags = &flags},
                   workspace);
  if (status != CallStatus::ok) {
    throw Error(
        ErrorCode::internal,
        {.code = "MOXIE-U070", .message = "the router answers " + std::string(name_of(status))});
  }
  run.findings = flag_findings(flags);
}

}  // namespace

RunProbe make_run_probe(const RunArgs& args, const RunSubject& subject) {
  const ModelConfig& config = subject.config();
  const GivenRouting routing = args.routing.value_or(GivenRouting{});
  const std::uint64_t experts = subject.plans().front().experts;
  ProbeLimits limits{.hidden = config.hidden,
                     .experts = experts,
                     .top_k = subject.spec().top_k,
                     .tokens = args.tokens,
                     .vocab = {}};
  if (config.vocab > 0) limits.vocab = config.vocab;
  ProbeOptions options{.tokens = args.tokens.value_or(kDefaultTokens),
                       .hidden = config.hidden,
                       .experts = experts,
                       .top_k = subject.spec().top_k,
                       .vocab = config.vocab,
                       .routed_scaling = config.routed_scaling,
                       .routing = routing.drawn,
                       .seed = args.seed};
  // A routing that is replaced below should cost nothing and refuse nothing.
  if (routing.source != RoutingSource::drawn) options.routing.kind = RoutingKind::one;
  // What no call may have is refused before anything of that size is made.
  for (const ShardPlan& plan : subject.plans()) {
    (void)workspace_size(plan, subject.spec(), options.tokens);
    require_device(plan.target);
  }
  RunProbe run;
  if (!args.input) {
    run.probe = make_probe(options);
  } else {
    run.probe = read_probe(*args.input, limits);
    if (run.probe.top_k > 0 && args.routing) {
      refuse_usage("MOXIE-R013", "the input file has a routing of its own", "no --routing",
                   "--routing");
    }
    if (run.probe.top_k > 0) {
      run.routing = "input";
      return run;
    }
  }
  limits.tokens = run.probe.tokens;
  switch (routing.source) {
    case RoutingSource::model:
      route_by_model(args, subject, run);
      run.routing = "model";
      break;
    case RoutingSource::file:
      read_routing(routing.file, limits, run.probe);
      run.routing = "file:" + routing.file.string();
      break;
    case RoutingSource::drawn:
      if (args.input) route_probe(run.probe, options);
      run.routing = to_string(routing.drawn);
      break;
  }
  return run;
}

std::vector<Finding> flag_findings(std::uint32_t flags) {
  std::vector<Finding> findings;
  const auto warn = [&](std::uint32_t flag, std::string message) {
    if ((flags & flag) == 0) return;
    findings.push_back(
        {.code = "MOXIE-R011", .severity = Severity::warning, .message = std::move(message)});
  };
  warn(kFlagBadExpertId, "an expert id outside the model was skipped");
  warn(kFlagBadLogits, "a token has fewer logits that are numbers than it needs; it got no expert");
  warn(kFlagBadTokenId, "a token id is outside the router's table; the token got no expert");
  return findings;
}

}  // namespace moxie::cli
