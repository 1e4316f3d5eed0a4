// SPDX-License-Identifier: Apache-2.0
// Output, colours and findings.
#include "cli/console.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

// All that a signal handler may write to.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
volatile std::sig_atomic_t g_interrupted = 0;

// False when the stream did not take all of it; errno says why.
bool write_all(std::FILE* stream, const std::string& text) {
  const bool taken = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  return std::fflush(stream) == 0 && taken;
}

// Names come from files: control characters in them neither break the line nor reach a terminal.
std::string on_one_line(std::string text) {
  for (char& byte : text) {
    if (static_cast<unsigned char>(byte) < 0x20 || byte == 0x7F) byte = '?';
  }
  return text;
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::string_view name_of(Color color) {
  return color == Color::automatic ? "auto" : color == Color::always ? "always" : "never";
}

Console::Console(const ConsoleOptions& options) : options_(options) {
  const char* no_color = std::getenv("NO_COLOR");  // NOLINT(concurrency-mt-unsafe)
  const bool wanted =
      options.color == Color::always ||
      (options.color == Color::automatic && (no_color == nullptr || *no_color == '\0'));
  const auto on = [&](int descriptor) {
    return wanted && (options.color == Color::always || ::isatty(descriptor) == 1);
  };
  color_stdout_ = on(STDOUT_FILENO);
  color_stderr_ = on(STDERR_FILENO);
}

std::string Console::painted(std::string_view text, std::string_view code, bool to_stdout) const {
  if (!(to_stdout ? color_stdout_ : color_stderr_)) return std::string(text);
  return "\x1b[" + std::string(code) + "m" + std::string(text) + "\x1b[0m";
}

void Console::print(const Json& document, const std::string& text) const {
  put(options_.json ? document.dump() + "\n" : text);
}

void Console::print_line(const Json& document) const {
  if (options_.json) put(document.dump_compact() + "\n");
}

void Console::print_text(const std::string& text) const {
  if (!options_.json) put(text);
}

void Console::put(const std::string& text) {
  if (write_all(stdout, text) || errno == EPIPE) return;
  throw Error(ErrorCode::environment,
              {.code = "MOXIE-E001",
               .message = "write to stdout failed: " + std::generic_category().message(errno)});
}

void Console::talk(const std::vector<Finding>& findings) const {
  for (const Finding& finding : findings) {
    const bool error = finding.severity == Severity::error;
    if (options_.quiet && !error) continue;
    const std::string_view code = error                                   ? "31"
                                  : finding.severity == Severity::warning ? "33"
                                                                          : "36";
    write_all(stderr, "moxie: " + painted(on_one_line(to_string(finding)), code, false) + "\n");
  }
}

void Console::say(const std::string& line) const {
  if (!options_.quiet) write_all(stderr, line + "\n");
}

void Console::refuse(std::string_view schema, const std::vector<Finding>& findings) const {
  if (options_.json) {
    const Json document = refusal_json(schema, findings);
    write_all(stdout, (options_.json_lines ? document.dump_compact() : document.dump()) + "\n");
  }
  talk(findings);
}

std::string Console::verdict(bool passed) const {
  return passed ? painted("passed", "32", true) : painted("FAILED", "31;1", true);
}

Stopwatch::Stopwatch() : start_ns_(now_ns()) {}

double Stopwatch::seconds() const { return static_cast<double>(now_ns() - start_ns_) * 1e-9; }

void catch_interrupts() {
  struct sigaction action{};
  action.sa_handler = [](int) { g_interrupted = 1; };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
}

void settle_streams() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond its limit is a write that fails
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // open() takes the lowest free number, which is this one. Writing to stdout keeps failing.
    if (::fcntl(stream, F_GETFD) < 0)
      ::open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

bool interrupted() { return g_interrupted != 0; }

}  // namespace moxie::cli
