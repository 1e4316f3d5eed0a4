// SPDX-License-Identifier: Apache-2.0
// The command line: parsing only. Each verb is in the file of its name.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cli/console.hpp"
#include "cli/verbs.hpp"

namespace moxie::cli {

namespace {

// An option whose value is one of the names of an enumeration.
template <class Enum, class Variable>
void add_choice(CLI::App* verb, const std::string& flag, Variable& variable,
                const std::vector<Enum>& values, const std::string& description) {
  std::string names;
  for (const Enum value : values) names += (names.empty() ? "" : "|") + std::string(name_of(value));
  const auto choose = [&variable, values, names, flag](const std::string& word) {
    for (const Enum value : values) {
      if (name_of(value) == word) {
        variable = value;
        return;
      }
    }
    throw CLI::ValidationError(flag, "\"" + word + "\" is none of " + names);
  };
  verb->add_option_function<std::string>(flag, choose, names + ": " + description)
      ->type_name("NAME");
}

// A whole number in decimal digits: no sign, and neither 0x10 nor 010 means sixteen or eight.
template <class Number>
Number read_count(const std::string& flag, const std::string& text, Number least = 0) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    throw CLI::ValidationError(flag, "\"" + text + "\" is no whole number from " +
                                         std::to_string(least) + " to " +
                                         std::to_string(std::numeric_limits<Number>::max()));
  }
  return value;
}

template <class Number, class Variable>
void add_count(CLI::App* verb, const std::string& flag, Variable& variable,
               const std::string& description, Number least = 0) {
  const auto read = [&variable, flag, least](const std::string& text) {
    variable = read_count<Number>(flag, text, least);
  };
  verb->add_option_function<std::string>(flag, read, description)->type_name("N");
}

// Help that begins with the examples of the command asked about.
class HelpFormatter final : public CLI::Formatter {
 public:
  void add_examples(const std::string& command, std::string examples) {
    examples_[command] = std::move(examples);
  }

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    const auto found = examples_.find(app->get_name());
    const std::string head = found == examples_.end() ? "" : "Examples:\n" + found->second + "\n";
    return head + CLI::Formatter::make_help(app, std::move(name), mode);
  }

 private:
  std::map<std::string, std::string> examples_;
};

// "3", "0..5" (inclusive) or "1,4"; repeated flags add up.
std::vector<int> parse_layers(const std::vector<std::string>& words) {
  std::vector<int> layers;
  std::vector<std::string> parts;
  for (const std::string& word : words) {
    for (std::size_t begin = 0; begin <= word.size();) {
      const std::size_t comma = std::min(word.find(',', begin), word.size());
      parts.push_back(word.substr(begin, comma - begin));
      begin = comma + 1;
    }
  }
  for (const std::string& word : parts) {
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

const std::vector kFormats = {BlockFormat::mxfp4, BlockFormat::nvfp4};

void add_model(CLI::App* verb, std::filesystem::path& model) {
  verb->add_option("MODEL", model,
                   "folder with config.json, a .json config alone, or a .safetensors file")
      ->required();
}

void add_plan_options(CLI::App* verb, PlanOptions& options) {
  add_count<unsigned>(verb, "--tp", options.tp,
                      "tensor-parallel ranks: they share the intermediate axis (default 1)");
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
  add_count<std::uint64_t>(verb, "--kernel-align", options.kernel_align,
                           "pad the local intermediate width to a common multiple of this and the "
                           "kernel's own alignment");
  verb->add_option_function<std::string>(
          "--placement",
          [](const std::string& word) {
            if (word != "contiguous")
              throw CLI::ValidationError("--placement", "\"" + word + "\" is not contiguous");
          },
          "contiguous: how experts go to ranks (default, and the only one)")
      ->type_name("NAME");
}

CLI::App* add_verb(CLI::App& app, HelpFormatter& help, const std::string& name,
                   const std::string& summary, const std::string& examples,
                   ConsoleOptions& console) {
  CLI::App* verb = app.add_subcommand(name, summary);
  help.add_examples(name, examples);
  verb->add_flag("--json", console.json, "print one JSON document on stdout");
  verb->add_flag("-q,--quiet", console.quiet, "no talk on stderr but errors");
  verb->add_flag("-v,--verbose", console.verbose, "more talk on stderr");
  add_choice<Color>(verb, "--color", console.color, {Color::automatic, Color::always, Color::never},
                    "colours; NO_COLOR counts as never (default auto)");
  return verb;
}

void add_synth(CLI::App* verb, SynthArgs& args) {
  verb->add_option("OUT", args.out, "folder to write; must not exist or be empty")->required();
  auto* source = verb->add_option_group("source")->require_option(1);
  source->add_option("--model", args.model, "deepseek-v4-flash, deepseek-v4-pro or tiny");
  source->add_option("--config", args.config, "a config.json of your own");
  add_count<std::uint64_t>(verb, "--num-layers", args.options.num_layers,
                           "layers to write (default 1)");
  add_count<std::uint64_t>(verb, "--experts", args.options.experts,
                           "experts per layer (default at most 16)");
  add_count<std::uint64_t>(verb, "--hidden", args.options.hidden,
                           "hidden width (default the model's)");
  add_count<std::uint64_t>(verb, "--inter", args.options.inter,
                           "intermediate width of an expert (default the model's)");
  add_choice(verb, "--format", args.options.format, kFormats,
             "of the experts (default the model's)");
  add_choice<DialectKind>(verb, "--dialect", args.options.dialect,
                          {DialectKind::deepseek, DialectKind::modelopt},
                          "names and types of the tensors (default the model's own)");
  add_choice<Pattern>(verb, "--pattern", args.options.pattern,
                      {Pattern::normal, Pattern::outliers, Pattern::monotonic, Pattern::constant},
                      "of the weights (default normal)");
  add_count<std::uint64_t>(verb, "--seed", args.options.seed,
                           "same seed, same bytes, on every machine (default 0)");
}

std::vector<const CLI::App*> verbs_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* /*verb*/) { return true; });
}

