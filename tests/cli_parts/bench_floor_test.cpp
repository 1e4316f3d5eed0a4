// SPDX-License-Identifier: Apache-2.0
// Floors by hand, and the record of a graph that needs no GPU to be written.
#include "cli/bench_floor.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/bench_table.hpp"

namespace moxie::cli {
namespace {

const ReadCurve kCurve{.points = {{1000, 10}, {2000, 20}}};

BenchSetWork set_of(std::uint64_t bytes, std::uint64_t flops) {
  return {.seed = 1,
          .work = {.slots = 6,
                   .active_experts = 5,
                   .flops = flops,
                   .bytes_weights = bytes,
                   .bytes_acts = 8}};
}

ShardPlan plan_of(ActFormat format, Target target = Target::sm90) {
  ShardPlan plan;
  plan.act_format = format;
  plan.target = target;
  plan.axes.resize(1);
  plan.ranks.resize(1);
  return plan;
}

TEST(Floor, IsTheMeanOfTheLargerTimeOfEachSet) {
  const std::vector<BenchSetWork> sets = {set_of(1000, 690'000'000),           // 10 us, 1 us
                                          set_of(2000, 690'000'000ULL * 50)};  // 20 us, 50 us
  const BenchFloor floor = floor_of(plan_of(ActFormat::bf16), sets, kCurve);
  EXPECT_DOUBLE_EQ(floor.read_us, 15);
  EXPECT_DOUBLE_EQ(floor.flops_us, 25.5);
  EXPECT_DOUBLE_EQ(floor.us, 30);
}

TEST(Floor, CountsProductsAtTheStatedRateOfTheirFormat) {
  EXPECT_EQ(stated_tflops(plan_of(ActFormat::bf16)), 690);
  EXPECT_EQ(stated_tflops(plan_of(ActFormat::fp8)), 1310);
  EXPECT_EQ(stated_tflops(plan_of(ActFormat::fp8x2)), 655);
  EXPECT_EQ(stated_tflops(plan_of(ActFormat::nvfp4)), std::nullopt);
  EXPECT_EQ(stated_tflops(plan_of(ActFormat::bf16, Target::sm100)), std::nullopt);
  const BenchFloor floor = floor_of(plan_of(ActFormat::mxfp8), {set_of(1000, ~0ULL)}, kCurve);
  EXPECT_DOUBLE_EQ(floor.us, 10);
  EXPECT_EQ(floor.stated_tflops, std::nullopt);
}

TEST(MeanWork, RoundsToWholeNumbers) {
  const RunWork mean = mean_work({set_of(10, 1), set_of(11, 2), set_of(11, 4)});
  EXPECT_EQ(mean.bytes_weights, 11U);
  EXPECT_EQ(mean.flops, 2U);
  EXPECT_EQ(mean.slots, 6U);
  EXPECT_EQ(mean_work({}).flops, 0U);
}

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const JsonMember& member : object.members()) keys.push_back(member.key);
  return keys;
}

class GraphRecord : public testing::Test {
 protected:
  GraphRecord() {
    setting_.model = "deepseek-v4-flash";
    setting_.way = BenchWay::graph;
    setting_.weights = BenchWeights::random;
    setting_.makes_weights = true;
    setting_.curve = kCurve;
    setting_.launch_us = 2.5;
    point_.plan = &plan_;
    point_.whole = &plan_;
    point_.tokens = 3;
    point_.top_k = 2;
    point_.routing = "zipf:1";
    point_.check.passed = true;
    point_.mode = BenchMode::graph;
    point_.sets = {set_of(1000, 690'000'000), set_of(2000, 690'000'000)};
    point_.work = mean_work(point_.sets);
    point_.floor = floor_of(plan_, point_.sets, kCurve);
    point_.eager_us = 40;
    point_.host_us = 6;
    point_.burst_us = {24, 27, 50};
    point_.samples_us = {30, 30, 30, 30};
  }

  ShardPlan plan_ = plan_of(ActFormat::bf16);
  BenchSetting setting_;
  BenchPoint point_;
};

TEST_F(GraphRecord, StatesSetsFloorRatioAndTheCurve) {
  const Json record = record_of(setting_, point_);
  const Json& timing = *record.find("timing");
  EXPECT_EQ(timing.find("mode")->as_string(), "graph");
  EXPECT_EQ(timing.find("sets")->as_unsigned(), 2U);
  EXPECT_EQ(timing.find("eager_us")->as_double(), 40);
  EXPECT_DOUBLE_EQ(timing.find("burst_us")->as_double(), 27);
  EXPECT_EQ(timing.find("burst_samples")->as_unsigned(), 3U);
  EXPECT_EQ(timing.find("host_us")->as_double(), 6);
  EXPECT_EQ(keys_of(record.find("sets")->elements()[0]),
            (std::vector<std::string>{"seed", "slots", "active_experts", "bytes_weights"}));
  EXPECT_EQ(record.find("problem")->find("weights")->as_string(), "random");
  const Json& ceiling = *record.find("ceiling");
  EXPECT_EQ(keys_of(ceiling),
            (std::vector<std::string>{"gbps_measured", "tflops_measured", "percent", "floor_us",
                                      "ratio", "burst_ratio", "read_us", "flops_us",
                                      "tflops_stated", "launch_us", "read_curve"}));
  EXPECT_DOUBLE_EQ(ceiling.find("floor_us")->as_double(), 15);
  EXPECT_DOUBLE_EQ(ceiling.find("ratio")->as_double(), 2);
  EXPECT_DOUBLE_EQ(ceiling.find("burst_ratio")->as_double(), 1.8);
  EXPECT_DOUBLE_EQ(ceiling.find("percent")->as_double(), 50);
  EXPECT_DOUBLE_EQ(ceiling.find("gbps_measured")->as_double(), 0.1);  // 1500 bytes in 15 us
  EXPECT_EQ(ceiling.find("read_curve")->elements().size(), 2U);
  EXPECT_EQ(record.find("vs"), nullptr);
  const std::string repro = record.find("repro")->as_string();
  EXPECT_NE(repro.find("--weights random --mode graph --sets 2"), std::string::npos) << repro;
}

TEST_F(GraphRecord, StatesThePeerAndHowMuchSlowerItIs) {
  point_.peer = PeerFigures{.arm = "torch bf16",
                            .versions = {},
                            .relative = 0.004,
                            .limit = 0.02,
                            .samples_us = {45, 45, 45, 45},
                            .passes_differ_pct = 1};
  setting_.peer = BenchPeer::torch;
  const Json record = record_of(setting_, point_);
  const Json& vs = *record.find("vs");
  EXPECT_DOUBLE_EQ(vs.find("ratio")->as_double(), 1.5);
  EXPECT_EQ(vs.find("arm")->as_string(), "torch bf16");
  EXPECT_EQ(vs.find("timing")->find("median_us")->as_double(), 45);
  BenchTable table(BenchWay::graph, BenchPeer::torch, {});
  table.add(point_);
  const std::string text = table.text(setting_);
  for (const char* word : {"floor us", "ratio", "torch / ours, > 1: ours is faster", "| 1.500 |",
                           "| 2.000 |", "690 Tflop/s as stated"})
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;

  point_.peer->samples_us.clear();
  point_.peer->relative = 0.5;
  EXPECT_FALSE(point_.peer->agrees());
  const Json untimed = record_of(setting_, point_);
  EXPECT_TRUE(untimed.find("vs")->find("timing")->is_null());
  EXPECT_TRUE(untimed.find("vs")->find("ratio")->is_null());
}

}  // namespace
}  // namespace moxie::cli
