// SPDX-License-Identifier: Apache-2.0
// The option tables, and how words become values.
#include "cli/options.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/bench_problem.hpp"
#include "cli/option_kinds.hpp"

namespace moxie::cli {

namespace {

// The words between commas; repeated flags add up.
std::vector<std::string> parts_of(const std::vector<std::string>& words) {
  std::vector<std::string> parts;
  for (const std::string& word : words) {
    for (std::size_t begin = 0; begin <= word.size();) {
      const std::size_t comma = std::min(word.find(',', begin), word.size());
      parts.push_back(word.substr(begin, comma - begin));
      begin = comma + 1;
    }
  }
  return parts;
}

// "3", "0..5" (inclusive) or "1,4".
std::vector<int> parse_layers(const std::vector<std::string>& words) {
  std::vector<int> layers;
  for (const std::string& word : parts_of(words)) {
    const auto number = [&](std::string_view text) {
      int value = -1;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || end != text.data() + text.size() || value < 0) {
        throw CLI::ValidationError("--layers", "\"" + word + "\" is no layer, list or range a..b");
      }
      return value;
    };
    const auto dots = word.find("..");
    const int first = number(word.substr(0, dots));
    const int last = dots == std::string::npos ? first : number(word.substr(dots + 2));
    if (last < first || last - first > 100'000)
      throw CLI::ValidationError("--layers", "\"" + word + "\" is an empty range");
    for (int layer = first; layer <= last; ++layer) {
      if (std::find(layers.begin(), layers.end(), layer) == layers.end()) layers.push_back(layer);
    }
  }
  return layers;
}

// "3", "1,3" or "1..64", which doubles.
template <class Number>
std::vector<Number> parse_doubling(const std::string& flag, const std::vector<std::string>& words) {
  std::vector<Number> numbers;
  for (const std::string& word : parts_of(words)) {
    const auto dots = word.find("..");
    const auto first = read_count<Number>(flag, word.substr(0, dots));
    const auto last = dots == std::string::npos
                          ? first
                          : read_count<Number>(flag, word.substr(dots + 2), Number{1});
    if (last < first || (first == 0 && last != 0))
      throw CLI::ValidationError(flag, "\"" + word + "\" is an empty range");
    for (std::uint64_t number = first;; number *= 2) {
      numbers.push_back(static_cast<Number>(number));
      if (number == 0 || number > last / 2) break;
    }
  }
  return numbers;
}

GivenRouting parse_routing(const std::string& word) {
  const auto routing = routing_of(word);
  if (routing) return *routing;
  throw CLI::ValidationError(
      "--routing", "\"" + word + "\" is none of model|uniform|zipf[:S]|one:E|hot[:E]|file:PATH");
}

const std::vector kFormats = {BlockFormat::mxfp4, BlockFormat::nvfp4};

void add_model(CLI::App* verb, std::filesystem::path& model, const std::string& more = {}) {
  verb->add_option(
          "MODEL", model,
          "folder with config.json, a .json config alone, or a .safetensors or .gguf file" + more)
      ->required();
}

// Both backends of an engine, or none.
void add_engine(CLI::App* verb, std::optional<EngineBackends>& engine) {
  const auto add = [&](const std::string& flag, std::string EngineBackends::* name,
                       const std::string& text) {
    return verb
        ->add_option_function<std::string>(
            flag,
            [&engine, name](const std::string& word) {
              if (!engine) engine.emplace();
              (*engine).*name = word;
            },
            text)
        ->type_name("NAME");
  };
  CLI::Option* attention =
      add("--attention", &EngineBackends::attention,
          "plan for an engine with this attention backend: padded axes need a vetted combination");
  CLI::Option* moe = add("--moe", &EngineBackends::moe,
                         "and this MoE backend, whose kernels then run the experts");
  attention->needs(moe);
  moe->needs(attention);
}

// The plan options but --tp, which is one number or a list.
template <class Options>
void add_shared_plan_options(CLI::App* verb, Options& options) {
  add_count<unsigned>(verb, "--ep", options.ep,
                      "expert-parallel groups: they share the experts (default 1)");
  add_choice(verb, "--format", options.format, kFormats, "when config and tensors leave it open");
  add_choice<Target>(verb, "--target", options.target,
                     {Target::cpu, Target::sm90, Target::sm100, Target::sm120},
                     "what runs the plan (default cpu)");
  add_choice<ActFormat>(verb, "--act-format", options.act_format,
                        {ActFormat::bf16, ActFormat::fp8, ActFormat::fp8x2, ActFormat::mxfp8,
                         ActFormat::nvfp4, ActFormat::int8, ActFormat::int8x2},
                        "activations in the matrix products (default bf16)");
  add_choice<ActScale>(verb, "--act-scale", options.act_scale,
                       {ActScale::checkpoint, ActScale::warmup, ActScale::dynamic, ActScale::row},
                       "global scales of nvfp4 activations (default checkpoint)");
  add_number(verb, "--act-margin", options.act_margin,
             "of warmup: times the amax that it saw is not clipped (default 8)");
  add_count<std::uint64_t>(verb, "--kernel-align", options.kernel_align,
                           "pad the local intermediate width to a common multiple of this and the "
                           "kernel's own alignment");
  verb->add_flag("--batch-invariant", options.batch_invariant,
                 "refuse a plan in which a token's result depends on what else is in the batch");
  add_engine(verb, options.engine);
}

GivenPlacement parse_placement(const std::string& word) {
  for (const PlacementKind kind : {PlacementKind::contiguous, PlacementKind::interleaved}) {
    if (word == name_of(kind)) return {.kind = kind, .file = {}};
  }
  if (word.starts_with("file:") && word.size() > 5)
    return {.kind = PlacementKind::file, .file = word.substr(5)};
  throw CLI::ValidationError("--placement",
                             "\"" + word + "\" is none of contiguous|interleaved|file:PATH");
}

void add_placement(CLI::App* verb, std::optional<GivenPlacement>& placement) {
  verb->add_option_function<std::string>(
          "--placement",
          [&placement](const std::string& word) { placement = parse_placement(word); },
          "contiguous|interleaved|file:PATH: how experts go to the groups of --ep (default "
          "contiguous)")
      ->type_name("NAME");
}

CLI::Option* add_layers(CLI::App* verb, std::vector<int>& layers) {
  return verb
      ->add_option_function<std::vector<std::string>>(
          "--layers",
          [&layers](const std::vector<std::string>& words) { layers = parse_layers(words); },
          "layers: 3, 1,4 or 0..5 (default all with tensors)")
      ->allow_extra_args(false);
}

// Also "main": all but draft blocks, with what belongs to no layer.
void add_packed_layers(CLI::App* verb, PackArgs& args) {
  verb->add_option_function<std::vector<std::string>>(
          "--layers",
          [&args](const std::vector<std::string>& words) {
            args.drafts = std::find(words.begin(), words.end(), "main") == words.end();
            if (args.drafts) args.layers = parse_layers(words);
            if (args.drafts || words.size() == 1) return;
            throw CLI::ValidationError("--layers", "\"main\" is not one of several");
          },
          "layers: 3, 1,4 or 0..5, or main for all but draft blocks (default all with tensors)")
      ->allow_extra_args(false);
}

void add_certificate(CLI::App* verb, std::optional<std::filesystem::path>& certificate) {
  verb->add_option("--certificate", certificate,
                   "written by moxie doctor: what the bytes allow enters the plan");
}

void add_plan_choice(CLI::App* verb, PlanOptions& options) {
  add_count<unsigned>(verb, "--tp", options.tp,
                      "tensor-parallel ranks: they share the intermediate axis (default 1)");
  add_shared_plan_options(verb, options);
}

void add_memory(CLI::App* verb, std::uint64_t& bytes) {
  // CLI11 reads "-1" as the largest size, "MB" as one megabyte, and other bases.
  const CLI::Validator begins_with_number(
      [](std::string& text) {
        std::uint64_t number = 0;
        const char* end = text.data() + text.size();
        const auto [unit, error] = std::from_chars(text.data(), end, number);
        const bool plain = std::all_of(unit, end, [](char c) {
          return c == ' ' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        });
        const bool octal = text.starts_with('0') && unit != text.data() + 1;
        const bool size = error == std::errc() && plain && !octal;
        return size ? std::string() : "\"" + text + "\" is no size";
      },
      "");
  verb->add_option("--memory", bytes, "bound on memory, e.g. 512MB, 2GiB (default 1GiB)")
      ->transform(CLI::AsSizeValue(true))
      ->transform(begins_with_number);
}

// Numbers of ranks, planned one after another.
void add_tp_list(CLI::App* verb, GivenPlan& plan) {
  verb->add_option_function<std::vector<std::string>>(
          "--tp",
          [&plan](const std::vector<std::string>& words) {
            plan.tp = parse_doubling<unsigned>("--tp", words);
          },
          "tensor-parallel ranks: 3, or a list 1,3 or 1..8 (doubling): one plan after another")
      ->allow_extra_args(false)
      ->type_name("LIST");
}

void add_routing(CLI::App* verb, std::optional<GivenRouting>& routing) {
  verb->add_option_function<std::string>(
          "--routing", [&routing](const std::string& word) { routing = parse_routing(word); },
          "model|uniform|zipf[:S]|one:E|hot[:E]|file:PATH: how tokens go to experts (default "
          "uniform)")
      ->type_name("NAME");
}

}  // namespace

void add_synth_options(CLI::App* verb, SynthArgs& args) {
  verb->add_option("OUT", args.out, "folder to write; must not exist or be empty")->required();
  auto* source = verb->add_option_group("source")->require_option(1);
  source->add_option(
      "--model", args.model,
      "deepseek-v4-flash|-v4-pro|-v4.1-flash, gpt-oss-20b|-120b, kimi-k2, glm-5, qwen3-moe, tiny");
  source->add_option("--config", args.config, "a config.json of your own");
  add_count<std::uint64_t>(verb, "--num-layers", args.options.num_layers,
                           "layers to write (default 1)");
  add_count<std::uint64_t>(verb, "--experts", args.options.experts,
                           "experts per layer (default at most 16)");
  add_count<std::uint64_t>(verb, "--hidden", args.options.hidden,
                           "hidden width (default the model's)");
  add_count<std::uint64_t>(verb, "--inter", args.options.inter,
                           "intermediate width of an expert (default the model's)");
  verb->add_option_function<std::string>(
          "--format",
          [&options = args.options](const std::string& word) {
            options.format.reset();
            options.dense.reset();
            if (word == "bf16") {
              options.dense = DenseFormat::bf16;
            } else if (word == "fp8") {
              options.dense = DenseFormat::fp8_block;
            } else {
              const auto format = std::ranges::find(kFormats, word, [](BlockFormat candidate) {
                return std::string(name_of(candidate));
              });
              if (format == kFormats.end()) {
                throw CLI::ValidationError("--format",
                                           "\"" + word + "\" is none of mxfp4|nvfp4|bf16|fp8");
              }
              options.format = *format;
            }
          },
          "mxfp4|nvfp4|bf16|fp8: of the experts (default the model's)")
      ->type_name("NAME");
  add_choice<DialectKind>(
      verb, "--dialect", args.options.dialect,
      {DialectKind::deepseek, DialectKind::modelopt, DialectKind::compressed_tensors,
       DialectKind::quark, DialectKind::gpt_oss, DialectKind::gguf},
      "default the model's");
  add_choice<Pattern>(verb, "--pattern", args.options.pattern,
                      {Pattern::normal, Pattern::outliers, Pattern::monotonic, Pattern::constant},
                      "of the weights (default normal)");
  verb->add_flag("--whole", args.options.whole,
                 "all tensors of a DeepSeek-V4; at its own size alone vision and whole engrams");
  add_count<std::uint64_t>(verb, "--seed", args.options.seed,
                           "same seed, same bytes, on every machine (default 0)");
}

void add_inspect_options(CLI::App* verb, InspectArgs& args) { add_model(verb, args.model); }

void add_plan_options(CLI::App* verb, PlanArgs& args) {
  add_model(verb, args.model);
  add_plan_choice(verb, args.options);
  add_placement(verb, args.placement);
  add_certificate(verb, args.certificate);
  add_count<std::uint64_t>(verb, "--tokens", args.tokens, "tokens per call, for the workspace size",
                           1);
  verb->add_flag("--why", args.why, "print every kernel considered, with its reason");
}

void add_pack_options(CLI::App* verb, PackArgs& args) {
  add_model(verb, args.model);
  verb->add_option("--out", args.out, "folder to write")->required();
  add_plan_choice(verb, args.options);
  add_placement(verb, args.placement);
  add_certificate(verb, args.certificate);
  verb->add_option_function<std::string>(
      "--rank",
      [&args](const std::string& word) {
        args.rank.reset();
        if (word != "all") args.rank = read_count<unsigned>("--rank", word);
      },
      "one rank, or all (default)");
  add_packed_layers(verb, args);
  add_choice<FileLayout>(
      verb, "--layout", args.layout, {FileLayout::logical, FileLayout::kernel},
      "source names, or one blob per expert as the kernel reads it (default logical)");
  add_memory(verb, args.memory_bytes);
  verb->add_flag("--measure-read", args.measure_read,
                 "read the source's files plainly first, both times from the disk, and state the "
                 "rates");
}

void add_quantize_options(CLI::App* verb, QuantizeArgs& args) {
  add_model(verb, args.model);
  verb->add_option_function<std::string>(
          "OUT",
          [&args](const std::string& word) {
            if (word.empty()) throw CLI::ValidationError("OUT", "the folder has no name");
            args.out = word;
          },
          "folder to write; must not exist or be empty")
      ->required();
  add_choice<ConvertFormat>(verb, "--format", args.options.format,
                            {ConvertFormat::nvfp4, ConvertFormat::mxfp4, ConvertFormat::fp8},
                            "of the experts in OUT");
  verb->get_option("--format")->required();
  add_choice<DialectKind>(verb, "--dialect", args.options.dialect,
                          {DialectKind::deepseek, DialectKind::modelopt,
                           DialectKind::compressed_tensors, DialectKind::gpt_oss},
                          "names, types (default: what fits the model)");
  add_choice<ConvertRecipe>(verb, "--recipe", args.options.recipe,
                            {ConvertRecipe::amax, ConvertRecipe::mse, ConvertRecipe::four_over_six,
                             ConvertRecipe::ceil, ConvertRecipe::floor, ConvertRecipe::fp8_closed},
                            "of scales (default nvfp4 amax, mxfp4 ceil)");
  verb->add_option_function<std::string>(
          "--activations",
          [&args](const std::string& word) {
            args.options.activations = word.starts_with("file:") ? word.substr(5) : word;
            if (args.options.activations.empty())
              throw CLI::ValidationError("--activations", "the file has no name");
          },
          "layers.L.hidden_states and .intermediate: stores input scales")
      ->type_name("[file:]PATH");
  add_memory(verb, args.options.memory_bytes);
}

void add_verify_options(CLI::App* verb, VerifyArgs& args) {
  verb->add_option("DIR", args.folder, "folder written by moxie pack")->required();
  verb->add_option("--against", args.against, "the checkpoint it was packed from")->required();
  verb->add_flag("--numeric", args.numeric,
                 "also compute with whole DeepSeek-V4 sets: padding adds zero, ranks add up");
  add_layers(verb, args.layers)
      ->needs("--numeric")
      ->description("of the numbers: 3, 1,4 or 0..5 (default the first one packed)");
}

void add_doctor_options(CLI::App* verb, DoctorArgs& args) {
  add_model(verb, args.model, ", or a packed set");
  add_layers(verb, args.layers);
  verb->add_flag("--deep", args.deep, "read every scale, scalar and bias too");
  verb->add_option("--certificate", args.certificate,
                   "file to write: where the scales allow exact FP8, and which NVFP4 is MXFP4");
}

void add_run_options(CLI::App* verb, RunArgs& args) {
  add_model(verb, args.model, ", or a packed set");
  add_tp_list(verb, args.plan);
  add_shared_plan_options(verb, args.plan);
  add_placement(verb, args.plan.placement);
  add_certificate(verb, args.plan.certificate);
  add_count<int>(verb, "--layer", args.layer, "layer to run (default the first complete one)");
  add_count<std::uint64_t>(verb, "--top-k", args.top_k, "experts per token (default the config's)",
                           std::uint64_t{1});
  add_routing(verb, args.routing);
  verb->add_option_function<std::string>(
          "--input",
          [&args](const std::string& word) {
            args.input = word.starts_with("file:") ? word.substr(5) : word;
          },
          "safetensors file with hidden_states (default random ones)")
      ->type_name("[file:]PATH");
  add_count<std::uint64_t>(verb, "--tokens", args.tokens, "tokens (default the input's, else 64)");
  add_count<std::uint64_t>(verb, "--seed", args.seed, "of random inputs (default 0)");
  add_count<std::uint64_t>(verb, "--repeat", args.repeat, "measured calls (default 1)",
                           std::uint64_t{1});
  add_count<unsigned>(verb, "--threads", args.threads, "threads (default all)", 1U);
  verb->add_flag("--check", args.check, "compare with the double-precision reference");
  verb->add_flag("--trace", args.trace, "print the stage times of every repeat");
  verb->add_option("--output", args.output, "safetensors file to write: output and inputs");
}

void add_bench_options(CLI::App* verb, BenchArgs& args) {
  verb->add_option("--problem", args.problem,
                   "a model's name (deepseek-v4-flash, deepseek-v4-pro, tiny), a JSON file, or a "
                   "checkpoint's folder (default deepseek-v4-flash)")
      ->type_name("NAME|FILE");
  add_count<std::uint64_t>(verb, "--experts", args.experts,
                           "experts of a named problem (default: at most 16; random: all)",
                           std::uint64_t{1});
  add_count<std::uint64_t>(verb, "--hidden", args.hidden, "hidden width of a named problem",
                           std::uint64_t{1});
  add_count<std::uint64_t>(verb, "--inter", args.inter,
                           "intermediate width of a named problem, or a rank's share of it",
                           std::uint64_t{1});
  add_choice<BenchWeights>(
      verb, "--weights", args.weights, {BenchWeights::synth, BenchWeights::random},
      "of a named problem (default random for calls on a GPU, with --vs and for more than "
      "16 experts, else synth)");
  add_choice<BenchWay>(verb, "--mode", args.way, {BenchWay::eager, BenchWay::graph},
                       "cold and warm calls, or replays (default graph on a GPU, else eager)");
  add_count<std::uint64_t>(verb, "--sets", args.sets,
                           "routing sets in turn (default 8 to 64 tokens, 4 to 512, else 2)",
                           std::uint64_t{1});
  add_choice<BenchPeer>(verb, "--vs", args.peer,
                        {BenchPeer::torch, BenchPeer::humming, BenchPeer::ggml},
                        "times it too, in alternation, on one rank of a GPU; ggml: on the CPU");
  verb->add_option("--python", args.python, "the interpreter of --vs (default python3)");
  add_count<unsigned>(verb, "--rank", args.rank, "one rank of the plan alone, with random weights");
  add_tp_list(verb, args.plan);
  add_shared_plan_options(verb, args.plan);
  add_placement(verb, args.plan.placement);
  add_certificate(verb, args.plan.certificate);
  verb->add_option_function<std::vector<std::string>>(
          "--tokens",
          [&args](const std::vector<std::string>& words) {
            args.tokens = parse_doubling<std::uint64_t>("--tokens", words);
          },
          "tokens per call: 8, 1,8,64 or 1..64 (doubling) (default the problem's, else 1,8,64)")
      ->allow_extra_args(false)
      ->type_name("LIST");
  add_count<std::uint64_t>(verb, "--top-k", args.top_k, "experts per token (default the config's)",
                           std::uint64_t{1});
  add_routing(verb, args.routing);
  add_count<std::uint64_t>(verb, "--seed", args.seed, "of weights and inputs (default 0)");
  add_count<std::uint64_t>(verb, "--samples", args.samples,
                           "measured calls a point (default 20; graph: 40)", std::uint64_t{1});
  add_count<unsigned>(verb, "--threads", args.threads, "threads (default all)", 1U);
  verb->add_flag(
      "--load", args.load,
      "times loading the layer, instead of calls; its memory, and on a GPU the copy rate");
  verb->add_option_function<std::vector<std::string>>(
          "--sweep",
          [&args](const std::vector<std::string>& words) {
            if (words.size() != 2 || words[0] != "act-margin")
              throw CLI::ValidationError("--sweep", "needs act-margin and a list, as 1..32");
            args.act_margins = parse_doubling<std::uint64_t>("--sweep", {words[1]});
            if (args.act_margins.front() == 0)
              throw CLI::ValidationError("--sweep", "a margin is at least 1");
          },
          "act-margin LIST: what margins of --act-scale warmup clip and lose, instead of times")
      ->expected(2)
      ->type_name("act-margin LIST");
  verb->add_option("--baseline", args.baseline,
                   "records of an earlier run (--json) to compare with");
  verb->add_option("--fail-over", args.fail_over_pct,
                   "percent slower than the baseline that is a failure (default 5)")
      ->check(CLI::Range(0.0, 1e6))
      // A range lets through what compares with nothing.
      ->check(CLI::Validator(
          [](std::string& text) {
            return text.find_first_not_of("0123456789.eE+") == std::string::npos
                       ? std::string()
                       : "\"" + text + "\" is no percentage";
          },
          "PCT"));
}

}  // namespace moxie::cli
