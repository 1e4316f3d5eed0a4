// SPDX-License-Identifier: Apache-2.0
// OMP_NUM_THREADS for as long as it lives.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace moxie::test {

class Threads {
 public:
  explicit Threads(unsigned number) {
    if (const char* text = std::getenv("OMP_NUM_THREADS")) before_ = text;
    ::setenv("OMP_NUM_THREADS", std::to_string(number).c_str(), 1);
  }
  ~Threads() {
    if (before_) {
      ::setenv("OMP_NUM_THREADS", before_->c_str(), 1);
    } else {
      ::unsetenv("OMP_NUM_THREADS");
    }
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  std::optional<std::string> before_;
};

}  // namespace moxie::test
