// SPDX-License-Identifier: Apache-2.0
// moxie bench: check, then time, cold and warm or replayed; one record a point and mode.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cli/act_scales.hpp"
#include "cli/bench_calls.hpp"
#include "cli/bench_floor.hpp"
#include "cli/bench_load.hpp"
#include "cli/bench_peer.hpp"
#include "cli/bench_problem.hpp"
#include "cli/bench_record.hpp"
#include "cli/bench_report.hpp"
#include "cli/bench_sets.hpp"
#include "cli/bench_sweep.hpp"
#include "cli/bench_timing.hpp"
#include "cli/placements.hpp"
#include "cli/references.hpp"
#include "cli/run_subject.hpp"
#include "moxie/device.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

constexpr std::uint64_t kEagerSamples = 20;
constexpr std::uint64_t kGraphSamples = 40;
constexpr std::uint64_t kLoads = 5;
constexpr int kEagerPasses = 5;  // of a graph's calls, for the record
// Tokens of a point on a GPU that are held against the reference; its layers are large.
constexpr std::uint64_t kMostChecked = 8;
constexpr std::uint64_t kMostSynthesised = 16;  // experts, unless asked otherwise
constexpr std::uint64_t kMostSets = 4096;
constexpr std::uint64_t kMostSamples = 1'000'000;
const std::vector<std::uint64_t> kDefaultTokens = {1, 8, 64};

class Bench {
 public:
  Bench(const BenchArgs& args, const Console& console)
      : args_(args),
        console_(console),
        problem_(read_problem(args.problem)),
        report_(args, setting_, console) {}

  int run() {
    catch_interrupts();
    choose_ways();
    std::unique_ptr<TemporaryCheckpoint> made = make_checkpoint();
    RunArgs run_args = args_of_run(made != nullptr ? made->folder() : problem_.folder);
    auto opened = std::make_unique<const RunSubject>(run_args);
    if (const std::optional<std::uint64_t> fewer = experts_that_fit(*opened)) {
      problem_.synth.experts = fewer;
      made = std::make_unique<TemporaryCheckpoint>(problem_.synth);
      run_args.model = made->folder();
      opened = std::make_unique<const RunSubject>(run_args);
    }
    const RunSubject& subject = *opened;
    console_.talk(subject.findings());
    const unsigned threads = args_.threads == 0 ? host_cpu().threads : args_.threads;
    setting_ = {.command = args_.command,
                .model = problem_.name,
                .seed = seed(),
                .kernel_align = args_.plan.kernel_align,
                .batch_invariant = args_.plan.batch_invariant,
                .placement = args_.plan.placement ? word_of(*args_.plan.placement) : "",
                .threads = args_.threads,
                .threads_used = threads,
                .way = way_,
                .weights = weights_,
                .makes_weights = problem_.folder.empty(),
                .rank = args_.rank,
                .peer = args_.peer,
                .experts = args_.experts,
                .hidden = args_.hidden,
                .inter = args_.inter,
                .device = on_gpu() ? device_json() : Json(),
                .ceilings = ceilings_of(subject.plans().front().target, threads),
                .build = build_json(),
                .host = host_json()};
    if (args_.load) {
      LoadBench(subject, setting_, console_).run(args_.samples.value_or(kLoads));
      return 0;
    }
    if (!args_.act_margins.empty()) {
      run_args.tokens = token_counts().back();
      ActMarginSweep(subject, run_args, setting_, console_).run(args_.act_margins);
      return 0;
    }
    // What can be refused is refused before the first record, and before smaller points take
    // memory.
    const std::vector<std::uint64_t> counts = token_counts();
    std::vector<BenchSets> points(counts.size());
    for (std::size_t i = counts.size(); i-- > 0;) {
      run_args.tokens = counts[i];
      points[i] = has_sets(counts[i]) ? make_sets(run_args, subject, sets_of(counts[i]))
                                      : make_set(run_args, subject);
      console_.talk(points[i].findings);
    }
    for (const ShardPlan& plan : subject.plans()) {
      if (args_.peer) require_peer_runs(*args_.peer, plan);
    }
    if (way_ == BenchWay::graph) measure_curve(subject, points);
    for (const BenchSets& sets : points) {
      References references(
          subject, sets.probes.front(), console_,
          on_gpu() || weights_ == BenchWeights::random ? kMostChecked : ~std::uint64_t{0});
      for (std::size_t plan = 0; plan < subject.plans().size(); ++plan)
        run_plan(subject, plan, sets, references);
    }
    report_.print_table();
    return report_.passed() ? 0 : static_cast<int>(ErrorCode::verdict);
  }

