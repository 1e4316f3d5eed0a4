// SPDX-License-Identifier: Apache-2.0
// Names, files and folders as problems; a checkpoint for those that have none.
#include "cli/bench_problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "moxie/json.hpp"
#include "moxie/pack.hpp"

namespace moxie::cli {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(ErrorCode code, std::string message, const std::string& where,
                         std::string expected) {
  throw Error(code, {.code = "MOXIE-B001",
                     .message = std::move(message),
                     .where = {.file = where},
                     .expected = std::move(expected)});
}

std::string known_models() {
  std::string names;
  for (const std::string_view name : synth_models())
    names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

// One key of a problem file at a time; what no key took is refused.
class ProblemFile {
 public:
  ProblemFile(const Json& document, std::string path)
      : document_(document), path_(std::move(path)) {
    if (!document.is_object()) refuse(ErrorCode::input, "the problem is no object", path_, "{…}");
    for (const JsonMember& member : document.members()) {
      constexpr std::string_view kKeys[] = {"model", "experts", "hidden",  "inter", "format",
                                            "top_k", "tokens",  "routing", "seed"};
      if (std::ranges::find(kKeys, member.key) == std::end(kKeys))
        refuse(ErrorCode::input, "a problem has no key " + member.key, path_, "model, tokens, …");
    }
  }

  [[nodiscard]] std::optional<std::uint64_t> count(std::string_view key) const {
    const Json* value = document_.find(key);
    if (value == nullptr) return std::nullopt;
    return number(*value, key);
  }
  [[nodiscard]] std::vector<std::uint64_t> counts(std::string_view key) const {
    const Json* value = document_.find(key);
    if (value == nullptr) return {};
    if (!value->is_array()) return {number(*value, key)};
    std::vector<std::uint64_t> numbers;
    if (value->elements().empty()) wrong(key, "at least one number");
    for (const Json& element : value->elements()) numbers.push_back(number(element, key));
    return numbers;
  }
  [[nodiscard]] std::optional<std::string> text(std::string_view key) const {
    const Json* value = document_.find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) wrong(key, "text");
    return value->as_string();
  }
  [[noreturn]] void wrong(std::string_view key, std::string expected) const {
    refuse(ErrorCode::input, "the problem's " + std::string(key) + " is of another kind", path_,
           std::move(expected));
  }

 private:
  [[nodiscard]] std::uint64_t number(const Json& value, std::string_view key) const {
    constexpr std::uint64_t kNone = ~std::uint64_t{0};
    const std::uint64_t number = value.as_unsigned(kNone);
    if (number == kNone) wrong(key, "a whole number");
    return number;
  }

  const Json& document_;
  std::string path_;
};

BenchProblem read_problem_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  const Json document = Json::parse(text, path);
  const ProblemFile file(document, path);
  BenchProblem problem{.name = path, .folder = {}, .synth = {}, .tokens = {}};
  const std::string model = file.text("model").value_or("deepseek-v4-flash");
  const auto models = synth_models();
  if (std::ranges::find(models, model) == models.end()) file.wrong("model", known_models());
  problem.synth.config = synth_config(model);
  problem.synth.experts = file.count("experts");
  problem.synth.hidden = file.count("hidden");
  problem.synth.inter = file.count("inter");
  if (const auto format = file.text("format")) {
    for (const BlockFormat known : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
      if (*format == name_of(known)) problem.synth.format = known;
    }
    if (!problem.synth.format) file.wrong("format", "mxfp4 or nvfp4");
  }
  problem.top_k = file.count("top_k");
  problem.tokens = file.counts("tokens");
  problem.seed = file.count("seed").value_or(0);
  if (const auto routing = file.text("routing")) {
    problem.routing = routing_of(*routing);
    if (!problem.routing) file.wrong("routing", "model|uniform|zipf[:S]|one:E|hot[:E]|file:PATH");
  }
  return problem;
}

}  // namespace

BenchProblem read_problem(const std::string& problem) {
  const auto models = synth_models();
  std::error_code absent;
  if (std::ranges::find(models, problem) != models.end()) {
    BenchProblem named{.name = problem, .folder = {}, .synth = {}, .tokens = {}};
    named.synth.config = synth_config(problem);
    return named;
  }
  if (fs::is_directory(problem, absent))
    return {.name = problem, .folder = problem, .synth = {}, .tokens = {}};
  if (fs::is_regular_file(problem, absent)) return read_problem_file(problem);
  refuse(ErrorCode::usage, "there is no such problem", problem,
         "one of " + known_models() + ", a JSON file, or a checkpoint's folder");
}

std::optional<GivenRouting> routing_of(const std::string& word) {
  const std::size_t colon = std::min(word.find(':'), word.size());
  const std::string name = word.substr(0, colon);
  const std::string value = colon < word.size() ? word.substr(colon + 1) : "";
  if (word == "uniform") return GivenRouting{};
  if (word == "zipf") return routing_of("zipf:1");
  if (word == "hot") return routing_of("hot:0");
  if (word == "model") return GivenRouting{.source = RoutingSource::model, .drawn = {}, .file = {}};
  if (name == "file" && !value.empty())
    return GivenRouting{.source = RoutingSource::file, .drawn = {}, .file = value};
  const bool zipf = name == "zipf";
  if (!zipf && name != "one" && name != "hot") return std::nullopt;
  Routing drawn{.kind = zipf            ? RoutingKind::zipf
                        : name == "one" ? RoutingKind::one
                                        : RoutingKind::hot};
  const char* end = value.data() + value.size();
  const auto [rest, error] = zipf ? std::from_chars(value.data(), end, drawn.exponent)
                                  : std::from_chars(value.data(), end, drawn.expert);
  if (error != std::errc() || rest != end) return std::nullopt;
  return GivenRouting{.source = RoutingSource::drawn, .drawn = drawn, .file = {}};
}

TemporaryCheckpoint::TemporaryCheckpoint(const SynthOptions& options, const Progress& progress) {
  SynthOptions with_progress = options;
  with_progress.progress = progress;
  synthesise(folder_, with_progress);
}

TemporaryCheckpoint::TemporaryCheckpoint(const SynthOptions& options) {
  fs::create_directory(folder_);
  synthesise_config(folder_, options);
}

}  // namespace moxie::cli