// The schema of the verb's documents, for refusals.
std::string schema_of(const std::string& verb) {
  return "moxie." + (verb.empty() ? "usage" : verb) + "/1";
}

int refuse(const Console& console, const std::string& verb, ErrorCode code,
           const std::vector<Finding>& findings) {
  console.refuse(schema_of(verb), findings);
  return static_cast<int>(code);
}

// Runs a verb and turns what it throws into an exit code.
int guarded(const Console& console, const std::string& verb, const std::function<int()>& run) {
  try {
    return run();
  } catch (const Error& error) {
    return refuse(console, verb, error.code(), error.findings());
  } catch (const std::filesystem::filesystem_error& error) {
    return refuse(console, verb, ErrorCode::environment,
                  {{.code = "MOXIE-E001", .message = error.what()}});
  } catch (const std::bad_alloc&) {
    return refuse(console, verb, ErrorCode::environment,
                  {{.code = "MOXIE-E003", .message = "out of memory"}});
  } catch (const std::exception& error) {
    return refuse(console, verb, ErrorCode::internal,
                  {{.code = "MOXIE-U070",
                    .message = error.what(),
                    .hint = "this is a bug in moxie; please report it"}});
  }
}

// A refusal of the arguments. Without a verb there is only one thing to say.
Finding usage_finding(const CLI::App& app, const std::string& verb, const std::string& message,
                      const std::vector<std::string>& words) {
  if (!verb.empty()) {
    return {.code = "MOXIE-U001", .message = message, .hint = "see moxie " + verb + " --help"};
  }
  std::string names;
  for (const CLI::App* known : verbs_of(app))
    names += (names.empty() ? "" : ", ") + known->get_name();
  const auto word = std::ranges::find_if(words, [](const auto& w) { return w != "--json"; });
  return {.code = "MOXIE-U001",
          .message = "the first word is no verb",
          .expected = "one of " + names,
          .got = word == words.end() ? "nothing" : *word,
          .hint = "see moxie --help"};
}

// What the arguments say before they are parsed, so that a refusal of the arguments themselves is
// printed as asked.
std::string verb_among(const std::vector<std::string>& words, const CLI::App& app) {
  for (const std::string& word : words) {
    for (const CLI::App* verb : verbs_of(app)) {
      if (verb->get_name() == word) return word;
    }
  }
  return {};
}

// "moxie: plan took 3.1 ms".
std::string verb_time(const std::string& verb, double seconds) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), " took %.1f ms", seconds * 1e3);
  return "moxie: " + verb + text.data();
}

