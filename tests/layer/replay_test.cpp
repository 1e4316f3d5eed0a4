// SPDX-License-Identifier: Apache-2.0
// What a replay refuses before it asks for a device.
#include <gtest/gtest.h>

#include "support/layer_rig.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

TEST(Replay, R020RefusesALayerOnTheCpu) {
  const test::RigModel model(test::RigOptions{});
  const MoeLayer layer =
      test::layer_of(*model, make_plan(*model, PlanOptions{}), spec_of(model->config));
  test::expect_refusal([&] { (void)DeviceReplay(layer, {}); }, ErrorCode::unsupported,
                       "MOXIE-R020");
}

}  // namespace
}  // namespace moxie
