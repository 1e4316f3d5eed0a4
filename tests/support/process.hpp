// SPDX-License-Identifier: Apache-2.0
// Runs a command as a user does, with its own folder, environment, streams and Ctrl-C, and keeps
// what it said.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace moxie::test {

struct Outcome {
  int exit_code = -1;  // -1 when a signal ended it
  int signal = 0;
  std::string out{};
  std::string err{};
};

enum class Stdout : std::uint8_t {
  captured,
  unread,    // a pipe whose reader has gone
  full,      // a device that takes nothing
  closed,    // no descriptor at all
  terminal,  // stdout and stderr are one terminal; what it shows is in `out`
};

struct Launch {
  std::vector<std::string> command;                              // program, then its arguments
  std::filesystem::path folder{};                                // to run in; ours if empty
  std::vector<std::pair<std::string, std::string>> variables{};  // added to our environment
  Stdout to = Stdout::captured;
  std::function<bool(const Outcome& so_far)> interrupt_when{};  // a signal once this holds
  int interrupt_with = SIGINT;
  std::optional<rlim_t> file_bytes{};  // no file may become larger, as after ulimit -f
};

class Process {
 public:
  explicit Process(const Launch& launch) : launch_(launch) {
    open_streams();
    child_ = ::fork();
    if (child_ < 0) throw std::runtime_error("can not fork");
    if (child_ == 0) become_command();
    for (int& descriptor : theirs_) close_now(descriptor);
  }
  ~Process() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    for (auto* side : {&ours_, &theirs_}) {
      for (int& descriptor : *side) close_now(descriptor);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  Outcome wait() {
    const auto start = std::chrono::steady_clock::now();
    bool interrupted = !launch_.interrupt_when;
    while (read_some(interrupted ? 100 : 1)) {
      if (std::chrono::steady_clock::now() - start > std::chrono::seconds(120))
        throw std::runtime_error("the command does not end");
      if (interrupted || !launch_.interrupt_when(outcome_)) continue;
      interrupted = true;
      ::kill(child_, launch_.interrupt_with);
    }
    int status = 0;
    ::waitpid(std::exchange(child_, -1), &status, 0);
    if (WIFEXITED(status)) outcome_.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) outcome_.signal = WTERMSIG(status);
    return outcome_;
  }

 private:
  static void close_now(int& descriptor) {
    if (descriptor >= 0) ::close(std::exchange(descriptor, -1));
  }

  void open_pipe(std::size_t stream) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("can not open a pipe");
    ours_[stream] = ends[0];
    theirs_[stream] = ends[1];
  }

  void open_streams() {
    if (launch_.to == Stdout::terminal) {
      ours_[0] = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
      if (ours_[0] < 0 || ::grantpt(ours_[0]) != 0 || ::unlockpt(ours_[0]) != 0)
        throw std::runtime_error("can not open a terminal");
      std::array<char, 64> name{};
      if (::ptsname_r(ours_[0], name.data(), name.size()) != 0)
        throw std::runtime_error("the terminal has no name");
      for (int& descriptor : theirs_)
        descriptor = ::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC);
      return;
    }
    open_pipe(1);
    if (launch_.to == Stdout::full) {
      theirs_[0] = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
    } else if (launch_.to != Stdout::closed) {
      open_pipe(0);
    }
    if (launch_.to == Stdout::unread) close_now(ours_[0]);
  }

  // In the child; does not return.
  [[noreturn]] void become_command() {
    if (theirs_[0] >= 0) {
      ::dup2(theirs_[0], STDOUT_FILENO);
    } else {
      ::close(STDOUT_FILENO);
    }
    ::dup2(theirs_[1], STDERR_FILENO);
    if (launch_.file_bytes) {
      const rlimit limit{*launch_.file_bytes, *launch_.file_bytes};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    for (const auto& [name, value] : launch_.variables) ::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> words;
    for (const std::string& word : launch_.command)
      words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    if (launch_.folder.empty() || ::chdir(launch_.folder.c_str()) == 0)
      ::execv(words[0], words.data());
    ::_exit(127);
  }

  // False when both streams have ended.
  bool read_some(int wait_ms) {
    std::array<pollfd, 2> streams = {pollfd{ours_[0], POLLIN, 0}, pollfd{ours_[1], POLLIN, 0}};
    if (ours_[0] < 0 && ours_[1] < 0) return false;
    if (::poll(streams.data(), streams.size(), wait_ms) <= 0) return true;
    for (std::size_t stream = 0; stream < 2; ++stream) {
      if (ours_[stream] < 0 || streams[stream].revents == 0) continue;
      std::array<char, 65536> bytes;
      const ssize_t got = ::read(ours_[stream], bytes.data(), bytes.size());
      if (got > 0) {
        (stream == 0 ? outcome_.out : outcome_.err)
            .append(bytes.data(), static_cast<std::size_t>(got));
      } else if (got == 0 || errno != EINTR) {  // a terminal without a writer answers EIO
        close_now(ours_[stream]);
      }
    }
    return true;
  }

  const Launch& launch_;
  std::array<int, 2> ours_ = {-1, -1};  // stdout and stderr
  std::array<int, 2> theirs_ = {-1, -1};
  pid_t child_ = -1;
  Outcome outcome_;
};

inline Outcome run(const Launch& launch) { return Process(launch).wait(); }

}  // namespace moxie::test
