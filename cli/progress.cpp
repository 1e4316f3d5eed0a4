// SPDX-License-Identifier: Apache-2.0
// The progress bar: what is done, rate and time left, redrawn at most ten times a second.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string_view>

#include "cli/console.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

constexpr std::string_view kBytes = "bytes";
constexpr double kQuietSeconds = 0.5;  // shorter work shows nothing
constexpr double kRedrawSeconds = 0.1;
constexpr std::size_t kBarCells = 24;

class Bar {
 public:
  Bar(std::string label, std::string unit, bool quiet)
      : label_(std::move(label)),
        unit_(std::move(unit)),
        quiet_(quiet),
        terminal_(::isatty(STDERR_FILENO) == 1) {}

  bool update(std::uint64_t done, std::uint64_t total) {
    const double seconds = watch_.seconds();
    const bool finished = done >= total;
    if (!quiet_ && seconds >= kQuietSeconds) {
      if (finished && !closed_) {
        closed_ = true;
        close(done, seconds);
      } else if (terminal_ && !finished && seconds - drawn_ >= kRedrawSeconds) {
        drawn_ = seconds;
        draw(done, total, seconds);
      }
    }
    if (!interrupted()) return true;
    if (terminal_ && !quiet_) std::fputs("\n", stderr);
    return false;
  }

 private:
  [[nodiscard]] std::string amount(std::uint64_t count) const {
    return unit_ == kBytes ? format_bytes(count) : format_count(count, unit_);
  }
  [[nodiscard]] std::string rate(std::uint64_t done, double seconds) const {
    const double each = static_cast<double>(done) / std::max(seconds, 1e-9);
    return unit_ == kBytes ? format_bytes(static_cast<std::uint64_t>(each)) + "/s"
                           : format_rate(each, unit_);
  }

  void draw(std::uint64_t done, std::uint64_t total, double seconds) const {
    const double share =
        static_cast<double>(done) / static_cast<double>(std::max<std::uint64_t>(total, 1));
    const auto filled = static_cast<std::size_t>(share * static_cast<double>(kBarCells));
    const double left = share > 0 ? seconds * (1 - share) / share : 0;
    const std::string bar = std::string(filled, '#') + std::string(kBarCells - filled, '.');
    std::fprintf(stderr, "\r\x1b[K%s [%s] %3.0f %%  %s of %s  %s  %.0f s left", label_.c_str(),
                 bar.c_str(), share * 100, amount(done).c_str(), amount(total).c_str(),
                 rate(done, seconds).c_str(), left);
    std::fflush(stderr);
  }

  void close(std::uint64_t done, double seconds) const {
    std::fprintf(stderr, "%s%s: %s in %.1f s (%s)\n", terminal_ ? "\r\x1b[K" : "", label_.c_str(),
                 amount(done).c_str(), seconds, rate(done, seconds).c_str());
    std::fflush(stderr);
  }

  std::string label_;
  std::string unit_;
  bool quiet_;
  bool terminal_;
  bool closed_ = false;
  double drawn_ = 0;
  Stopwatch watch_;
};

}  // namespace

Progress Console::progress(std::string label, std::string unit) const {
  auto bar = std::make_shared<Bar>(std::move(label), std::move(unit), options_.quiet);
  return [bar](std::uint64_t done, std::uint64_t total) { return bar->update(done, total); };
}

}  // namespace moxie::cli
