// SPDX-License-Identifier: Apache-2.0
// Calls of a layer and of a router allocate nothing, by malloc or by new, on any thread. A program
// of its own: it replaces malloc.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "capi/c_rig.hpp"
#include "support/layer_rig.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCanCount = false;  // the sanitizer's own malloc is in place
#else
constexpr bool kCanCount = true;
#endif

namespace {
std::atomic<std::uint64_t> allocations{0};
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {
void* __libc_malloc(std::size_t bytes);                     // NOLINT(bugprone-reserved-identifier)
void* __libc_calloc(std::size_t count, std::size_t bytes);  // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void* memory, std::size_t bytes);      // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(std::size_t align,
                      std::size_t bytes);  // NOLINT(bugprone-reserved-identifier)

void* malloc(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(memory, bytes);
}
void* aligned_alloc(std::size_t align, std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(align, bytes);
}
int posix_memalign(void** memory, std::size_t align, std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  *memory = __libc_memalign(align, bytes);
  return 0;
}
}
#endif

namespace moxie {
namespace {

TEST(NoAllocation, TheCounterSeesNewAndMalloc) {
  if (!kCanCount) GTEST_SKIP() << "a sanitizer owns malloc";
  const std::uint64_t before = allocations;
  const std::vector<int> some(1000);
  EXPECT_GT(allocations, before) << some.size();
}

TEST(NoAllocation, ForwardAllocatesNothing) {  // C12, pit63
  if (!kCanCount) GTEST_SKIP() << "a sanitizer owns malloc";
  for (const BlockFormat format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    const test::RigModel model({.format = format});
    for (const unsigned tp : {1U, 3U}) {
      const LayerSpec spec = spec_of(model->config);
      // On three ranks with experts that have two holders, among whom the call chooses.
      PlanOptions options{.tp = tp, .ep = 2};
      if (tp == 3) options.placement = {PlacementKind::file, {{6, 0, 1, 2, 3}, {4, 5, 6, 1}}};
      const MoeLayer layer = test::layer_of(*model, make_plan(*model, options), spec);
      std::vector<std::byte> workspace(layer.workspace_size(129));
      for (const std::uint64_t tokens : {129U, 1U, 64U, 0U, 129U}) {
        const Probe probe = test::probe_of(*model, tokens, spec.top_k);
        std::vector<float> y(tokens * probe.hidden);
        std::uint32_t flags = 0;
        Trace trace;
        const LayerIo io{.x = probe.x_ref(),
                         .topk_ids = probe.topk_ids.data(),
                         .topk_weights = probe.topk_weights.data(),
                         .y = {.data = y.data(),
                               .dtype = DType::f32,
                               .rows = tokens,
                               .cols = probe.hidden,
                               .row_stride = probe.hidden},
                         .flags = &flags,
                         .trace = &trace};
        // The first parallel call of a process makes the threads; that is preparation.
        ASSERT_EQ(layer.forward(io, workspace), CallStatus::ok);
        const std::uint64_t before = allocations;
        const CallStatus status = layer.forward(io, workspace);
        const std::uint64_t after = allocations;
        EXPECT_EQ(status, CallStatus::ok);
        EXPECT_EQ(after, before) << tokens << " tokens, tp " << tp;
      }
    }
  }
}

TEST(NoAllocation, ForwardThroughTheCAbiAllocatesNothing) {
  if (!kCanCount) GTEST_SKIP() << "a sanitizer owns malloc";
  const test::RigModel model({});
  const test::ModelHandle handle = test::opened(model->checkpoint.path());
  const test::LayerHandle layer = test::prepared(test::planned(handle.get()).get());
  const Probe probe = test::probe_of(*model, 64, model->config.top_k);
  test::CCall call(layer.get(), probe);
  ASSERT_EQ(moxie_forward(layer.get(), &call.args), MOXIE_STATUS_OK);
  const std::uint64_t before = allocations;
  const int status = moxie_forward(layer.get(), &call.args);
  const std::uint64_t after = allocations;
  EXPECT_EQ(status, MOXIE_STATUS_OK);
  EXPECT_EQ(after, before);
}

TEST(NoAllocation, RoutingAllocatesNothing) {  // C12, pit63
  if (!kCanCount) GTEST_SKIP() << "a sanitizer owns malloc";
  const test::RigModel model({});
  const Router router(*model, 0, 2);
  const Probe probe = test::probe_of(*model, 64, 2);
  std::vector<std::byte> workspace(router.workspace_size(64));
  std::vector<std::int64_t> token_ids(64, 1);
  std::vector<std::int32_t> ids(128);
  std::vector<float> weights(128);
  std::uint32_t flags = 0;
  const RouteIo io{.x = probe.x_ref(),
                   .token_ids = token_ids.data(),
                   .topk_ids = ids.data(),
                   .topk_weights = weights.data(),
                   .flags = &flags};
  ASSERT_EQ(router.route(io, workspace), CallStatus::ok);
  const std::uint64_t before = allocations;
  const CallStatus status = router.route(io, workspace);
  const std::uint64_t after = allocations;
  EXPECT_EQ(status, CallStatus::ok);
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace moxie
