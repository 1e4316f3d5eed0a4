// SPDX-License-Identifier: Apache-2.0
// Samples beside read tests: which count, how passes differ, and what a point says of them.
#include "cli/bench_paired.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "cli/figures.hpp"

namespace moxie::cli {
namespace {

PairedSample sample(double us, double core_wait, double read_fraction = 1) {
  return {.us = us, .read_fraction = read_fraction, .core_wait = core_wait, .trace = {}};
}

std::vector<double> times_of(const QuietSamples& quiet) {
  std::vector<double> times;
  for (const PairedSample& one : quiet.samples) times.push_back(one.us);
  return times;
}

TEST(QuietSamples, LeaveOutWhoseThreadsWaited) {
  const QuietSamples quiet = quiet_samples(
      {sample(1, 0), sample(2, 0.5), sample(3, 0.019), sample(4, 0.02), sample(5, 0.01)}, 3);
  EXPECT_EQ(times_of(quiet), (std::vector<double>{1, 3, 5}));
  EXPECT_EQ(quiet.rejected, 2U);
  EXPECT_TRUE(quiet.enough);
}

TEST(QuietSamples, AreTheQuietestWhereTooFewAreQuiet) {
  const QuietSamples quiet =
      quiet_samples({sample(1, 0.9), sample(2, 0.01), sample(3, 0.3), sample(4, 0.1)}, 3);
  EXPECT_EQ(times_of(quiet), (std::vector<double>{2, 4, 3}));
  EXPECT_EQ(quiet.rejected, 3U);
  EXPECT_FALSE(quiet.enough);
  EXPECT_FALSE(quiet_samples({}, 3).enough);
}

// The second pass ran while memory was twice as fast, and so did the call.
TEST(PairedPasses, AgreeInTimesOrInReadFractions) {
  const std::vector<PairedSample> slow = {sample(100, 0, 0.90), sample(102, 0, 0.90)};
  const std::vector<PairedSample> fast = {sample(50, 0, 0.91), sample(51, 0, 0.91)};
  EXPECT_NEAR(differ_pct(slow, fast), 100 * (0.91 / 0.90 - 1), 1e-9);
  const std::vector<PairedSample> same_time = {sample(100, 0, 0.45), sample(102, 0, 0.45)};
  EXPECT_NEAR(differ_pct(slow, same_time), 0, 1e-9);
  const std::vector<PairedSample> no_weights = {sample(50, 0, std::nan("")), sample(51, 0, 0)};
  EXPECT_NEAR(differ_pct(no_weights, fast), 0, 1e-9);
}

TEST(PairedPasses, TakeTurnsAndSayWhatWasReadBesideEveryCall) {
  ReadTest test(1);
  BenchPoint point{.rank_slots = {},
                   .check = {},
                   .findings = {},
                   .samples_us = {},
                   .sets = {},
                   .floor = {},
                   .paired = {},
                   .peer = {},
                   .traces = {}};
  Trace trace;
  int calls = 0;
  int attempts = 0;
  std::vector<int> turns;
  const PairedPasses passes{.samples = 8,
                            .next =
                                [&] {
                                  return PairedCall{.call =
                                                        [&] {
                                                          ++calls;
                                                          return 1000.0;
                                                        },
                                                    .bytes_weights = 1'000'000,
                                                    .trace = &trace};
                                },
                            .turn = [&](int pass) { turns.push_back(pass); },
                            .begin = [&] { ++attempts; },
                            .agrees = [&] { return attempts > 1; }};
  measure_paired(passes, test, point);
  EXPECT_EQ(attempts, 2);
  EXPECT_EQ(point.passes_differ_pct, 0);
  ASSERT_TRUE(point.paired);
  EXPECT_GE(point.samples_us.size(), 6U);  // as many as are asked for, or the quietest
  EXPECT_LE(point.samples_us.size(), 8U);
  EXPECT_EQ(point.samples_us.size(), point.traces.size());
  EXPECT_EQ(point.samples_us.front(), 1000.0);
  EXPECT_GT(point.paired->read_gbps, 0);
  EXPECT_GT(point.paired->read_fraction, 0);  // 1 GB/s over that of the tests
  EXPECT_GE(calls, 16);
  EXPECT_GE(turns.size(), 8U);
  EXPECT_EQ(turns.front(), 0);
  EXPECT_EQ(turns.back(), 1);
}

TEST(PlanCeiling, IsOfTheProductsOfTheActivations) {
  const Ceilings all{.read_gbps = 30,
                     .fp32_tflops = 0.1,
                     .bf16_tflops = 0.5,
                     .vnni_tops = 0.9,
                     .maddubs_tops = 0.8};
  EXPECT_EQ(ceiling_of(all, ActFormat::bf16).tflops, 0.5);
  EXPECT_EQ(ceiling_of(all, ActFormat::int8).tflops, 0.9);
  EXPECT_EQ(ceiling_of(all, ActFormat::int8x2).tflops, 0.45);
  EXPECT_EQ(ceiling_of(all, ActFormat::fp8).tflops, 0.1);
  EXPECT_EQ(ceiling_of(all, ActFormat::bf16).read_gbps, 30);
  Ceilings avx2 = all;
  avx2.bf16_tflops = avx2.vnni_tops = 0;
  EXPECT_EQ(ceiling_of(avx2, ActFormat::bf16).tflops, 0.1);
  EXPECT_EQ(ceiling_of(avx2, ActFormat::int8).tflops, 0.8);
  avx2.maddubs_tops = 0;
  EXPECT_EQ(ceiling_of(avx2, ActFormat::int8).tflops, 0.1);
}

TEST(PlanCeiling, TheNearerOneBoundsTheRate) {
  const PlanCeiling ceiling{.read_gbps = 10, .tflops = 1};
  const RunWork reads{.flops = 1'000'000, .bytes_weights = 1'000'000};  // 100 us against 1 us
  EXPECT_TRUE(rates_of(reads, ceiling, 1, 200).reads);
  EXPECT_NEAR(rates_of(reads, ceiling, 1, 200).percent, 50, 1e-9);
  const RunWork multiplies{.flops = 1'000'000'000, .bytes_weights = 1000};
  EXPECT_FALSE(rates_of(multiplies, ceiling, 1, 4000).reads);
  EXPECT_NEAR(rates_of(multiplies, ceiling, 1, 4000).percent, 25, 1e-9);
}

}  // namespace
}  // namespace moxie::cli
