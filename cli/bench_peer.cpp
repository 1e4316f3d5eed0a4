// SPDX-License-Identifier: Apache-2.0
// Raw files for what is large, JSON for the rest.
#include "cli/bench_peer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <span>
#include <string_view>
#include <utility>

#include "cli/peer_script.hpp"

namespace moxie::cli {

namespace {

// Relative Frobenius distance of two correct results: both round their sums to bf16 and what enters
// the down product to bf16, or twice to FP8.
constexpr double kBf16Limit = 2e-2;
constexpr double kFp8Limit = 8e-2;
// The peer on the CPU rounds activations to int8, twice.
constexpr double kInt8Limit = 3e-2;
constexpr std::uint64_t kLeastReplays = 3;
constexpr int kMostTries = 3;

void require_written(const std::ofstream& file, const std::filesystem::path& path) {
  if (file) return;
  throw Error(ErrorCode::environment, {.code = "MOXIE-E001",
                                       .message = "the peer's input can not be written",
                                       .where = {.file = path.string()},
                                       .hint = "a folder with more room in TMPDIR"});
}

void write_bytes(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  require_written(file, path);
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  write_bytes(path, std::as_bytes(std::span(text)));
}

Json segment_json(std::uint64_t offset, std::uint64_t rows, std::uint64_t row_bytes) {
  return Json::object().set("offset", offset).set("rows", rows).set("row_bytes", row_bytes);
}

// Where the peer finds the tensors of an expert, and how far it is to the next one's.
struct PeerLayout {
  Json segments;
  std::uint64_t stride = 0;
};

// Blobs as they are packed.
PeerLayout packed_layout(const ShardPlan& plan) {
  PeerLayout layout{.segments = {}, .stride = plan.layout.stride};
  for (const PackedSegment& segment : plan.layout.segments) {
    layout.segments.set(name_of(segment.segment),
                        segment_json(segment.offset, segment.rows, segment.row_bytes));
  }
  return layout;
}

// Tensors as a checkpoint holds them, one behind the other, whatever layout the plan's kernel has.
PeerLayout logical_layout(const ShardPlan& plan, const UnpackedExpert& expert) {
  PeerLayout layout{.segments = {}};
  for (const PackedSegment& segment : plan.layout.segments) {
    const std::uint64_t bytes = expert.tensors[static_cast<std::size_t>(segment.segment)].size();
    const bool down = segment.segment == Segment::down || segment.segment == Segment::down_scale;
    const std::uint64_t rows = segment.rows == 1 ? 1
                               : down            ? plan.hidden
                                                 : plan.inter().original.value;
    layout.segments.set(name_of(segment.segment), segment_json(layout.stride, rows, bytes / rows));
    layout.stride += bytes;
  }
  return layout;
}

void write_packed(const std::filesystem::path& path, const BlobSource& experts) {
  write_bytes(path, pack(experts).blobs);
}

// One expert at a time: all of them may not fit into memory twice.
void write_logical(const std::filesystem::path& path, const ShardPlan& plan,
                   const BlobSource& experts) {
  std::ofstream file(path, std::ios::binary);
  std::vector<std::byte> blob(plan.layout.stride);
  UnpackedExpert expert = make_unpacked(plan, std::byte{0});
  for (std::uint64_t slot = 0; slot < experts.experts.count(); ++slot) {
    if (interrupted())
      throw Error(ErrorCode::interrupted, {.code = "MOXIE-U130", .message = "interrupted"});
    experts.pack_expert(static_cast<std::uint64_t>(experts.experts.id(slot)), blob);
    unpack_expert(plan, plan.ranks.front(), blob, expert);
    for (const PackedSegment& segment : plan.layout.segments) {
      const auto& tensor = expert.tensors[static_cast<std::size_t>(segment.segment)];
      file.write(reinterpret_cast<const char*>(tensor.data()),
                 static_cast<std::streamsize>(tensor.size()));
    }
  }
  file.close();
  require_written(file, path);
}

Json problem_of(const ShardPlan& plan, const LayerSpec& spec, const BlobSource& experts,
                PeerLayout layout, unsigned threads) {
  Json problem;
  problem.set("format", name_of(plan.format)).set("act_format", name_of(plan.act_format));
  problem.set("hidden", plan.hidden).set("inter", plan.ranks.front().slice.rows.count.value);
  problem.set("experts", experts.experts.count()).set("first_expert", experts.experts.id(0));
  problem.set("top_k", spec.top_k).set("activation", name_of(spec.activation));
  problem.set("limit", spec.activation_limit ? Json(*spec.activation_limit) : Json());
  problem.set("threads", threads);
  return problem.set("stride", layout.stride).set("segments", std::move(layout.segments));
}

struct PeerInput {
  const ShardPlan& plan;
  const LayerSpec& spec;
  const BlobSource& experts;
  unsigned threads = 1;
};

// Everything that the script reads before its first point; answers where the script is.
std::filesystem::path write_all(BenchPeer peer, const std::filesystem::path& folder,
                                const PeerInput& input) {
  const bool logical = peer == BenchPeer::ggml;
  const std::filesystem::path script = folder / "peer.py";
  write_text(script, logical ? kGgmlPeerScript : kPeerScript);
  PeerLayout layout = logical ? logical_layout(input.plan, make_unpacked(input.plan, std::byte{0}))
                              : packed_layout(input.plan);
  write_text(
      folder / "problem.json",
      problem_of(input.plan, input.spec, input.experts, std::move(layout), input.threads).dump());
  if (logical)
    write_logical(folder / "weights.bin", input.plan, input.experts);
  else
    write_packed(folder / "weights.bin", input.experts);
  return script;
}

double differ_pct(const std::vector<double>& first, const std::vector<double>& second) {
  const double a = summarise(first).median_us;
  const double b = summarise(second).median_us;
  return 100 * (std::max(a, b) / std::min(a, b) - 1);
}

std::vector<double> joined(std::vector<double> first, const std::vector<double>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

void require_peer_runs(BenchPeer peer, const ShardPlan& plan) {
  const auto refuse = [](std::string message, std::string expected, std::string got) {
    throw Error(ErrorCode::usage, {.code = "MOXIE-B005",
                                   .message = std::move(message),
                                   .expected = std::move(expected),
                                   .got = std::move(got)});
  };
  if (plan.ranks.size() > 1) {
    refuse("a peer runs one rank", "--tp 1 --ep 1, or --rank",
           fmt::format("{} ranks", plan.ranks.size()));
  }
  if (!plan.ranks.front().experts.range())
    refuse("a peer runs neighbouring experts", "--placement contiguous",
           std::string(name_of(plan.placement.kind)));
  if (peer == BenchPeer::ggml) {
    const bool near = plan.act_format == ActFormat::bf16 || plan.act_format == ActFormat::int8 ||
                      plan.act_format == ActFormat::int8x2;
    if (!near)
      refuse("ggml has other activations", "bf16, int8 or int8x2",
             std::string(name_of(plan.act_format)));
    if (plan.tp > 1) refuse("ggml runs whole experts", "--tp 1", fmt::to_string(plan.tp));
    return;
  }
  const bool runs = plan.act_format == ActFormat::bf16 || plan.act_format == ActFormat::fp8 ||
                    plan.act_format == ActFormat::fp8x2;
  if (!runs)
    refuse("no peer has these activations", "bf16, fp8 or fp8x2",
           std::string(name_of(plan.act_format)));
  if (plan.layout.kind != LayoutKind::linear)
    refuse("no peer reads this layout", "linear", std::string(name_of(plan.layout.kind)));
}

Peer::Peer(BenchPeer peer, const std::string& python, const ShardPlan& plan, const LayerSpec& spec,
           const BlobSource& experts, unsigned threads)
    : process_({python,
                write_all(peer, folder_.path(),
                          {.plan = plan, .spec = spec, .experts = experts, .threads = threads})
                    .string(),
                std::string(name_of(peer)), folder_.path().string()}),
      limit_(peer == BenchPeer::ggml              ? kInt8Limit
             : plan.act_format == ActFormat::bf16 ? kBf16Limit
                                                  : kFp8Limit) {
  const Json ready = process_.answer();
  if (const Json* versions = ready.find("versions"); versions != nullptr) versions_ = *versions;
  std::error_code ignored;  // it is loaded
  std::filesystem::remove(folder_.path() / "weights.bin", ignored);
}

PeerFigures Peer::prepare(const BenchSets& sets, const PeerResults& ours) {
  for (std::size_t set = 0; set < sets.probes.size(); ++set) {
    const Probe& probe = sets.probes[set];
    const auto write = [&](std::string_view what, std::span<const std::byte> bytes) {
      write_bytes(folder_.path() / fmt::format("{}.{}", set, what), bytes);
    };
    write("x", probe.x);
    write("ids", std::as_bytes(std::span(probe.topk_ids)));
    write("weights", std::as_bytes(std::span(probe.topk_weights)));
    write("y", std::as_bytes(std::span(ours(set))));
  }
  const Json answer = process_.ask(Json::object()
                                       .set("do", "point")
                                       .set("folder", folder_.path().string())
                                       .set("tokens", sets.probes.front().tokens)
                                       .set("sets", sets.probes.size())
                                       .set("limit", limit_));
  PeerFigures figures{.versions = versions_, .limit = limit_, .samples_us = {}, .arms = {}};
  if (const Json* arms = answer.find("arms"); arms != nullptr) figures.arms = *arms;
  if (const Json* arm = answer.find("arm"); arm != nullptr) figures.arm = arm->as_string();
  if (const Json* relative = answer.find("relative"); relative != nullptr)
    figures.relative = relative->as_double(figures.relative);
  return figures;
}

Json Peer::go(std::uint64_t replays, double warm_s) {
  return process_.ask(Json::object().set("do", "go").set("replays", replays).set("warm_s", warm_s));
}

std::vector<double> Peer::times_of(const Json& answer, std::uint64_t count) const {
  std::vector<double> times;
  if (const Json* found = answer.find("times_us"); found != nullptr && found->is_array()) {
    for (const Json& time : found->elements()) times.push_back(time.as_double());
  }
  const bool bad = std::ranges::any_of(times, [](double time) { return !(time > 0); });
  if (times.size() == count && !bad) return times;
  throw Error(ErrorCode::environment, {.code = "MOXIE-B006",
                                       .message = "the peer does not say its times",
                                       .expected = fmt::format("{} numbers above 0", count),
                                       .got = answer.dump_compact()});
}

std::vector<double> Peer::replay(std::uint64_t replays) {
  return times_of(go(replays, kWarmSeconds), replays);
}

std::vector<PeerCall> Peer::call(std::uint64_t calls) {
  const Json answer = go(calls, 0);
  std::vector<PeerCall> made;
  for (const double us : times_of(answer, calls)) made.push_back({.us = us});
  const Json* waits = answer.find("core_wait");
  for (std::size_t i = 0; waits != nullptr && i < waits->elements().size() && i < made.size(); ++i)
    made[i].core_wait = waits->elements()[i].as_double();
  return made;
}

void measure_alternately(std::uint64_t samples, ReplayedLayer& ours, Peer& theirs,
                         BenchPoint& point) {
  const std::uint64_t replays = std::max((samples + 1) / 2, kLeastReplays);
  const auto our_pass = [&] {
    ours.warm();
    std::vector<double> times;
    for (std::uint64_t i = 0; i < replays; ++i) times.push_back(ours.replay_us());
    return times;
  };
  const auto their_pass = [&] { return theirs.replay(replays); };
  for (int attempt = 0; attempt < kMostTries; ++attempt) {
    if (interrupted())
      throw Error(ErrorCode::interrupted, {.code = "MOXIE-U130", .message = "interrupted"});
    const std::vector<double> first = our_pass();
    const std::vector<double> their_first = their_pass();
    const std::vector<double> their_second = their_pass();
    const std::vector<double> second = our_pass();
    point.passes_differ_pct = differ_pct(first, second);
    point.samples_us = joined(first, second);
    point.peer->passes_differ_pct = differ_pct(their_first, their_second);
    point.peer->samples_us = joined(their_first, their_second);
    if (std::max(point.passes_differ_pct, point.peer->passes_differ_pct) <= kMostPassesDiffer)
      return;
  }
}

}  // namespace moxie::cli
