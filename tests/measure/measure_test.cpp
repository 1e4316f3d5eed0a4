// SPDX-License-Identifier: Apache-2.0
// Order statistics, measured ceilings, and what build and host say of themselves.
#include "moxie/measure.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/parallel.hpp"
#include "measure/cache_size.hpp"
#include "moxie/device.hpp"
#include "moxie/status.hpp"

namespace moxie {
namespace {

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const JsonMember& member : object.members()) keys.push_back(member.key);
  return keys;
}

TEST(ReadCurve, FollowsStraightLinesBetweenAndBeyondItsPoints) {
  const ReadCurve curve{.points = {{100, 10}, {200, 12}, {1000, 60}}};
  EXPECT_DOUBLE_EQ(curve.us_of(100), 10);
  EXPECT_DOUBLE_EQ(curve.us_of(150), 11);
  EXPECT_DOUBLE_EQ(curve.us_of(200), 12);
  EXPECT_DOUBLE_EQ(curve.us_of(600), 36);
  EXPECT_DOUBLE_EQ(curve.us_of(1000), 60);
  EXPECT_DOUBLE_EQ(curve.us_of(50), 9);      // a start-up of 8 us
  EXPECT_DOUBLE_EQ(curve.us_of(2000), 120);  // the last rate
  EXPECT_DOUBLE_EQ(curve.us_of(0), 0);
  const ReadCurve steep{.points = {{100, 1}, {200, 9}}};
  EXPECT_DOUBLE_EQ(steep.us_of(50), 0);  // no time is negative
}

TEST(ReadCurve, OfOnePointIsInProportionAndWithoutPointsNoNumber) {
  const ReadCurve one{.points = {{100, 10}}};
  EXPECT_DOUBLE_EQ(one.us_of(300), 30);
  EXPECT_DOUBLE_EQ(one.us_of(0), 0);
  EXPECT_TRUE(std::isnan(ReadCurve{}.us_of(100)));
}

TEST(ReadCurve, IsMeasuredAtTheSizesOfTheDesign) {
  EXPECT_EQ(read_curve_sizes(),
            (std::vector<std::uint64_t>{8U << 20, 27U << 20, 80U << 20, 320U << 20, 1280U << 20,
                                        std::uint64_t{4096} << 20}));
}

TEST(ReadCurve, E004NeedsAGpu) {
  if (!list_gpus().gpus.empty()) GTEST_SKIP() << "there is a GPU";
  try {
    (void)measure_read_curve({1024});
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::environment);
    EXPECT_EQ(error.findings().front().code, "MOXIE-E004");
  }
}

TEST(Samples, AreSummarisedByInterpolatedQuantiles) {
  const SampleSummary four = summarise({4, 1, 3, 2});
  EXPECT_EQ(four.samples, 4U);
  EXPECT_DOUBLE_EQ(four.median_us, 2.5);
  EXPECT_DOUBLE_EQ(four.iqr_us, 1.5);  // 3.25 - 1.75
  EXPECT_DOUBLE_EQ(four.p10_us, 1.3);
  EXPECT_DOUBLE_EQ(four.p90_us, 3.7);
  const SampleSummary one = summarise({7});
  EXPECT_DOUBLE_EQ(one.median_us, 7);
  EXPECT_DOUBLE_EQ(one.iqr_us, 0);
  EXPECT_DOUBLE_EQ(one.p90_us, 7);
  EXPECT_EQ(summarise({}).samples, 0U);
}

TEST(Samples, HaveQuantilesThatDoNotDependOnTheirOrder) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<double> samples(101);
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<double>(i);
  std::ranges::shuffle(samples, random);
  const SampleSummary summary = summarise(samples);
  EXPECT_DOUBLE_EQ(summary.median_us, 50);
  EXPECT_DOUBLE_EQ(summary.iqr_us, 50);
  EXPECT_DOUBLE_EQ(summary.p10_us, 10);
  EXPECT_DOUBLE_EQ(summary.p90_us, 90);
}

TEST(CacheSize, IsReadInTheKernelsUnits) {
  EXPECT_EQ(parse_cache_size("32768K"), std::uint64_t{32} << 20);
  EXPECT_EQ(parse_cache_size("36M"), std::uint64_t{36} << 20);
  EXPECT_EQ(parse_cache_size("512"), 512U);
  for (const char* text : {"", "K", "-1K", "3G5", "99999999999999K"})
    EXPECT_EQ(parse_cache_size(text), 0U) << text;
  EXPECT_GE(memory_beyond_caches(4), std::uint64_t{1} << 20);
  EXPECT_LE(memory_beyond_caches(1000),
            std::max(std::uint64_t{256} << 20, last_level_cache_bytes() * 5 / 4));
  EXPECT_GT(memory_beyond_caches(2), last_level_cache_bytes());
}

TEST(Ceilings, FreshMemoryHasARate) {
  const double gbps = measure_fresh_memory((std::uint64_t{16} << 20) + 1);
  EXPECT_TRUE(gbps > 0.01 && gbps < 5000) << gbps;
}

// Bounds that any machine which runs this keeps: 0.5 to 5000 GB/s, 1 to 50000 Gflop/s per thread.
TEST(Ceilings, ArePlausibleAndMeasuredSoon) {
  const auto start = std::chrono::steady_clock::now();
  const unsigned threads = usable_threads();
  const Ceilings ceilings = measure_ceilings(threads);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RecordProperty("read_gbps", std::to_string(ceilings.read_gbps));
  RecordProperty("fp32_tflops", std::to_string(ceilings.fp32_tflops));
  RecordProperty("seconds", std::to_string(seconds));
  EXPECT_TRUE(ceilings.read_gbps > 0.5 && ceilings.read_gbps < 5000) << ceilings.read_gbps;
  EXPECT_TRUE(ceilings.fp32_tflops > 0.0005 && ceilings.fp32_tflops < 50.0 * threads)
      << ceilings.fp32_tflops;
  EXPECT_LT(seconds, 6);  // 1.5 is the aim; the machine may be busy
}

TEST(CacheFlusher, FlushesAgainAndAgain) {
  CacheFlusher flusher;
  for (int i = 0; i < 3; ++i) flusher.flush();
}

TEST(Environment, NamesTheBuild) {
  const Json build = build_json();
  EXPECT_EQ(keys_of(build), (std::vector<std::string>{"version", "commit", "dirty", "compiler",
                                                      "flags", "cuda", "archs"}));
  EXPECT_EQ(build.find("version")->as_string(), version());
  const std::string commit = build.find("commit")->as_string();
  const bool hash =
      commit.size() == 40 && commit.find_first_not_of("0123456789abcdef") == std::string::npos;
  EXPECT_TRUE(hash || commit == "unknown") << commit;
  EXPECT_TRUE(build.find("dirty")->is_bool());
  EXPECT_NE(build.find("compiler")->as_string().find('.'), std::string::npos);
  EXPECT_TRUE(build.find("cuda")->is_null());
  EXPECT_TRUE(build.find("archs")->is_array());
}

TEST(Environment, NamesTheHost) {
  const Json host = host_json();
  EXPECT_EQ(keys_of(host), (std::vector<std::string>{"cpu", "isa", "cores", "kernel"}));
  EXPECT_NE(host.find("cpu")->as_string(), "");
  EXPECT_TRUE(host.find("isa")->is_array());
  EXPECT_EQ(host.find("cores")->as_unsigned(), usable_threads());
  EXPECT_TRUE(host.find("kernel")->as_string().starts_with("Linux "));
}

}  // namespace
}  // namespace moxie