int run(int argc, char** argv) {
  settle_streams();
  ConsoleOptions console_options;
  CLI::App app{"Plans, packs and proves Mixture-of-Experts layers with block-scaled FP4 weights.",
               "moxie"};
  auto help = std::make_shared<HelpFormatter>();
  app.formatter(help);
  help->add_examples("moxie",
                     "  moxie synth layer --model deepseek-v4-flash\n"
                     "  moxie plan layer --tp 3\n");
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(1);

  SynthArgs synth;
  add_synth(
      add_verb(app, *help, "synth",
               "Write a checkpoint in a model's published layout, with random weights",
               "  moxie synth layer --model deepseek-v4-flash\n"
               "  moxie synth small --model tiny --format nvfp4 --dialect modelopt --seed 7\n",
               console_options),
      synth);
  InspectArgs inspect;
  add_model(add_verb(app, *help, "inspect", "Say what a checkpoint is, from its headers",
                     "  moxie inspect layer\n"
                     "  moxie inspect config.json --json\n",
                     console_options),
            inspect.model);
  PlanArgs plan;
  CLI::App* plan_verb =
      add_verb(app, *help, "plan", "Say which rank holds which bytes, with padding and overhead",
               "  moxie plan layer --tp 3 --kernel-align 128\n"
               "  moxie plan config.json --tp 2 --ep 5 --why\n",
               console_options);
  add_model(plan_verb, plan.model);
  add_plan_options(plan_verb, plan.options);
  add_count<std::uint64_t>(plan_verb, "--tokens", plan.tokens,
                           "tokens per call, for the workspace size", 1);
  plan_verb->add_flag("--why", plan.why, "print every kernel considered, with its reason");

  // CLI11 reads "-1" as the largest size and "MB" as one megabyte.
  const CLI::Validator starts_with_digit(
      [](std::string& text) {
        const bool digit = !text.empty() && text[0] >= '0' && text[0] <= '9';
        return digit ? std::string() : "\"" + text + "\" is no size";
      },
      "");
  PackArgs pack;
  std::string rank = "all";
  std::vector<std::string> layers;
  CLI::App* pack_verb =
      add_verb(app, *help, "pack", "Write each rank's bytes as planned",
               "  moxie pack layer --out packed --tp 3\n"
               "  moxie pack model --out packed --tp 3 --rank 1 --layers 0..5 --layout kernel\n",
               console_options);
  add_model(pack_verb, pack.model);
  pack_verb->add_option("--out", pack.out, "folder to write")->required();
  add_plan_options(pack_verb, pack.options);
  pack_verb->add_option("--rank", rank, "one rank, or all (default)");
  pack_verb->add_option("--layers", layers, "layers: 3, 1,4 or 0..5 (default all with tensors)")
      ->allow_extra_args(false);
  add_choice<FileLayout>(
      pack_verb, "--layout", pack.layout, {FileLayout::logical, FileLayout::kernel},
      "source names, or one blob per expert as the kernel reads it (default logical)");
  pack_verb
      ->add_option("--memory", pack.memory_bytes,
                   "bound on memory, e.g. 512MB, 2GiB (default 1GiB)")
      ->transform(CLI::AsSizeValue(true))
      ->transform(starts_with_digit);

  VerifyArgs verify;
  CLI::App* verify_verb = add_verb(app, *help, "verify",
                                   "Prove that a packed set holds the source's bytes, all and only",
                                   "  moxie verify packed --against layer\n"
                                   "  moxie verify packed --against layer --json\n",
                                   console_options);
  verify_verb->add_option("DIR", verify.folder, "folder written by moxie pack")->required();
  verify_verb->add_option("--against", verify.against, "the checkpoint it was packed from")
      ->required();

  add_verb(app, *help, "devices", "Say what this machine and this binary can run",
           "  moxie devices\n"
           "  moxie devices --json\n",
           console_options);

  const std::vector<std::string> words(argv + 1, argv + argc);
  std::string verb = verb_among(words, app);
  try {
    app.parse(argc, argv);
    verb = app.get_subcommands().front()->get_name();
    if (rank != "all") pack.rank = read_count<unsigned>("--rank", rank);
    pack.layers = parse_layers(layers);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    console_options.json = std::find(words.begin(), words.end(), "--json") != words.end();
    return refuse(Console(console_options), verb, ErrorCode::usage,
                  {usage_finding(app, verb, error.what(), words)});
  }

  const Console console(console_options);
  // Only what writes long needs to clean up; the others end at once.
  if (verb == "synth" || verb == "pack" || verb == "verify") catch_interrupts();
  const Stopwatch watch;
  const int status = guarded(console, verb, [&] {
    if (verb == "synth") return run_synth(synth, console);
    if (verb == "inspect") return run_inspect(inspect, console);
    if (verb == "plan") return run_plan(plan, console);
    if (verb == "pack") return run_pack(pack, console);
    if (verb == "verify") return run_verify(verify, console);
    return run_devices(console);
  });
  if (console.verbose()) console.say(verb_time(verb, watch.seconds()));
  return status;
}

}  // namespace

}  // namespace moxie::cli

int main(int argc, char** argv) { return moxie::cli::run(argc, argv); }
