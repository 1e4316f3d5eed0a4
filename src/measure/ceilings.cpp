// SPDX-License-Identifier: Apache-2.0
// Reading memory, and multiplying and adding in registers: the best of a few passes.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <fstream>
#include <string>
#include <system_error>

#include "base/parallel.hpp"
#include "measure/cache_size.hpp"
#include "measure/pinned_loops.hpp"
#include "moxie/measure.hpp"

namespace moxie {

namespace {

constexpr unsigned kPasses = 3;  // the best counts; one more warms up

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
  ReadTest test(threads);
  (void)test.gbps();
  double best = 0;
  for (unsigned pass = 0; pass < kPasses; ++pass) best = std::max(best, test.gbps());
  return best;
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

// Items of work for each thread: many, so that a late one does not count.
constexpr std::uint64_t kItems = 64;

// 1e12 a second; 0 without a loop.
double measure_loop(const measure::RegisterLoop& loop, unsigned threads) {
  if (loop.run == nullptr) return 0;
  constexpr std::uint64_t kLoopSteps = 40'000;
  const std::uint64_t items = kItems * threads;
  const double seconds = best_seconds([&] {
    parallel_team(threads, [&](Team& team) {
      team.for_each(items, [&](std::uint64_t /*item*/) { loop.run(kLoopSteps); });
    });
  });
  return static_cast<double>(items * kLoopSteps) * loop.ops / seconds * 1e-12;
}

double measure_fp32(unsigned threads) {
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
  constexpr std::uint64_t kEnough = std::uint64_t{256} << 20;
  const std::uint64_t cache = last_level_cache_bytes();
  if (cache == 0) return kEnough;
  return std::clamp(times * cache, std::uint64_t{1} << 20, std::max(kEnough, cache + cache / 4));
}

Ceilings measure_ceilings(unsigned threads) {
  const unsigned team = std::clamp(threads, 1U, usable_threads());
  return {.read_gbps = measure_read(team),
          .fp32_tflops = measure_fp32(team),
          .bf16_tflops = measure_loop(measure::bf16_loop(), team),
          .vnni_tops = measure_loop(measure::vnni_loop(), team),
          .maddubs_tops = measure_loop(measure::maddubs_loop(), team)};
}

}  // namespace moxie
