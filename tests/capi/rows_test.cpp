// SPDX-License-Identifier: Apache-2.0
// Dispatched rows through moxie.h: the bits of the C++ API, and what is refused.
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>

#include "capi/c_rig.hpp"
#include "support/fp8_rows.hpp"

namespace moxie {
namespace {

using test::DispatchedRows;
using test::RigModel;

// A stride in floats that comes round to the first row again.
constexpr std::uint64_t kTooFar = std::uint64_t{1} << 62;

class CAbiRows : public testing::Test {
 protected:
  CAbiRows() {
    moxie_plan_options plan = test::plan_options();
    plan.tp = 3;
    moxie_prepare_options one = test::prepare_options();
    one.reduction = MOXIE_REDUCTION_CALLER;
    one.rank = 1;
    layer_ = test::prepared(
        test::planned(test::opened(model_->checkpoint.path()).get(), plan).get(), one);
    std::uint64_t bytes = 0;
    EXPECT_EQ(test::said(moxie_rows_workspace_size(layer_.get(), rows_.rows, &bytes)), "ok");
    workspace_.resize(bytes);
  }
  moxie_rows_args args() {
    return {.struct_size = sizeof(moxie_rows_args),
            .x_dtype = MOXIE_DTYPE_F32,
            .y_dtype = MOXIE_DTYPE_F32,
            .rows = rows_.rows,
            .x = rows_.x.data(),
            .x_row_stride = rows_.hidden,
            .rows_of_expert = rows_.counts.data(),
            .rows_apart = rows_.apart,
            .row_scales = rows_.scales.data(),
            .y = y_.data(),
            .y_row_stride = rows_.hidden,
            .flags = &flags_,
            .workspace = workspace_.data(),
            .workspace_bytes = workspace_.size()};
  }
  // The same with the rows in FP8, which overwrites their x.
  moxie_rows_args fp8_args() {
    fp8_ = test::fp8_rows(rows_, test::ScaleOrder::columns, 3, random_);
    std::uint64_t bytes = 0;
    EXPECT_EQ(test::said(moxie_rows_workspace_size_of(layer_.get(), rows_.rows, MOXIE_DTYPE_F8_E4M3,
                                                      &bytes)),
              "ok");
    EXPECT_GT(bytes, workspace_.size());
    workspace_.resize(bytes);
    moxie_rows_args call = args();
    call.x_dtype = MOXIE_DTYPE_F8_E4M3;
    call.x = fp8_.codes.data();
    call.x_row_stride = fp8_.stride;
    call.x_scales = fp8_.scales.data();
    call.x_scale_row_stride = fp8_.at.row_stride;
    call.x_scale_block_stride = fp8_.at.block_stride;
    call.x_scale_expert_stride = fp8_.at.expert_stride;
    return call;
  }
  // What a change makes of a call: refused with this code and a text that has this part.
  struct Case {
    std::function<void(moxie_rows_args&)> change;
    const char* code;
    const char* part;
  };
  void expect_refusals(const moxie_rows_args& good, std::span<const Case> cases) {
    for (const auto& [change, code, part] : cases) {
      moxie_rows_args call = good;
      change(call);
      EXPECT_EQ(moxie_forward_rows(layer_.get(), &call), MOXIE_STATUS_USAGE) << part;
      const std::string text = moxie_last_error();
      EXPECT_NE(text.find(code), std::string::npos) << text;
      EXPECT_NE(text.find(part), std::string::npos) << text;
      EXPECT_TRUE(y_[0] != y_[0]) << "nothing is written";
    }
  }