 private:
  [[nodiscard]] bool on_gpu() const {
    return args_.plan.target.value_or(Target::cpu) != Target::cpu;
  }

  // What the target suggests, unless the options say otherwise; and what goes together.
  void choose_ways() {
    const auto refuse = [](std::string message, std::string expected, std::string got) {
      throw Error(ErrorCode::usage, {.code = "MOXIE-B005",
                                     .message = std::move(message),
                                     .expected = std::move(expected),
                                     .got = std::move(got)});
    };
    const auto bound = [&](const std::optional<std::uint64_t>& given, std::uint64_t most,
                           const std::string& option) {
      if (given.value_or(0) > most)
        refuse("more " + option + " than a bench takes", "at most " + std::to_string(most),
               std::to_string(*given));
    };
    bound(args_.sets, kMostSets, "--sets");
    bound(args_.samples, kMostSamples, "--samples");
    const bool own = !problem_.folder.empty();
    const bool calls_on_gpu = on_gpu() && !args_.load;
    const std::string of_calls = args_.way                    ? "--mode"
                                 : args_.sets                 ? "--sets"
                                 : args_.peer                 ? "--vs"
                                 : !args_.act_margins.empty() ? "--sweep"
                                                              : "";
    if (args_.load && !of_calls.empty())
      refuse("--load times no calls", "no --mode, --sets, --vs and --sweep", of_calls);
    way_ = args_.way.value_or(calls_on_gpu ? BenchWay::graph : BenchWay::eager);
    const bool many = args_.experts.value_or(0) > kMostSynthesised && !args_.load;
    const bool draws = !own && (calls_on_gpu || many || args_.peer);
    weights_ = args_.weights.value_or(draws ? BenchWeights::random : BenchWeights::synth);
    if (way_ == BenchWay::graph && !on_gpu())
      refuse("the CPU has no graphs", "--mode eager, or a --target with graphs", "--mode graph");
    const bool ggml = args_.peer == BenchPeer::ggml;
    if (ggml && on_gpu()) refuse("ggml is timed on the CPU", "--target cpu", "a GPU");
    if (args_.peer && !ggml && way_ != BenchWay::graph)
      refuse("this peer is timed against a graph", "--mode graph, or --vs ggml", "--mode eager");
    if (args_.sets && on_gpu() && way_ != BenchWay::graph)
      refuse("--sets are of a graph on a GPU", "--mode graph", "--mode eager");
    if (own && (args_.weights || args_.experts || args_.hidden || args_.inter || args_.rank)) {
      refuse("a checkpoint has weights and sizes of its own",
             "no --weights, --experts, --hidden, --inter and --rank", problem_.name);
    }
    if (!args_.act_margins.empty() && args_.rank)
      refuse("a sweep is of all ranks", "no --rank", fmt::to_string(*args_.rank));
  }

  static void require_gpu(Target target) {
    if (list_gpus().built) return require_device(target);
    throw Error(ErrorCode::unsupported, {.code = "MOXIE-R001",
                                         .message = "the target's kernels are not built here",
                                         .expected = std::string(name_of(target)),
                                         .got = "a build without CUDA",
                                         .hint = "see moxie devices, or use --target cpu"});
  }

