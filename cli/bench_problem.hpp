// SPDX-License-Identifier: Apache-2.0
// What is benchmarked: a model's layer, by name or from a file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/temporary_folder.hpp"
#include "cli/verbs.hpp"

namespace moxie::cli {

struct BenchProblem {
  std::string name;              // as given: a model's name, or the path of a file or folder
  std::filesystem::path folder;  // a checkpoint or packed set of the user's; empty: synthesise
  SynthOptions synth;            // what to write otherwise
  std::vector<std::uint64_t> tokens;
  std::optional<std::uint64_t> top_k;
  std::optional<GivenRouting> routing;
  std::uint64_t seed = 0;
};

// Resolves `--problem`: a name that synth knows, a checkpoint or packed set, or a JSON file with
// the keys model, experts, hidden, inter, format, top_k, tokens, routing, seed. Errors:
// Error(usage) MOXIE-B001 for a name that nothing answers to, Error(input) MOXIE-B001 for a file
// that has other keys or values.
BenchProblem read_problem(const std::string& problem);

// The routing that a word names; nullopt when it names none.
std::optional<GivenRouting> routing_of(const std::string& word);

// A synthesised checkpoint that goes away with this object.
class TemporaryCheckpoint {
 public:
  TemporaryCheckpoint(const SynthOptions& options, const Progress& progress);
  // The config files alone, for weights that are drawn; all of the config's experts by default.
  explicit TemporaryCheckpoint(const SynthOptions& options);

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  TemporaryFolder root_;
  std::filesystem::path folder_ = root_.path() / "model";
};

}  // namespace moxie::cli
