// SPDX-License-Identifier: Apache-2.0
// Order statistics, and the cold cache before a sample.
#include <algorithm>
#include <cmath>

#include "base/parallel.hpp"
#include "measure/cache_size.hpp"
#include "moxie/measure.hpp"

namespace moxie {

namespace {

// The quantile `q` of ascending samples, as the straight line between its neighbours gives it.
double quantile(const std::vector<double>& sorted, double q) {
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

constexpr std::uint64_t kFlushPart = std::uint64_t{1} << 20;

}  // namespace

SampleSummary summarise(std::vector<double> samples_us) {
  if (samples_us.empty()) return {};
  std::ranges::sort(samples_us);
  return {.samples = samples_us.size(),
          .median_us = quantile(samples_us, 0.5),
          .iqr_us = quantile(samples_us, 0.75) - quantile(samples_us, 0.25),
          .p10_us = quantile(samples_us, 0.1),
          .p90_us = quantile(samples_us, 0.9)};
}

CacheFlusher::CacheFlusher() : buffer_(memory_beyond_caches(2)) {}

void CacheFlusher::flush() {
  const auto next = static_cast<std::uint8_t>(buffer_.front() + 1);
  const std::uint64_t parts = (buffer_.size() + kFlushPart - 1) / kFlushPart;
  parallel_for(parts, [&](std::uint64_t part) {
    const std::uint64_t begin = part * kFlushPart;
    const std::uint64_t end = std::min<std::uint64_t>(begin + kFlushPart, buffer_.size());
    std::fill(buffer_.begin() + static_cast<std::ptrdiff_t>(begin),
              buffer_.begin() + static_cast<std::ptrdiff_t>(end), next);
  });
}

}  // namespace moxie