  [[nodiscard]] std::unique_ptr<TemporaryCheckpoint> make_checkpoint() {
    if (!problem_.folder.empty()) return nullptr;
    SynthOptions& synth = problem_.synth;
    if (args_.plan.format) synth.format = args_.plan.format;
    if (args_.experts) synth.experts = args_.experts;
    if (args_.hidden) synth.hidden = args_.hidden;
    if (args_.inter) synth.inter = args_.inter;
    synth.seed = seed();
    if (weights_ == BenchWeights::random) return std::make_unique<TemporaryCheckpoint>(synth);
    if (on_gpu()) require_gpu(*args_.plan.target);  // gigabytes are not written for nothing
    return std::make_unique<TemporaryCheckpoint>(synth, console_.progress("synth"));
  }

  // With random weights that a user did not size: of more experts than fit into memory beside what
  // a peer keeps of them, as many as do.
  [[nodiscard]] std::optional<std::uint64_t> experts_that_fit(const RunSubject& subject) {
    constexpr double kShare = 0.7;     // of what is available
    constexpr double kPeerCopies = 3;  // plain, repacked, and the file that brings them
    const std::uint64_t available = host_memory().available_bytes;
    if (on_gpu() || weights_ != BenchWeights::random || args_.experts || available == 0 ||
        problem_.synth.experts)
      return std::nullopt;
    const ShardPlan& plan = subject.plans().front();
    std::uint64_t held = 0;
    for (const RankPlan& rank : plan.ranks) held += rank.experts.count() * plan.layout.stride;
    const double room =
        kShare * static_cast<double>(available) / (args_.peer ? 1 + kPeerCopies : 1);
    if (static_cast<double>(held) <= room) return std::nullopt;
    const auto fit = static_cast<std::uint64_t>(static_cast<double>(plan.experts) * room /
                                                static_cast<double>(held));
    const std::uint64_t experts = std::max(fit, subject.spec().top_k);
    console_.talk({{.code = "MOXIE-B009",
                    .severity = Severity::note,
                    .message = "fewer experts than the model has: they must fit into memory",
                    .expected = fmt::to_string(plan.experts),
                    .got = fmt::to_string(experts),
                    .hint = "--experts says how many"}});
    return experts;
  }

  // Calls on the CPU rotate, too, so that each reads its experts from memory.
  [[nodiscard]] bool has_sets(std::uint64_t tokens) const {
    return way_ == BenchWay::graph || (!on_gpu() && tokens > 0);
  }
  [[nodiscard]] std::uint64_t sets_of(std::uint64_t tokens) const {
    const std::optional<GivenRouting>& routing = args_.routing ? args_.routing : problem_.routing;
    const bool file = routing && routing->source == RoutingSource::file;
    return args_.sets.value_or(file ? 1 : default_sets(tokens));
  }

  [[nodiscard]] std::uint64_t seed() const { return args_.seed.value_or(problem_.seed); }
  [[nodiscard]] std::vector<std::uint64_t> token_counts() const {
    if (!args_.tokens.empty()) return args_.tokens;
    return problem_.tokens.empty() ? kDefaultTokens : problem_.tokens;
  }
  [[nodiscard]] RunArgs args_of_run(const std::filesystem::path& folder) const {
    RunArgs run;
    run.model = folder;
    run.plan = args_.plan;
    if (!args_.act_margins.empty()) sweep_plan(run.plan);
    run.top_k = args_.top_k ? args_.top_k : problem_.top_k;
    run.routing = args_.routing ? args_.routing : problem_.routing;
    run.seed = seed();
    run.threads = args_.threads;
    if (weights_ == BenchWeights::random && problem_.folder.empty()) run.weights_seed = seed();
    run.rank = args_.rank;
    return run;
  }

  // A sweep says what it sweeps; options that say otherwise are refused.
  static void sweep_plan(GivenPlan& plan) {
    if (plan.act_format.value_or(ActFormat::nvfp4) != ActFormat::nvfp4 ||
        plan.act_scale.value_or(ActScale::warmup) != ActScale::warmup || plan.act_margin) {
      throw Error(ErrorCode::usage,
                  {.code = "MOXIE-U003",
                   .message = "--sweep act-margin chooses format, policy and margin itself",
                   .expected = "--act-format nvfp4, --act-scale warmup and no --act-margin",
                   .got = "another"});
    }
    plan.act_format = ActFormat::nvfp4;
    plan.act_scale = ActScale::warmup;
  }

