// SPDX-License-Identifier: Apache-2.0
// Dispatched rows in FP8 on a GPU have the bits of their values in f32, eagerly and in a graph.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <utility>

#include "formats/bf16.hpp"
#include "kernels/cuda/gpu_layer.hpp"
#include "kernels/registry/registry.hpp"
#include "support/fp8_rows.hpp"

namespace moxie {
namespace {

using namespace test;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class GpuFp8Rows : public OnGpu {
 protected:
  static MoeLayer rank_layer(const MoeModel& model, const ShardPlan& plan, unsigned max_sms = 0) {
    LayerSpec spec = spec_of(model.config);
    spec.reduction = Reduction::caller;
    spec.max_sms = max_sms;
    std::vector<PackedExperts> one;
    one.push_back(pack(model, plan, 0, 0));
    return MoeLayer(plan, spec, std::move(one));
  }

  struct Case {
    ScaleOrder order = ScaleOrder::rows;
    std::uint64_t most = 1;   // rows of an expert
    std::uint64_t pad = 0;    // codes from row to row beyond hidden
    std::uint64_t shift = 0;  // bytes that the first code is past an aligned address
    unsigned max_sms = 0;
    bool apart = true;
  };
  // As many rows whatever the counts are.
  DispatchedRows drawn(const ShardPlan& plan, const Case& with) {
    DispatchedRows rows = dispatched_rows(plan, 0, with.most, with.apart, random_);
    if (with.apart) return rows;
    rows.rows = with.most * rows.counts.size() + 3;
    rows.ids.resize(rows.rows, -1);
    rows.scales.resize(rows.rows, kNan);
    return rows;
  }
  // Every replay of one captured call against a call with the values, for other counts each time.
  void compare(const RigModel& model, const PlanOptions& options, const Case& with);

  std::mt19937_64 random_{std::random_device{}()};
};

// What the layer makes of the values in f32.
std::vector<float> of_values(const MoeLayer& layer, const DispatchedRows& rows) {
  const DeviceMemory x{std::span<const float>(rows.x)};
  const DeviceMemory counts{std::span<const std::int32_t>(rows.counts)};
  const DeviceMemory scales{std::span<const float>(rows.scales)};
  const DeviceMemory y(rows.x.size() * sizeof(float));
  const DeviceMemory flags(sizeof(std::uint32_t), std::byte{0});
  const DeviceMemory workspace(layer.rows_workspace_size(rows.rows), std::byte{0xFF}, 3);
  const device::Stream stream;
  EXPECT_EQ(layer.forward_rows({.x = rows_ref(rows, x.data()),
                                .rows_of_expert = counts.as<std::int32_t>(),
                                .rows_apart = rows.apart,
                                .row_scales = scales.as<float>(),
                                .y = rows_ref(rows, y.data(), DType::f32),
                                .flags = flags.as<std::uint32_t>()},
                               workspace.span(), stream.handle()),
            CallStatus::ok);
  stream.wait();
  return y.values<float>();
}

// One value of an owned row becomes NaN, and a scale of another Inf.
void hurt(DispatchedRows& rows, Fp8Rows& fp8) {
  std::vector<std::uint64_t> owned;
  for (std::uint64_t row = 0; row < rows.rows; ++row) {
    if (rows.ids[row] >= 0) owned.push_back(row);
  }
  if (owned.size() < 2) return;
  fp8.codes[owned.front() * fp8.stride + rows.hidden - 1] = 0xFF;
  rows.x[owned.front() * rows.hidden + rows.hidden - 1] = kNan;
  const std::uint64_t last = owned.back();
  const std::uint64_t block = (rows.hidden - 1) / 128;
  float& scale = fp8.scales[fp8.scale_of(rows, last, block)];
  scale = std::numeric_limits<float>::infinity();
  for (std::uint64_t column = block * 128; column < rows.hidden; ++column)
    rows.x[last * rows.hidden + column] =
        decode_e4m3(fp8.codes[last * fp8.stride + column]) * scale;
}

void GpuFp8Rows::compare(const RigModel& model, const PlanOptions& options, const Case& with) {
  const ShardPlan plan = make_plan(*model, options);
  const MoeLayer layer = rank_layer(*model, plan, with.max_sms);
  DispatchedRows first = drawn(plan, with);
  const Fp8Rows first_fp8 = fp8_rows(first, with.order, with.pad, random_);
  DeviceMemory codes{std::span<const std::uint8_t>(first_fp8.codes), with.shift};
  DeviceMemory x_scales{std::span<const float>(first_fp8.scales)};
  DeviceMemory counts{std::span<const std::int32_t>(first.counts)};
  DeviceMemory scales{std::span<const float>(first.scales)};
  const DeviceMemory y(first.x.size() * sizeof(float));
  const DeviceMemory flags(sizeof(std::uint32_t), std::byte{0});
  const DeviceMemory workspace(layer.rows_workspace_size(first.rows, DType::f8_e4m3),
                               std::byte{0xFF}, 3);
  device::Stream stream;
  device::Graph graph(stream);
  EXPECT_EQ(layer.forward_rows({.x = first_fp8.ref(first, codes.data()),
                                .x_scales = first_fp8.scales_at(x_scales.as<float>()),
                                .rows_of_expert = counts.as<std::int32_t>(),
                                .rows_apart = first.apart,
                                .row_scales = scales.as<float>(),
                                .y = rows_ref(first, y.data(), DType::f32),
                                .flags = flags.as<std::uint32_t>()},
                               workspace.span(), stream.handle()),
            CallStatus::ok);
  graph.end();
  for (int replay = 0; replay < 4; ++replay) {
    DispatchedRows rows = drawn(plan, with);
    Fp8Rows fp8 = fp8_rows(rows, with.order, with.pad, random_);
    if (replay == 2) hurt(rows, fp8);
    codes.put(std::span<const std::uint8_t>(fp8.codes));
    x_scales.put(std::span<const float>(fp8.scales));
    counts.put(std::span<const std::int32_t>(rows.counts));
    scales.put(std::span<const float>(rows.scales));
    graph.launch();
    stream.wait();
    const std::vector<float> got = y.values<float>();
    EXPECT_EQ(canonical_bits(got), canonical_bits(of_values(layer, rows)))
        << plan.kernel << ", hidden " << plan.hidden << ", up to " << with.most << ", replay "
        << replay;
    for (std::uint64_t row = 0; row < rows.rows; ++row)
      EXPECT_TRUE(rows.ids[row] >= 0 || got[row * rows.hidden] == 0) << "rows of nobody hold NaN";
  }
  EXPECT_EQ(flags.values<std::uint32_t>()[0], 0U);
  for (const DeviceMemory* memory : std::initializer_list<const DeviceMemory*>{
           &codes, &x_scales, &counts, &scales, &y, &flags, &workspace})
    EXPECT_TRUE(memory->intact());
}

TEST_F(GpuFp8Rows, HaveTheBitsOfTheirValuesInEveryReplay) {
  for (const std::uint64_t hidden : {160U, 192U}) {  // the portable kernel, and others
    for (const ActFormat act : {ActFormat::bf16, ActFormat::fp8}) {
      const RigModel model({.hidden = hidden});
      const PlanOptions options{.target = target_, .act_format = act};
      compare(model, options, {.most = 1});
      compare(model, options, {.order = ScaleOrder::columns, .most = 20, .pad = 96});
      compare(model, options, {.most = 20, .pad = 5, .shift = 1});
      compare(model, options, {.order = ScaleOrder::columns, .most = 30, .apart = false});
      compare(model, options, {.order = ScaleOrder::columns, .most = 700, .max_sms = 2});
      if (HasFailure()) return;
    }
  }
}

TEST_F(GpuFp8Rows, MayEndInFewerThan128Columns) {
  for (const BlockFormat format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    const RigModel model({.format = format, .hidden = 2880, .inter = 64, .experts = 4});
    for (const std::uint64_t most : {3U, 40U}) {
      compare(model, {.target = target_}, {.order = ScaleOrder::columns, .most = most});
      compare(model, {.target = target_}, {.most = most, .pad = 2});
    }
  }
}

// The kernel in front: every value of a row that is somebody's, and nothing else. Memory ends with
// the last of them, where a sanitizer sees who looks farther.
TEST_F(GpuFp8Rows, AreExpandedWhereSomebodyOwnsThem) {
  for (const auto& [type, apart] :
       {std::pair{DType::f32, false}, std::pair{DType::f32, true}, std::pair{DType::bf16, false}}) {
    const RigModel model({.hidden = 2880, .inter = 64, .experts = 5});
    const ShardPlan plan = make_plan(*model, {});
    DispatchedRows rows = dispatched_rows(plan, 0, 50, apart, random_);
    Fp8Rows fp8 = fp8_rows(rows, ScaleOrder::rows, 0, random_);
    std::uint64_t end = rows.rows;
    while (end > 0 && rows.ids[end - 1] < 0) --end;
    if (end == 0) continue;
    fp8.codes.resize(end * fp8.stride);
    fp8.scales.resize(fp8.scale_of(rows, end - 1, 22) + 1);
    const DeviceMemory codes{std::span<const std::uint8_t>(fp8.codes)};
    const DeviceMemory x_scales{std::span<const float>(fp8.scales)};
    const DeviceMemory counts{std::span<const std::int32_t>(rows.counts)};
    const DeviceMemory ids(rows.rows * sizeof(std::int32_t));
    const DeviceMemory weights(rows.rows * sizeof(float));
    const std::uint64_t element_bytes = bits_of(type) / 8;
    const DeviceMemory x(rows.x.size() * element_bytes, std::byte{0xFF});
    const DeviceMemory flags(sizeof(std::uint32_t), std::byte{0});
    int error = 0;
    find_rows_kernel(target_)->run({.rows = rows.rows,
                                    .local_experts = rows.counts.size(),
                                    .rows_of_expert = counts.as<std::int32_t>(),
                                    .rows_apart = rows.apart,
                                    .codes = fp8.ref(rows, codes.data()),
                                    .code_scales = fp8.scales_at(x_scales.as<float>()),
                                    .ids = ids.as<std::int32_t>(),
                                    .weights = weights.as<float>(),
                                    .x = {.data = x.data(),
                                          .dtype = type,
                                          .rows = rows.rows,
                                          .cols = rows.hidden,
                                          .row_stride = rows.hidden},
                                    .flags = flags.as<std::uint32_t>(),
                                    .launch_error = &error});
    EXPECT_EQ(error, 0);
    // Memory that nobody has written is as it was.
    std::vector<std::byte> expected(rows.x.size() * element_bytes, std::byte{0xFF});
    for (std::uint64_t i = 0; i < rows.x.size(); ++i) {
      if (rows.ids[i / rows.hidden] < 0) continue;
      const std::uint16_t half = encode_bf16(rows.x[i]);
      std::memcpy(&expected[i * element_bytes],
                  type == DType::f32 ? static_cast<const void*>(&rows.x[i]) : &half, element_bytes);
    }
    EXPECT_EQ(x.values<std::byte>(), expected) << (apart ? "apart" : "");
    EXPECT_TRUE(x.intact());
  }
}

}  // namespace
}  // namespace moxie
