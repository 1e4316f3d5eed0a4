// SPDX-License-Identifier: Apache-2.0
// Run delay of every thread as the scheduler counts it, and what the host of a virtual machine
// took.
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "base/clock.hpp"
#include "moxie/measure.hpp"

namespace moxie {

namespace {

// Nanoseconds that threads of this process were ready to run and had no core, all added up. A
// thread that has ended meanwhile is left out.
std::uint64_t run_delay_ns() {
  std::uint64_t sum = 0;
  std::error_code failed;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", failed)) {
    std::ifstream file(task.path() / "schedstat");
    std::uint64_t ran = 0;
    std::uint64_t waited = 0;
    if (file >> ran >> waited) sum += waited;
  }
  return sum;
}

// Of all cores, in ticks of 10 ms.
std::uint64_t steal_ticks() {
  std::ifstream file("/proc/stat");
  std::string name;
  std::uint64_t ticks = 0;
  file >> name;
  for (int field = 0; field < 8; ++field) {
    if (!(file >> ticks)) return 0;
  }
  return ticks;
}

}  // namespace

void CoreWait::start() {
  steal_ticks_ = steal_ticks();
  delay_ns_ = run_delay_ns();
  start_ns_ = now_ns();
}

double CoreWait::share() const {
  constexpr std::uint64_t kTickNs = 10'000'000;
  const auto elapsed = static_cast<double>(now_ns() - start_ns_);
  const std::uint64_t delay = run_delay_ns();
  const std::uint64_t ticks = steal_ticks() - steal_ticks_;
  // One tick may have been taken before the start.
  const std::uint64_t stolen = ticks > 1 ? (ticks - 1) * kTickNs : 0;
  const std::uint64_t waited = (delay > delay_ns_ ? delay - delay_ns_ : 0) + stolen;
  return elapsed > 0 ? static_cast<double>(waited) / elapsed : 0;
}

}  // namespace moxie