  // At the usual sizes and at those that the points read.
  void measure_curve(const RunSubject& subject, const std::vector<BenchSets>& points) {
    std::vector<std::uint64_t> sizes = read_curve_sizes();
    for (const ShardPlan& plan : subject.plans()) {
      for (const BenchSets& sets : points)
        sizes.push_back(mean_work(work_of(plan, sets)).bytes_weights);
    }
    setting_.curve = measure_read_curve(std::move(sizes));
    setting_.launch_us = measure_launch_us();
  }

  static std::vector<BenchSetWork> work_of(const ShardPlan& plan, const BenchSets& sets) {
    std::vector<BenchSetWork> work;
    for (std::size_t set = 0; set < sets.probes.size(); ++set) {
      work.push_back(
          {.seed = sets.seeds[set], .work = count_work(plan, sets.probes[set], DType::bf16)});
    }
    return work;
  }

  void run_plan(const RunSubject& subject, std::size_t number, const BenchSets& sets,
                References& references) {
    const ShardPlan& plan = subject.plans()[number];
    const Probe& probe = sets.probes.front();
    MoeLayer& layer = layer_of(subject, number);
    const std::vector<Finding> warmed = warm_up(layer, probe);
    const CheckedRun checked = references.check(layer);
    BenchPoint point{.plan = &plan,
                     .whole = &subject.whole_plans()[number],
                     .tokens = probe.tokens,
                     .top_k = probe.top_k,
                     .routing = sets.routing,
                     .rank_slots = slots_of_ranks(plan, probe),
                     .work = count_work(plan, probe, DType::bf16),
                     .check = figures_of(checked),
                     .findings = checked.whole.findings,
                     .samples_us = {},
                     .sets = {},
                     .traces = {}};
    point.findings.insert(point.findings.end(), checked.stages.findings.begin(),
                          checked.stages.findings.end());
    point.findings.insert(point.findings.end(), warmed.begin(), warmed.end());
    if (way_ == BenchWay::graph)
      time_graph(layer, sets, checked.y, point);
    else if (on_gpu())
      time_calls(layer, sets, checked.y, point);
    else
      time_paired(layer, sets, checked.y, point);
  }

  // Loaded once for all points that follow each other under one plan.
  MoeLayer& layer_of(const RunSubject& subject, std::size_t plan) {
    if (layer_ != nullptr && layer_plan_ == plan) return *layer_;
    layer_.reset();
    peer_.reset();
    const ShardPlan& of = subject.plans()[plan];
    const std::vector<BlobSource> sources = subject.sources(of);
    if (args_.peer) {
      peer_ = std::make_unique<Peer>(*args_.peer, args_.python, of, subject.spec(), sources.front(),
                                     setting_.threads_used);
    }
    layer_ = std::make_unique<MoeLayer>(of, subject.spec(), sources);
    layer_plan_ = plan;
    return *layer_;
  }

  static void require_rounded(const std::vector<std::uint16_t>& y, const std::vector<float>& exact,
                              BenchPoint& point) {
    if (is_rounded(y, exact)) return;
    point.check.passed = false;
    point.findings.push_back(
        {.code = "MOXIE-R010", .message = "the bf16 result is not the f32 result rounded once"});
  }

