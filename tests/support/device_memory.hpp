// SPDX-License-Identifier: Apache-2.0
// Device memory between guard bytes, and the reason to skip where there is no device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "moxie/device.hpp"

namespace moxie::test {

// Tests that need a GPU; without one they are skipped, and say why.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    const GpuReport report = list_gpus();
    if (report.gpus.empty()) GTEST_SKIP() << "no GPU: " << report.problem;
    const GpuInfo& gpu = report.gpus[report.current];
    const auto target = target_of_capability(gpu.major, gpu.minor);
    if (!target) GTEST_SKIP() << gpu.name << " runs no target of this build";
    target_ = *target;
  }
  Target target_ = Target::sm90;
};

// `bytes` of poison, `shift` bytes past an aligned address, guards on both sides.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::uint64_t bytes, std::byte poison = std::byte{0xFF},
                        std::uint64_t shift = 0)
      : start_(kGuard + shift), bytes_(bytes), buffer_(start_ + bytes + kGuard) {
    std::vector<std::byte> image(buffer_.bytes(), kMark);
    std::fill_n(image.begin() + static_cast<std::ptrdiff_t>(start_), bytes, poison);
    device::copy_to_device(buffer_.data(), image);
  }
  // A copy of these values.
  template <class Element>
  explicit DeviceMemory(std::span<const Element> values, std::uint64_t shift = 0)
      : DeviceMemory(values.size_bytes(), std::byte{0xFF}, shift) {
    put(values);
  }
  template <class Element>
  void put(std::span<const Element> values) {
    device::copy_to_device(buffer_.data() + start_, std::as_bytes(values));
  }
  [[nodiscard]] std::byte* data() const { return buffer_.data() + start_; }
  template <class Element>
  [[nodiscard]] Element* as() const {
    return reinterpret_cast<Element*>(data());
  }
  [[nodiscard]] std::span<std::byte> span() const { return {data(), bytes_}; }

  template <class Element>
  [[nodiscard]] std::vector<Element> values() const {
    std::vector<Element> out(bytes_ / sizeof(Element));
    device::copy_to_host(std::as_writable_bytes(std::span(out)), data());
    return out;
  }
  [[nodiscard]] bool intact() const {
    std::vector<std::byte> image(buffer_.bytes());
    device::copy_to_host(image, buffer_.data());
    const auto marked = [](std::byte b) { return b == kMark; };
    return std::all_of(image.begin(), image.begin() + static_cast<std::ptrdiff_t>(start_),
                       marked) &&
           std::all_of(image.end() - kGuard, image.end(), marked);
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 256;
  static constexpr std::byte kMark{0xA5};
  std::uint64_t start_;
  std::uint64_t bytes_;
  device::Buffer buffer_;
};

// Bits, with one NaN for all: host and device make NaNs of other signs.
inline std::vector<std::uint32_t> canonical_bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::memcpy(&bits[i], &values[i], sizeof(float));
    if (values[i] != values[i]) bits[i] = 0x7FC00000U;
  }
  return bits;
}

}  // namespace moxie::test
