// SPDX-License-Identifier: Apache-2.0
// Two pipes and a spawned program.
#include "cli/peer_process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include "cli/console.hpp"
#include "moxie/status.hpp"

namespace moxie::cli {

namespace {

struct Pipe {
  int read = -1;
  int write = -1;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(ErrorCode::environment, {.code = "MOXIE-E001",
                                         .message = "no pipe could be made",
                                         .got = std::generic_category().message(errno)});
  }
  return {ends[0], ends[1]};
}

}  // namespace

PeerProcess::PeerProcess(const std::vector<std::string>& command) : name_(command.front()) {
  const Pipe in = make_pipe();
  const Pipe out = make_pipe();
  to_ = in.write;
  from_ = out.read;
  std::vector<std::string> words = command;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in.read, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out.write, STDOUT_FILENO);
  posix_spawnattr_t group;  // of its own, so that what it starts ends with it
  ::posix_spawnattr_init(&group);
  ::posix_spawnattr_setflags(&group, POSIX_SPAWN_SETPGROUP);
  const int code =
      ::posix_spawnp(&process_, words.front().c_str(), &actions, &group, arguments.data(), environ);
  ::posix_spawnattr_destroy(&group);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(in.read);
  ::close(out.write);
  if (code == 0) return;
  process_ = -1;
  ::close(to_);
  ::close(from_);
  throw Error(ErrorCode::environment, {.code = "MOXIE-B006",
                                       .message = "the peer's interpreter can not be started",
                                       .expected = "a Python 3 with the peer's packages",
                                       .got = name_ + ": " + std::generic_category().message(code),
                                       .hint = "name one with --python"});
}

PeerProcess::~PeerProcess() {
  if (process_ < 0) return;
  ::close(to_);
  ::close(from_);
  ::kill(-process_, SIGTERM);
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void PeerProcess::refuse(const std::string& got) const {
  if (interrupted())
    throw Error(ErrorCode::interrupted, {.code = "MOXIE-U130", .message = "interrupted"});
  throw Error(
      ErrorCode::environment,
      {.code = "MOXIE-B006",
       .message = "the peer does not run here",
       .expected = "a Python 3 with the peer's packages, and a GPU where the peer needs one",
       .got = got,
       .hint = "name another interpreter with --python"});
}

void PeerProcess::tell(const Json& request) {
  const std::string line = request.dump_compact() + "\n";
  for (std::size_t at = 0; at < line.size();) {
    const ::ssize_t count = ::write(to_, line.data() + at, line.size() - at);
    if (count < 0 && errno == EINTR && !interrupted()) continue;
    if (count < 0) return;  // it has ended; what it said last is read next
    at += static_cast<std::size_t>(count);
  }
}

Json PeerProcess::answer() {
  std::size_t end = read_.find('\n');
  while (end == std::string::npos) {
    std::array<char, 4096> part{};
    const ::ssize_t count = ::read(from_, part.data(), part.size());
    if (count < 0 && errno == EINTR && !interrupted()) continue;
    if (count <= 0) refuse(name_ + " ended without an answer");
    read_.append(part.data(), static_cast<std::size_t>(count));
    end = read_.find('\n');
  }
  const std::string line = read_.substr(0, end);
  read_.erase(0, end + 1);
  Json answer;
  try {
    answer = Json::parse(line, name_);
  } catch (const Error&) {
    refuse("no JSON: " + line);
  }
  if (!answer.is_object()) refuse("no object: " + line);
  if (const Json* error = answer.find("error"); error != nullptr) {
    const Json* text = answer.find("text");
    refuse(error->as_string("?") + ": " + (text != nullptr ? text->as_string("?") : "?"));
  }
  return answer;
}

}  // namespace moxie::cli
