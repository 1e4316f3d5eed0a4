// SPDX-License-Identifier: Apache-2.0
// Handles that end themselves, and the arguments of calls through moxie.h.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "moxie/moxie.h"
#include "support/layer_rig.hpp"

namespace moxie::test {

using ModelHandle = std::unique_ptr<moxie_model, decltype(&moxie_model_destroy)>;
using PlanHandle = std::unique_ptr<moxie_plan, decltype(&moxie_plan_destroy)>;
using LayerHandle = std::unique_ptr<moxie_layer, decltype(&moxie_layer_destroy)>;

// "ok", or the text of the refusal.
inline std::string said(int status) {
  return status == MOXIE_STATUS_OK ? "ok" : moxie_last_error();
}

inline ModelHandle opened(const std::filesystem::path& path) {
  moxie_model* model = nullptr;
  EXPECT_EQ(said(moxie_open(path.c_str(), &model)), "ok");
  return {model, moxie_model_destroy};
}

inline moxie_plan_options plan_options() { return {.struct_size = sizeof(moxie_plan_options)}; }

inline PlanHandle planned(const moxie_model* model,
                          const moxie_plan_options& options = plan_options()) {
  moxie_plan* plan = nullptr;
  EXPECT_EQ(said(moxie_make_plan(model, &options, &plan)), "ok");
  return {plan, moxie_plan_destroy};
}

inline moxie_prepare_options prepare_options() {
  return {.struct_size = sizeof(moxie_prepare_options), .reduction = MOXIE_REDUCTION_LAYER};
}

inline LayerHandle prepared(const moxie_plan* plan,
                            const moxie_prepare_options& options = prepare_options()) {
  moxie_layer* layer = nullptr;
  EXPECT_EQ(said(moxie_prepare(plan, &options, &layer)), "ok");
  return {layer, moxie_layer_destroy};
}

// A probe as the arguments of a call into a result of its own.
struct CCall {
  CCall(const moxie_layer* layer, const Probe& probe)
      : y(probe.tokens * probe.hidden, std::numeric_limits<float>::quiet_NaN()) {
    std::uint64_t bytes = 0;
    EXPECT_EQ(said(moxie_workspace_size(layer, probe.tokens, &bytes)), "ok");
    workspace.assign(bytes, std::byte{0xFF});
    args = {.struct_size = sizeof(moxie_forward_args),
            .x_dtype = probe.x_dtype == DType::bf16 ? MOXIE_DTYPE_BF16 : MOXIE_DTYPE_F32,
            .y_dtype = MOXIE_DTYPE_F32,
            .tokens = probe.tokens,
            .x = probe.x.data(),
            .x_row_stride = probe.hidden,
            .topk_ids = probe.topk_ids.data(),
            .topk_weights = probe.topk_weights.data(),
            .y = y.data(),
            .y_row_stride = probe.hidden,
            .flags = &flags,
            .workspace = workspace.data(),
            .workspace_bytes = workspace.size()};
  }
  CCall(const CCall&) = delete;
  CCall& operator=(const CCall&) = delete;

  std::vector<float> y;
  std::vector<std::byte> workspace;
  std::uint32_t flags = 0;
  moxie_forward_args args{};
};

inline std::vector<float> c_forward(const moxie_layer* layer, const Probe& probe) {
  CCall call(layer, probe);
  EXPECT_EQ(said(moxie_forward(layer, &call.args)), "ok");
  EXPECT_EQ(call.flags, 0U);
  return call.y;
}

}  // namespace moxie::test