  RigModel model_{{}};
  ShardPlan plan_ = make_plan(*model_, {.tp = 3});
  std::mt19937_64 random_{std::random_device{}()};
  DispatchedRows rows_ = test::dispatched_rows(plan_, 1, 6, true, random_);
  test::Fp8Rows fp8_;
  test::LayerHandle layer_{nullptr, moxie_layer_destroy};
  std::vector<std::byte> workspace_;
  std::vector<float> y_ =
      std::vector(rows_.rows * rows_.hidden, std::numeric_limits<float>::quiet_NaN());
  std::uint32_t flags_ = 0;
};

TEST_F(CAbiRows, HaveTheBitsOfTheCppApi) {
  const moxie_rows_args call = args();
  EXPECT_EQ(test::said(moxie_forward_rows(layer_.get(), &call)), "ok");
  LayerSpec spec = spec_of(model_->config);
  spec.reduction = Reduction::caller;
  std::vector<PackedExperts> one;
  one.push_back(pack(*model_, plan_, 1, 0));
  const MoeLayer layer(plan_, spec, std::move(one));
  std::vector<float> expected(y_.size());
  std::vector<std::byte> workspace(layer.rows_workspace_size(rows_.rows));
  EXPECT_EQ(layer.forward_rows({.x = test::rows_ref(rows_, rows_.x.data()),
                                .rows_of_expert = rows_.counts.data(),
                                .rows_apart = rows_.apart,
                                .row_scales = rows_.scales.data(),
                                .y = test::rows_ref(rows_, expected.data(), DType::f32),
                                .flags = &flags_},
                               workspace),
            CallStatus::ok);
  EXPECT_EQ(test::bits_of(y_), test::bits_of(expected));
  EXPECT_EQ(flags_, 0U);
}

TEST_F(CAbiRows, ThatDoNotFitAreRefusedByTheirField) {
  using Args = moxie_rows_args;
  const Case cases[] = {
      {[](Args& a) { a.x = nullptr; }, "MOXIE-A001", ": x is null"},
      {[](Args& a) { a.y = nullptr; }, "MOXIE-A001", ": y is null"},
      {[](Args& a) { a.rows_of_expert = nullptr; }, "MOXIE-A001", "rows_of_expert is null"},
      {[](Args& a) { a.flags = nullptr; }, "MOXIE-A001", "flags is null"},
      {[](Args& a) { a.workspace = nullptr; }, "MOXIE-A001", "workspace is null"},
      {[](Args& a) { a.struct_size = 8; }, "MOXIE-A002", "moxie_rows_args"},
      {[](Args& a) { a.x_dtype = 9; }, "MOXIE-A003", "or MOXIE_DTYPE_F8_E4M3 (3)"},
      {[](Args& a) { a.x_row_stride = kTooFar; }, "MOXIE-A004", "x_row_stride is larger"},
      {[](Args& a) { a.y_row_stride = kTooFar; }, "MOXIE-A004", "y_row_stride is larger"},
      {[](Args& a) { a.x_row_stride = 3; }, "MOXIE-A004", "x_row_stride"},
      {[](Args& a) { a.x_scales = a.row_scales; }, "MOXIE-A004", "x_scales belong to x in"},
      {[](Args& a) { a.stream = &a; }, "MOXIE-A004", "no stream"},
      {[](Args& a) { a.workspace_bytes -= 1; }, "MOXIE-A005", "rows"}};
  expect_refusals(args(), cases);
}

TEST_F(CAbiRows, InFp8HaveTheBitsOfTheirValues) {
  moxie_rows_args call = fp8_args();
  EXPECT_EQ(test::said(moxie_forward_rows(layer_.get(), &call)), "ok");
  const std::vector<float> y = y_;
  call = args();  // of the values in f32
  EXPECT_EQ(test::said(moxie_forward_rows(layer_.get(), &call)), "ok");
  EXPECT_EQ(test::bits_of(y), test::bits_of(y_));
  EXPECT_EQ(flags_, 0U);
}

TEST_F(CAbiRows, InFp8ThatDoNotFitAreRefusedByTheirField) {
  using Args = moxie_rows_args;
  const Case cases[] = {
      {[](Args& a) { a.x_scales = nullptr; }, "MOXIE-A001", "x_scales is null"},
      {[](Args& a) {
         a.x_scales =
             reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(a.x_scales) + 2);
       },
       "MOXIE-A004", "x_scales is not aligned"},
      {[](Args& a) { a.x_scale_row_stride = 0; }, "MOXIE-A004", "x_scale_row_stride"},
      {[](Args& a) { a.x_scale_block_stride = 0; }, "MOXIE-A004", "x_scale_block_stride"},
      {[](Args& a) { a.x_scale_row_stride = kTooFar; }, "MOXIE-A004", "x_scale_row_stride"},
      {[](Args& a) { a.x_scale_expert_stride = kTooFar; }, "MOXIE-A004", "x_scale_expert_stride"},
      {[](Args& a) { a.y_dtype = MOXIE_DTYPE_F8_E4M3; }, "MOXIE-A003", "y_dtype"},
      {[](Args& a) { a.workspace_bytes -= 1; }, "MOXIE-A005", "rows"},
      // A program that was built before the scales were there.
      {[](Args& a) { a.struct_size = offsetof(Args, x_scales); }, "MOXIE-A001", "x_scales"}};
  expect_refusals(fp8_args(), cases);
}

TEST_F(CAbiRows, OfExpertsThatStandBehindAllMemoryHaveNoRoomAndAreFlagged) {
  moxie_rows_args call = args();
  call.rows_apart = std::uint64_t{1} << 63;
  EXPECT_EQ(test::said(moxie_forward_rows(layer_.get(), &call)), "ok");
  EXPECT_EQ(flags_, MOXIE_FLAG_BAD_ROW_COUNT);
  const auto first = static_cast<std::size_t>(rows_.counts[0]);
  const std::vector<float> far = y_;
  call.rows_apart = rows_.rows;
  EXPECT_EQ(test::said(moxie_forward_rows(layer_.get(), &call)), "ok");
  EXPECT_EQ(test::bits_of(far), test::bits_of(y_));
  for (std::size_t i = first * rows_.hidden; i < far.size(); ++i) ASSERT_EQ(far[i], 0.0F) << i;
}

TEST_F(CAbiRows, ThatAreNoneNeedNoScales) {
  moxie_rows_args call = fp8_args();
  call.rows = 0;
  call.struct_size = offsetof(moxie_rows_args, x_scales);
  EXPECT_EQ(test::said(moxie_forward_rows(layer_.get(), &call)), "ok");
}

TEST_F(CAbiRows, OfAProgramOlderThanFp8AreTaken) {
  moxie_rows_args call = args();
  call.struct_size = offsetof(moxie_rows_args, x_scales);
  call.x_scales = call.row_scales;  // behind what the program has
  EXPECT_EQ(call.struct_size, 112U);
  EXPECT_EQ(test::said(moxie_forward_rows(layer_.get(), &call)), "ok");
}

}  // namespace
}  // namespace moxie
