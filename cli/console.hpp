// SPDX-License-Identifier: Apache-2.0
// Where the command speaks: data to stdout, talk to stderr.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/json.hpp"
#include "moxie/status.hpp"

namespace moxie::cli {

enum class Color : std::uint8_t { automatic, always, never };
std::string_view name_of(Color color);

struct ConsoleOptions {
  bool json = false;
  bool json_lines = false;  // a verb that prints one document a line refuses on one line, too
  bool quiet = false;
  bool verbose = false;
  Color color = Color::automatic;
};

class Console {
 public:
  explicit Console(const ConsoleOptions& options);

  [[nodiscard]] bool verbose() const { return options_.verbose && !options_.quiet; }

  // Prints the document with --json, else the text. Error(environment) MOXIE-E001 when stdout does
  // not take it; a reader that has closed the pipe is no error.
  void print(const Json& document, const std::string& text) const;
  // For verbs that print as they go: with --json one document a line, without only text.
  void print_line(const Json& document) const;
  void print_text(const std::string& text) const;
  // One line per finding on stderr, whatever names it quotes; --quiet leaves errors only.
  void talk(const std::vector<Finding>& findings) const;
  // One line on stderr unless --quiet.
  void say(const std::string& line) const;
  // Refuses: one document on stdout with --json, one line per finding on stderr.
  void refuse(std::string_view schema, const std::vector<Finding>& findings) const;

  // A progress bar on stderr when it is a terminal, one closing line otherwise; nothing for work
  // shorter than 0.5 s. `unit` is "bytes" or a noun in the singular. The returned callback answers
  // false after SIGINT.
  [[nodiscard]] Progress progress(std::string label, std::string unit = "bytes") const;

  // Text for a passed or failed check, coloured where wanted.
  [[nodiscard]] std::string verdict(bool passed) const;

 private:
  static void put(const std::string& text);
  [[nodiscard]] std::string painted(std::string_view text, std::string_view code,
                                    bool to_stdout) const;

  ConsoleOptions options_;
  bool color_stdout_ = false;
  bool color_stderr_ = false;
};

// Seconds since construction.
class Stopwatch {
 public:
  Stopwatch();
  [[nodiscard]] double seconds() const;

 private:
  std::int64_t start_ns_;
};

// Makes SIGINT ask running work to stop (Console::progress) instead of ending the process at once.
void catch_interrupts();
// True after SIGINT.
bool interrupted();
// To be called first. Writing to a pipe without a reader, or to a file beyond the largest size that
// is allowed, fails from then on, instead of ending the process with work half done; a stream that
// is closed is not given to the next file opened.
void settle_streams();

}  // namespace moxie::cli
