// SPDX-License-Identifier: Apache-2.0
// Two loops that do nothing but what they measure: reading memory, and multiplying and adding in
// registers.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>

#include "base/parallel.hpp"
#include "measure/cache_size.hpp"
#include "moxie/measure.hpp"

namespace moxie {

namespace {

constexpr unsigned kPasses = 3;                               // the best counts; one more warms up
constexpr std::uint64_t kPartWords = std::uint64_t{1} << 17;  // 1 MiB

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double best_seconds(const auto& work) {
  work();
  double best = seconds_of(work);
  for (unsigned pass = 1; pass < kPasses; ++pass) best = std::min(best, seconds_of(work));
  return best;
}

// Reduces to a number that somebody may look at, so that no compiler drops the work.
std::atomic<std::uint64_t> sink;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

double measure_read(unsigned threads) {
  const std::uint64_t parts = memory_beyond_caches(4) / (kPartWords * sizeof(std::uint64_t));
  const auto words = std::make_unique_for_overwrite<std::uint64_t[]>(parts * kPartWords);
  // Pages that were never written are all the same one.
  parallel_team(threads, [&](Team& team) {
    team.for_each(parts, [&](std::uint64_t part) {
      std::fill_n(words.get() + part * kPartWords, kPartWords, part);
    });
  });
  const double seconds = best_seconds([&] {
    parallel_team(threads, [&](Team& team) {
      team.for_each(parts, [&](std::uint64_t part) {
        const std::uint64_t* from = words.get() + part * kPartWords;
        std::uint64_t sum = 0;
        for (std::uint64_t i = 0; i < kPartWords; ++i) sum += from[i];
        sink.fetch_add(sum, std::memory_order_relaxed);
      });
    });
  });
  return static_cast<double>(parts * kPartWords * sizeof(std::uint64_t)) / seconds * 1e-9;
}

// Chains enough to hide the latency of a multiplication and an addition (4 + 4 cycles on two
// units), few enough to stay in the 16 registers of the smallest vector unit beside two constants.
constexpr unsigned kChains = 12;
constexpr unsigned kLanes = 4;  // 128 bits
constexpr std::uint64_t kSteps = 100'000;

__extension__ using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

// Each chain goes towards 2: no overflow, no denormals.
float run_chains(std::uint64_t steps, float factor, float term) {
  const Lanes factors = Lanes{} + factor;
  const Lanes terms = Lanes{} + term;
  Lanes chains[kChains];
  for (unsigned i = 0; i < kChains; ++i) chains[i] = Lanes{} + static_cast<float>(i);
  for (std::uint64_t step = 0; step < steps; ++step) {
    for (Lanes& chain : chains) chain = chain * factors + terms;
  }
  Lanes sum{};
  for (const Lanes& chain : chains) sum += chain;
  return sum[0] + sum[1] + sum[2] + sum[3];
}

double measure_fp32(unsigned threads) {
  constexpr std::uint64_t kItems = 64;  // more than threads, so that a late one does not count
  const std::uint64_t items = kItems * threads;
  const volatile float factor = 0.5F;
  const volatile float term = 1.0F;
  const double seconds = best_seconds([&] {
    parallel_team(threads, [&](Team& team) {
      team.for_each(items, [&](std::uint64_t /*item*/) {
        sink.fetch_add(static_cast<std::uint64_t>(run_chains(kSteps, factor, term)),
                       std::memory_order_relaxed);
      });
    });
  });
  return static_cast<double>(items * kSteps * kChains * kLanes * 2) / seconds * 1e-12;
}

}  // namespace

std::uint64_t parse_cache_size(std::string_view text) {
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || number > (std::uint64_t{1} << 32)) return 0;
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  return unit == "K" ? number << 10 : unit == "M" ? number << 20 : unit.empty() ? number : 0;
}

std::uint64_t last_level_cache_bytes() {
  std::uint64_t most = 0;
  for (int index = 0;; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) +
                       "/size");
    std::string size;
    if (!(file >> size)) return most;
    most = std::max(most, parse_cache_size(size));
  }
}

std::uint64_t memory_beyond_caches(std::uint64_t times) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 30;
  constexpr std::uint64_t kUnknown = std::uint64_t{256} << 20;
  const std::uint64_t cache = last_level_cache_bytes();
  return cache == 0 ? kUnknown : std::clamp(times * cache, std::uint64_t{1} << 20, kMost);
}

Ceilings measure_ceilings(unsigned threads) {
  const unsigned team = std::clamp(threads, 1U, usable_threads());
  return {.read_gbps = measure_read(team), .fp32_tflops = measure_fp32(team)};
}

}  // namespace moxie
