// SPDX-License-Identifier: Apache-2.0
// The command line: parsing only. Each verb is in the file of its name.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cli/bench_record.hpp"
#include "cli/console.hpp"
#include "cli/option_kinds.hpp"
#include "cli/options.hpp"
#include "cli/verbs.hpp"

namespace moxie::cli {

namespace {

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
  CLI::App app{
      "Plans, packs, proves and runs Mixture-of-Experts layers with block-scaled FP4 weights.",
      "moxie"};
  auto help = std::make_shared<HelpFormatter>();
  app.formatter(help);
  help->add_examples("moxie",
                     "  moxie synth layer --model deepseek-v4-flash\n"
                     "  moxie plan layer --tp 3\n");
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(1);

  SynthArgs synth;
  add_synth_options(
      add_verb(app, *help, "synth",
               "Write a checkpoint in a model's published layout, with random weights",
               "  moxie synth layer --model deepseek-v4-flash\n"
               "  moxie synth small --model tiny --format nvfp4 --dialect modelopt --seed 7\n",
               console_options),
      synth);
  InspectArgs inspect;
  add_inspect_options(add_verb(app, *help, "inspect", "Say what a checkpoint is, from its headers",
                               "  moxie inspect layer\n"
                               "  moxie inspect config.json --json\n",
                               console_options),
                      inspect);
  PlanArgs plan;
  add_plan_options(
      add_verb(app, *help, "plan", "Say which rank holds which bytes, with padding and overhead",
               "  moxie plan layer --tp 3 --kernel-align 128\n"
               "  moxie plan config.json --tp 2 --ep 5 --why\n",
               console_options),
      plan);
  PackArgs pack;
  add_pack_options(
      add_verb(app, *help, "pack", "Write each rank's bytes as planned",
               "  moxie pack layer --out packed --tp 3\n"
               "  moxie pack model --out packed --tp 3 --rank 1 --layers 0..5 --layout kernel\n",
               console_options),
      pack);
  QuantizeArgs quantize;
  add_quantize_options(
      add_verb(app, *help, "quantize", "Write a checkpoint with its experts in another format",
               "  moxie quantize model quantized --format nvfp4 --recipe mse\n"
               "  moxie quantize layer other --format nvfp4 --dialect modelopt\n",
               console_options),
      quantize);
  VerifyArgs verify;
  add_verify_options(add_verb(app, *help, "verify",
                              "Prove that a packed set holds the source's bytes, all and only",
                              "  moxie verify packed --against layer\n"
                              "  moxie verify packed --against layer --json\n",
                              console_options),
                     verify);
  DoctorArgs doctor;
  add_doctor_options(add_verb(app, *help, "doctor", "Look for what breaks models silently",
                              "  moxie doctor model --deep\n"
                              "  moxie doctor model --layers 0..5 --certificate certificate.json\n",
                              console_options),
                     doctor);
  RunArgs run_args;
  add_run_options(
      add_verb(app, *help, "run", "Run the routed experts of one layer, and check the result",
               "  moxie run layer --tp 1,3 --check\n"
               "  moxie run packed --routing zipf:1.2 --tokens 256 --repeat 20\n",
               console_options),
      run_args);
  BenchArgs bench;
  add_bench_options(add_verb(app, *help, "bench", "Check a layer, then time it, cold and warm",
                             "  moxie bench --problem deepseek-v4-flash --tokens 1,8,64\n"
                             "  moxie bench --problem layer --tp 1,3 --json >records.jsonl\n",
                             console_options),
                    bench);
  add_verb(app, *help, "devices", "Say what this machine and this binary can run",
           "  moxie devices\n"
           "  moxie devices --json\n",
           console_options);

  const std::vector<std::string> words(argv + 1, argv + argc);
  std::string verb = verb_among(words, app);
  try {
    app.parse(argc, argv);
    verb = app.get_subcommands().front()->get_name();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    console_options.json = std::find(words.begin(), words.end(), "--json") != words.end();
    console_options.json_lines = verb == "bench";
    return refuse(Console(console_options), verb, ErrorCode::usage,
                  {usage_finding(app, verb, error.what(), words)});
  }

  bench.command = "moxie";
  for (const std::string& word : words) bench.command += " " + shell_word(word);
  console_options.json_lines = verb == "bench";
  const Console console(console_options);
  // Only what writes long needs to clean up; the others end at once.
  if (verb == "synth" || verb == "pack" || verb == "quantize" || verb == "verify" ||
      verb == "doctor") {
    catch_interrupts();
  }
  const Stopwatch watch;
  const int status = guarded(console, verb, [&] {
    if (verb == "synth") return run_synth(synth, console);
    if (verb == "inspect") return run_inspect(inspect, console);
    if (verb == "plan") return run_plan(plan, console);
    if (verb == "pack") return run_pack(pack, console);
    if (verb == "quantize") return run_quantize(quantize, console);
    if (verb == "verify") return run_verify(verify, console);
    if (verb == "doctor") return run_doctor(doctor, console);
    if (verb == "run") return run_run(run_args, console);
    if (verb == "bench") return run_bench(bench, console);
    return run_devices(console);
  });
  if (console.verbose()) console.say(verb_time(verb, watch.seconds()));
  return status;
}

}  // namespace

}  // namespace moxie::cli

int main(int argc, char** argv) { return moxie::cli::run(argc, argv); }
