// SPDX-License-Identifier: Apache-2.0
// What the system takes for a launch, which no call that launches kernels can do without.
#include <algorithm>
#include <array>

#include "base/clock.hpp"
#include "device/device.hpp"
#include "measure/read_kernels.hpp"
#include "moxie/measure.hpp"
#include "moxie/status.hpp"

namespace moxie {

double measure_launch_us() {
  constexpr int kLaunches = 100;  // fewer than a stream has room for
  const device::Stream stream;
  std::array<double, 21> times{};
  for (double& us : times) {
    const std::uint64_t begin = now_ns();
    int code = 0;
    for (int i = 0; i < kLaunches && code == 0; ++i)
      code = measure::launch_nothing(stream.handle());
    us = static_cast<double>(now_ns() - begin) * 1e-3 / kLaunches;
    stream.wait();
    if (code == 0) continue;
    throw Error(ErrorCode::environment, {.code = "MOXIE-E005",
                                         .message = "the device did not take a launch",
                                         .got = device::error_text(code)});
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

}  // namespace moxie
