// SPDX-License-Identifier: Apache-2.0
// The time to read some bytes of a GPU's memory once: replays over buffers that no cache holds, the
// best kernel of each size.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "device/device.hpp"
#include "measure/read_kernels.hpp"
#include "moxie/device.hpp"
#include "moxie/measure.hpp"
#include "moxie/status.hpp"

namespace moxie {

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kRotated =
    1024 * kMiB;                      // read by one replay, at least: far above any cache
constexpr unsigned kMostReads = 256;  // in one graph
constexpr int kWarmReplays = 3;
constexpr int kReplays = 9;

void require(int code) {
  if (code == 0) return;
  throw Error(ErrorCode::environment, {.code = "MOXIE-E005",
                                       .message = "the device did not take a launch",
                                       .got = device::error_text(code)});
}

class ReadTimer {
 public:
  ReadTimer(std::uint64_t most_bytes, unsigned multiprocessors)
      : multiprocessors_(multiprocessors),
        memory_(most_bytes + kRotated),
        sink_(sizeof(std::uint32_t)) {
    require(measure::fill_unevenly(memory_.data(), memory_.bytes(), stream_.handle()));
    stream_.wait();
  }

  // Microseconds by the best kernel.
  double best_us(std::uint64_t bytes) {
    double best = std::numeric_limits<double>::infinity();
    for (const measure::ReadKernel& kernel : measure::kReadKernels)
      best = std::min(best, median_us(kernel, bytes));
    return best;
  }

 private:
  double median_us(const measure::ReadKernel& kernel, std::uint64_t bytes) {
    const auto reads =
        static_cast<unsigned>(std::clamp<std::uint64_t>(divide_up(kRotated, bytes), 1, kMostReads));
    int error = 0;
    device::Graph graph(stream_);
    for (unsigned i = 0; i < reads; ++i) {
      const int code = measure::read({.kernel = kernel,
                                      .from = memory_.data() + i * bytes,
                                      .bytes = bytes,
                                      .sink = reinterpret_cast<std::uint32_t*>(sink_.data()),
                                      .multiprocessors = multiprocessors_,
                                      .stream = stream_.handle()});
      error = error == 0 ? code : error;
    }
    graph.end();
    require(error);
    std::vector<double> samples;
    for (int replay = 0; replay < kWarmReplays + kReplays; ++replay) {
      begin_.record(stream_.handle());
      graph.launch();
      end_.record(stream_.handle());
      stream_.wait();
      if (replay >= kWarmReplays) samples.push_back(end_.us_since(begin_) / reads);
    }
    return summarise(std::move(samples)).median_us;
  }

  unsigned multiprocessors_;
  device::Buffer memory_;
  device::Buffer sink_;
  device::Stream stream_;
  device::Event begin_;
  device::Event end_;
};

}  // namespace

double ReadCurve::us_of(double bytes) const {
  if (points.empty()) return std::numeric_limits<double>::quiet_NaN();
  if (points.size() == 1 || !(bytes > 0))
    return bytes > 0 ? points[0].us * bytes / static_cast<double>(points[0].bytes) : 0;
  const auto above = std::ranges::find_if(
      points, [&](const ReadPoint& point) { return static_cast<double>(point.bytes) >= bytes; });
  // Outside, the line of the two nearest points goes on.
  const auto upper = static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(
      above - points.begin(), 1, static_cast<std::ptrdiff_t>(points.size()) - 1));
  const ReadPoint& a = points[upper - 1];
  const ReadPoint& b = points[upper];
  const double share =
      (bytes - static_cast<double>(a.bytes)) / static_cast<double>(b.bytes - a.bytes);
  return std::max(a.us + share * (b.us - a.us), 0.0);
}

std::vector<std::uint64_t> read_curve_sizes() {
  std::vector<std::uint64_t> sizes;
  for (const std::uint64_t mib : {8U, 27U, 80U, 320U, 1280U, 4096U}) sizes.push_back(mib * kMiB);
  return sizes;
}

ReadCurve measure_read_curve(std::vector<std::uint64_t> bytes) {
  const GpuReport report = list_gpus();
  if (report.gpus.empty()) {
    throw Error(ErrorCode::environment, {.code = "MOXIE-E004",
                                         .message = "there is no GPU to measure",
                                         .got = report.problem,
                                         .hint = "see moxie devices"});
  }
  const GpuInfo& gpu = report.gpus[report.current];
  for (std::uint64_t& size : bytes) size = round_up(size, measure::kReadAlign);
  std::ranges::sort(bytes);
  const auto twice = std::ranges::unique(bytes);
  bytes.erase(twice.begin(), twice.end());
  // A layer and its workspace want room too.
  std::erase_if(bytes,
                [&](std::uint64_t size) { return size == 0 || size > gpu.memory_bytes / 4; });
  ReadCurve curve;
  if (bytes.empty()) return curve;
  ReadTimer timer(bytes.back(), gpu.multiprocessors);
  for (const std::uint64_t size : bytes) curve.points.push_back({size, timer.best_us(size)});
  return curve;
}

}  // namespace moxie