  // On the CPU.
  void time_paired(const MoeLayer& layer, const BenchSets& sets, const std::vector<float>& exact,
                   BenchPoint& point) {
    if (sets.seeds.size() == sets.probes.size() && has_sets(point.tokens)) {
      point.sets = work_of(*point.plan, sets);
      point.work = mean_work(point.sets);
    }
    if (!read_test_) read_test_.emplace(setting_.threads_used);
    PairedCalls calls(layer, sets, *read_test_);
    require_rounded(calls.y(0), exact, point);
    for (const BenchMode mode : {BenchMode::cold, BenchMode::warm}) {
      point.mode = mode;
      if (point.check.passed) {
        point.peer.reset();
        const bool theirs = peer_ != nullptr && mode == BenchMode::cold;
        if (theirs)
          meet_peer(sets, [&](std::size_t set) -> const auto& { return calls.y(set); }, point);
        calls.measure(args_.samples.value_or(kEagerSamples),
                      theirs && point.peer->agrees() ? peer_.get() : nullptr, point);
      }
      report_.add(point);
      if (!point.check.passed) break;  // a wrong result is not worth a time
    }
  }

  void time_calls(const MoeLayer& layer, const BenchSets& sets, const std::vector<float>& exact,
                  BenchPoint& point) {
    TimedLayer timed(layer, sets);
    timed.call(0);
    require_rounded(timed.y(), exact, point);
    for (const BenchMode mode : {BenchMode::cold, BenchMode::warm}) {
      point.mode = mode;
      const auto sample = [&] {
        if (mode == BenchMode::cold) {
          flusher_.flush();
          timed.evict();
        }
        const double us = timed.call(0);
        point.traces.push_back(timed.trace());
        return us;
      };
      if (point.check.passed) measure_passes(args_.samples.value_or(kEagerSamples), sample, point);
      report_.add(point);
      if (!point.check.passed) break;  // a wrong result is not worth a time
    }
  }

  void meet_peer(const BenchSets& sets, const PeerResults& ours, BenchPoint& point) {
    point.peer = peer_->prepare(sets, ours);
    if (point.peer->agrees()) return;
    point.findings.push_back(
        {.code = "MOXIE-B007",
         .severity = Severity::warning,
         .message = point.peer->arm + " has another result; it is not timed",
         .expected = fmt::format("a relative distance of at most {}", point.peer->limit),
         .got = fmt::format("{:.3g}", point.peer->relative)});
  }

  void time_graph(const MoeLayer& layer, const BenchSets& sets, const std::vector<float>& exact,
                  BenchPoint& point) {
    point.mode = BenchMode::graph;
    point.sets = work_of(*point.plan, sets);
    point.work = mean_work(point.sets);
    point.floor = floor_of(*point.plan, point.sets, setting_.curve);
    ReplayedLayer replayed(layer, sets);
    const std::vector<Finding> differing = replayed.compare();
    point.findings.insert(point.findings.end(), differing.begin(), differing.end());
    point.check.passed = point.check.passed && differing.empty();
    require_rounded(replayed.y(0), exact, point);
    if (point.check.passed) {
      std::vector<double> eager;
      for (int pass = 0; pass < kEagerPasses; ++pass) eager.push_back(replayed.eager_us());
      point.eager_us = summarise(std::move(eager)).median_us;
      if (peer_ != nullptr) {
        meet_peer(sets, [&](std::size_t set) -> const auto& { return replayed.y(set); }, point);
      }
      point.host_us = replayed.host_us();
      point.burst_us = replayed.burst_us();
      if (point.peer && point.peer->agrees()) {
        measure_alternately(args_.samples.value_or(kGraphSamples), replayed, *peer_, point);
        return report_.add(point);
      }
      replayed.warm();
      measure_passes(
          args_.samples.value_or(kGraphSamples), [&] { return replayed.replay_us(); }, point);
    }
    report_.add(point);
  }

  const BenchArgs& args_;
  const Console& console_;
  BenchProblem problem_;
  BenchWay way_ = BenchWay::eager;
  BenchWeights weights_ = BenchWeights::synth;
  BenchSetting setting_;
  BenchReport report_;
  std::unique_ptr<Peer> peer_;
  std::unique_ptr<MoeLayer> layer_;
  std::size_t layer_plan_ = 0;
  CacheFlusher flusher_;
  std::optional<ReadTest> read_test_;
};

}  // namespace

int run_bench(const BenchArgs& args, const Console& console) { return Bench(args, console).run(); }

}  // namespace moxie::cli
