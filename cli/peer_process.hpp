// SPDX-License-Identifier: Apache-2.0
// A child process that answers one line of JSON with another. Needs settle_streams(): a write to a
// child that has ended must not be a signal.
#pragma once

#include <string>
#include <vector>

#include "moxie/json.hpp"

namespace moxie::cli {

class PeerProcess {
 public:
  // Starts `command`, found on PATH; its stderr is ours. Errors: Error(environment) MOXIE-B006 when
  // it can not be started.
  explicit PeerProcess(const std::vector<std::string>& command);
  ~PeerProcess();  // ends it
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  void tell(const Json& request);
  // The next line. Errors: Error(environment) MOXIE-B006 when there is none, when it is no JSON
  // object, or holds "error": with its "text"; Error(interrupted) after SIGINT.
  Json answer();
  Json ask(const Json& request) {
    tell(request);
    return answer();
  }

 private:
  [[noreturn]] void refuse(const std::string& got) const;

  std::string name_;
  int to_ = -1;
  int from_ = -1;
  int process_ = -1;
  std::string read_;  // beyond the last line
};

}  // namespace moxie::cli
