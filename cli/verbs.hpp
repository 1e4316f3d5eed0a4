// SPDX-License-Identifier: Apache-2.0
// What each verb needs from the command line, and the verbs themselves. Each returns the exit code.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.hpp"
#include "moxie/convert.hpp"
#include "moxie/pack.hpp"
#include "moxie/plan.hpp"
#include "moxie/probe.hpp"
#include "moxie/synth.hpp"

namespace moxie::cli {

struct SynthArgs {
  std::filesystem::path out;
  std::string model;  // a known name, or empty with `config`
  std::filesystem::path config;
  SynthOptions options;
};
int run_synth(const SynthArgs& args, const Console& console);

struct InspectArgs {
  std::filesystem::path model;
};
int run_inspect(const InspectArgs& args, const Console& console);
int inspect_packed(const InspectArgs& args, const Console& console);
// A warning that names the ranks of the plan that a packed set does not hold.
std::optional<Finding> absent_ranks(const PackedFolder& folder);

// The option --placement; `file` belongs to the kind of that name.
struct GivenPlacement {
  PlacementKind kind = PlacementKind::contiguous;
  std::filesystem::path file;
};

struct PlanArgs {
  std::filesystem::path model;
  PlanOptions options;
  std::optional<GivenPlacement> placement;
  std::optional<std::filesystem::path> certificate;
  std::optional<std::uint64_t> tokens;
  bool why = false;
};
int run_plan(const PlanArgs& args, const Console& console);

struct PackArgs {
  std::filesystem::path model;
  PlanOptions options;
  std::optional<GivenPlacement> placement;
  std::optional<std::filesystem::path> certificate;
  std::filesystem::path out;
  std::optional<unsigned> rank;  // all when absent
  std::vector<int> layers;
  bool drafts = true;  // without layers
  FileLayout layout = FileLayout::logical;
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;
  bool measure_read = false;
};
int run_pack(const PackArgs& args, const Console& console);

struct QuantizeArgs {
  std::filesystem::path model;
  std::filesystem::path out;
  QuantizeOptions options;
};
int run_quantize(const QuantizeArgs& args, const Console& console);

// Plan options of a verb that may also find them in a packed set; what was not given is absent.
struct GivenPlan {
  std::vector<unsigned> tp;  // one plan after another
  std::optional<unsigned> ep;
  std::optional<Target> target;
  std::optional<ActFormat> act_format;
  std::optional<BlockFormat> format;
  std::optional<std::uint64_t> kernel_align;
  std::optional<ActScale> act_scale;
  std::optional<double> act_margin;
  bool batch_invariant = false;
  std::optional<EngineBackends> engine;
  std::optional<GivenPlacement> placement;
  std::optional<std::filesystem::path> certificate;
};

// Where the expert ids and weights of a run come from.
enum class RoutingSource : std::uint8_t { drawn, model, file };

struct GivenRouting {
  RoutingSource source = RoutingSource::drawn;
  Routing drawn;
  std::filesystem::path file;
};

struct RunArgs {
  std::filesystem::path model;  // or a packed set
  GivenPlan plan;
  std::optional<int> layer;  // the first that is complete
  std::optional<std::uint64_t> top_k;
  std::optional<GivenRouting> routing;
  std::optional<std::filesystem::path> input;
  std::optional<std::uint64_t> tokens;
  std::uint64_t seed = 0;
  std::uint64_t repeat = 1;
  unsigned threads = 0;  // all
  bool check = false;
  bool trace = false;
  // Of bench: experts drawn from a seed where the model is a config alone, and one rank without the
  // others.
  std::optional<std::uint64_t> weights_seed;
  std::optional<unsigned> rank;
  std::optional<std::filesystem::path> output;
};
int run_run(const RunArgs& args, const Console& console);

// How calls are timed. Graph: replays on a GPU; eager: one call after another, cold and warm.
enum class BenchWay : std::uint8_t { eager, graph };
std::string_view name_of(BenchWay way);
// Where weights come from that no checkpoint of the user's holds: a synthesised checkpoint that is
// packed, or random numbers straight into packed experts.
enum class BenchWeights : std::uint8_t { synth, random };
std::string_view name_of(BenchWeights weights);

// Who else runs a point, in alternation.
enum class BenchPeer : std::uint8_t { torch, humming, ggml };
std::string_view name_of(BenchPeer peer);

struct BenchArgs {
  std::string problem = "deepseek-v4-flash";
  std::optional<std::uint64_t> experts;  // instead of the problem's
  std::optional<std::uint64_t> hidden;
  std::optional<std::uint64_t> inter;
  std::optional<BenchWay> way;          // default: graph on a GPU
  std::optional<BenchWeights> weights;  // default: random on a GPU
  std::optional<unsigned> rank;         // alone
  std::optional<std::uint64_t> sets;    // of routing
  std::optional<BenchPeer> peer;
  std::string python = "python3";  // that runs the peer
  GivenPlan plan;
  std::vector<std::uint64_t> tokens;
  std::optional<std::uint64_t> top_k;
  std::optional<GivenRouting> routing;
  std::optional<std::uint64_t> seed;
  std::optional<std::uint64_t> samples;
  unsigned threads = 0;  // all
  std::optional<std::filesystem::path> baseline;
  double fail_over_pct = 5;
  bool load = false;                       // times loads instead of calls
  std::vector<std::uint64_t> act_margins;  // to sweep; empty: time instead
  std::string command;                     // as typed
};
int run_bench(const BenchArgs& args, const Console& console);

struct VerifyArgs {
  std::filesystem::path folder;
  std::filesystem::path against;
  bool numeric = false;
  std::vector<int> layers;  // of the numeric check; the first packed one when empty
};
int run_verify(const VerifyArgs& args, const Console& console);

struct DoctorArgs {
  std::filesystem::path model;  // or a packed set
  std::vector<int> layers;      // all when empty
  bool deep = false;
  std::optional<std::filesystem::path> certificate;
};
int run_doctor(const DoctorArgs& args, const Console& console);

int run_devices(const Console& console);

// A model as the verbs of this command use it: opened, read, with what opening and reading found.
struct OpenedModel {
  MoeModel model;
  std::vector<Finding> findings;  // warnings and notes
};
OpenedModel open_model(const std::filesystem::path& path);
// Error(usage) MOXIE-U001 for a packed set where a checkpoint is meant: it has config and tensors,
// and those are parts.
void require_no_packed_set(const std::filesystem::path& path, const std::string& hint);

}  // namespace moxie::cli
