// SPDX-License-Identifier: Apache-2.0
// The rate that loading is held against: one large copy, nothing else.
#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "device/device.hpp"
#include "moxie/measure.hpp"

namespace moxie {

double measure_host_to_device(std::uint64_t bytes) {
  const device::PinnedBuffer from(bytes);
  std::ranges::fill(from.bytes(), std::byte{1});
  const device::Buffer to(bytes);
  const device::Stream stream;
  device::Event start;
  device::Event end;
  std::array<double, 5> times{};
  for (double& us : times) {
    start.record(stream.handle());
    device::start_copy(to.data(), from.bytes(), stream.handle());
    end.record(stream.handle());
    stream.wait();
    us = end.us_since(start);
  }
  std::ranges::sort(times);
  return static_cast<double>(bytes) / times[times.size() / 2] * 1e-3;
}

}  // namespace moxie
