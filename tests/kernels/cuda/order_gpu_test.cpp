// SPDX-License-Identifier: Apache-2.0
// Where every kernel of the catalog must give the same bits: captured and replayed, beside another
// layer, after another layer, on fewer multiprocessors, with other neighbours, in pieces.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <initializer_list>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/cuda/catalog_rig.hpp"

namespace moxie {
namespace {

using namespace test;

std::vector<float> row_of(const ExpertsResult& result, std::uint64_t token, std::uint64_t hidden) {
  const auto begin = result.y.begin() + static_cast<std::ptrdiff_t>(token * hidden);
  return {begin, begin + static_cast<std::ptrdiff_t>(hidden)};
}

// The token `from` of one call as token `to` of another.
void put_token(ExpertsCall& other, std::uint64_t to, const ExpertsCall& call, std::uint64_t from,
               std::uint64_t top_k) {
  const std::uint64_t row = call.x_stride * bits_of(call.x_type) / 8;
  std::memcpy(other.x.data() + to * row, call.x.data() + from * row, row);
  std::copy_n(call.ids.data() + from * top_k, top_k, other.ids.data() + to * top_k);
  std::copy_n(call.weights.data() + from * top_k, top_k, other.weights.data() + to * top_k);
}

class KernelOrder : public CatalogGpu {
 protected:
  Experts experts_of(BlockFormat format) { return experts_of(format, any_act()); }
  Experts experts_of(BlockFormat format, ActFormat act) {
    return random_experts({.format = format, .act_format = act, .hidden = 448, .inter = 192},
                          random_);
  }
  // Replays of one graph on these routings, in turn, against eager calls.
  void replay(const Experts& experts, std::uint64_t tokens, std::span<const Ids> all_ids,
              int replays, unsigned max_sms) {
    const RowsForm form = random_form(random_);
    const ExpertsThere there(*kernel_, experts);
    std::vector<ExpertsCall> calls;
    std::vector<ExpertsResult> eager;
    for (const Ids ids : all_ids) {
      calls.push_back(random_call(experts.shape, tokens, ids, random_, form));
      eager.push_back(run_on_device(there, calls.back(), {.max_sms = max_sms}));
    }
    DeviceCall call(there, calls[0], {.max_sms = max_sms});
    device::Stream stream;
    device::Graph graph(stream);
    call.launch(stream);
    graph.end();
    for (int i = 0; i < replays; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) % calls.size();
      SCOPED_TRACE(std::string(entry().name) + ", seed " + std::to_string(seed_) + ", replay " +
                   std::to_string(i) + ", ids " + std::to_string(static_cast<int>(all_ids[at])));
      call.replace(calls[at]);
      graph.launch();
      stream.wait();
      expect_identical(call.result(), eager[at]);
      if (HasFailure()) return;
    }
  }
  // A token alone, and among others in batches of so many.
  void expect_same_in_batches(const Experts& experts, Ids of_token,
                              std::initializer_list<Ids> all_ids,
                              std::initializer_list<std::uint64_t> counts) {
    const ExpertsThere there(*kernel_, experts);
    const RowsForm form = random_form(random_);
    const ExpertsCall token = random_call(experts.shape, 1, of_token, random_, form);
    const auto alone = row_of(run_on_device(there, token), 0, experts.shape.hidden);
    for (const Ids ids : all_ids) {
      for (const std::uint64_t tokens : counts) {
        ExpertsCall batch = random_call(experts.shape, tokens, ids, random_, form);
        const std::uint64_t at = random_() % tokens;
        put_token(batch, at, token, 0, experts.shape.top_k);
        SCOPED_TRACE("seed " + std::to_string(seed_) + ", " +
                     std::string(name_of(experts.shape.act_format)) + ", inter " +
                     std::to_string(experts.shape.inter) + ", " + std::to_string(tokens) +
                     " tokens");
        expect_same_bits(row_of(run_on_device(there, batch), at, experts.shape.hidden), alone,
                         "the token");
        if (HasFailure()) return;
      }
    }
  }
  // Calls of two layers, one stream each, all of them on their way at once.
  void interleave(std::uint64_t tokens, int rounds, unsigned max_sms) {
    const Experts experts[] = {experts_of(any_format()), experts_of(other_format())};
    const ExpertsThere there[] = {{*kernel_, experts[0]}, {*kernel_, experts[1]}};
    std::vector<ExpertsResult> alone;
    std::deque<DeviceCall> calls;  // every one has its own buffers
    for (int i = 0; i < 2 * rounds; ++i) {
      const int layer = i % 2;
      const ExpertsCall call =
          random_call(experts[layer].shape, tokens, i % 4 < 2 ? Ids::uniform : Ids::one, random_);
      alone.push_back(run_on_device(there[layer], call));
      calls.emplace_back(there[layer], call, CallOptions{.max_sms = max_sms});
    }
    const device::Stream streams[2];
    for (int i = 0; i < 2 * rounds; ++i) calls[static_cast<std::size_t>(i)].launch(streams[i % 2]);
    for (const device::Stream& stream : streams) stream.wait();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      SCOPED_TRACE("call " + std::to_string(i) + ", max_sms " + std::to_string(max_sms));
      expect_identical(calls[i].result(), alone[i]);
      if (HasFailure()) return;
    }
  }
};

TEST_P(KernelOrder, AHundredReplaysOnOtherRoutingsHaveTheBitsOfEagerCalls) {  // K-13
  for (const BlockFormat format : entry().formats) {
    replay(experts_of(format), 64, kAllIds, 100, 0);
    if (HasFailure()) return;
  }
  for (const std::uint64_t tokens : {1U, 8U, 200U}) {
    replay(experts_of(any_format()), tokens, kAllIds, 20, 7);
    if (HasFailure()) return;
  }
}

TEST_P(KernelOrder, TwoLayersOnTwoStreamsDoNotDisturbEachOther) {  // no call needs the whole GPU
  const GpuReport report = list_gpus();
  for (const unsigned max_sms : {0U, report.gpus[report.current].multiprocessors / 2, 3U}) {
    interleave(8, 10, max_sms);
    interleave(129, 10, max_sms);
    if (HasFailure()) return;
  }
}

TEST_P(KernelOrder, AnotherLayerInTheSameWorkspaceLeavesNoTrace) {  // L1, L2, L1; K-14
  const Experts experts[] = {experts_of(other_format()), experts_of(any_format())};
  const ExpertsThere there[] = {{*kernel_, experts[0]}, {*kernel_, experts[1]}};
  const std::uint64_t bytes = std::max(kernel_->workspace_bytes(experts[0].shape, 129),
                                       kernel_->workspace_bytes(experts[1].shape, 129));
  const DeviceMemory workspace(bytes, std::byte{0xFF}, 1);
  for (const std::uint64_t tokens : {1U, 7U, 64U}) {
    const ExpertsCall first = random_call(experts[0].shape, tokens, Ids::zipf, random_);
    const ExpertsCall other = random_call(experts[1].shape, 129, Ids::uniform, random_);
    const ExpertsResult expected = run_on_device(there[0], first);
    DeviceCall calls[] = {{there[0], first, {.workspace = &workspace}},
                          {there[1], other, {.workspace = &workspace}},
                          {there[0], first, {.workspace = &workspace}}};
    const device::Stream stream;  // one behind the other, without a pause
    for (DeviceCall& call : calls) call.launch(stream);
    stream.wait();
    expect_identical(calls[0].result(), expected);
    expect_identical(calls[2].result(), expected);
    EXPECT_TRUE(workspace.intact());
  }
}

TEST_P(KernelOrder, TheNumberOfMultiprocessorsChangesNothing) {
  for (const BlockFormat format : entry().formats) {
    const Experts experts = experts_of(format);
    const ExpertsThere there(*kernel_, experts);
    for (const Ids ids : {Ids::uniform, Ids::one, Ids::masked}) {
      for (const std::uint64_t tokens : {1U, 33U, 129U}) {
        const ExpertsCall call = random_call(experts.shape, tokens, ids, random_);
        const ExpertsResult all = run_on_device(there, call);
        for (const unsigned max_sms : {1U, 2U, 7U, 100'000U}) {
          SCOPED_TRACE(std::to_string(max_sms) + " multiprocessors");
          expect_identical(run_on_device(there, call, {.max_sms = max_sms}), all);
        }
        expect_identical(run_on_device(there, call, {.poison = std::byte{0x7F}}), all);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(KernelOrder, ATokenIsTheSameAloneAndInEveryBatch) {  // K-11
  for (const BlockFormat format : entry().formats) {
    for (const ActFormat act : entry().act_formats) {
      if (act == ActFormat::nvfp4) continue;  // its laws depend on the policy: tests/layer
      expect_same_in_batches(experts_of(format, act), Ids::duplicates,
                             {Ids::uniform, Ids::one, Ids::none}, {2, 8, 9, 64, 512});
      if (HasFailure()) return;
    }
  }
}

// Kernels may run otherwise where experts have few rows, and depending on the length of a sum.
TEST_P(KernelOrder, ATokenIsTheSameWhetherExpertsHaveFewRowsOrMany) {
  for (const std::uint64_t inter : {192U, 704U, 1024U}) {
    for (const BlockFormat format : entry().formats) {
      const ActFormat act = any_act();
      if (act == ActFormat::nvfp4) continue;  // as above
      const Experts experts = random_experts({.format = format,
                                              .act_format = act,
                                              .hidden = 128,
                                              .inter = inter,
                                              .experts = 100,
                                              .local = 97,
                                              .top_k = 2},
                                             random_);
      expect_same_in_batches(experts, Ids::uniform, {Ids::uniform}, {9, 33, 64, 129, 512});
      if (HasFailure()) return;
    }
  }
}

TEST_P(KernelOrder, CallsThatRunInPiecesHaveTheBitsOfTheirPieces) {
  const Experts experts = random_experts({.format = any_format(),
                                          .act_format = any_act(),
                                          .hidden = 2048,
                                          .inter = 64,
                                          .experts = 24,
                                          .local = 20,
                                          .top_k = 16},
                                         random_);
  const ExpertsThere there(*kernel_, experts);
  constexpr std::uint64_t kTokens = 1300;  // 173 MB of sums
  constexpr std::uint64_t kHalf = kTokens / 2;
  const RowsForm form{.type = DType::bf16};
  const ExpertsCall whole = random_call(experts.shape, kTokens, Ids::uniform, random_, form);
  const ExpertsResult all = run_on_device(there, whole);
  ExpertsCall half = random_call(experts.shape, kHalf, Ids::uniform, random_, form);
  for (const std::uint64_t first : {std::uint64_t{0}, kHalf}) {
    for (std::uint64_t token = 0; token < kHalf; ++token)
      put_token(half, token, whole, first + token, experts.shape.top_k);
    const ExpertsResult part = run_on_device(there, half);
    const auto begin = all.y.begin() + static_cast<std::ptrdiff_t>(first * 2048);
    expect_same_bits({begin, begin + static_cast<std::ptrdiff_t>(kHalf * 2048)}, part.y, "y");
  }
}

TEST_P(KernelOrder, NanInOneTokenStaysThere) {  // pit48, pit57
  for (const BlockFormat format : entry().formats) {
    for (const ActFormat act : entry().act_formats) {
      if (act == ActFormat::nvfp4) continue;  // PortableGpuExperts holds it against the host
      const Experts experts = experts_of(format, act);
      const std::uint64_t hidden = experts.shape.hidden;
      const ExpertsThere there(*kernel_, experts);
      for (const Ids ids : {Ids::uniform, Ids::one}) {
        ExpertsCall call = random_call(experts.shape, 12, ids, random_);
        call.ids[5 * experts.shape.top_k] = 2;
        const ExpertsResult clean = run_on_device(there, call);
        const std::size_t elem = bits_of(call.x_type) / 8;
        std::memset(call.x.data() + (5 * call.x_stride + 17) * elem, 0xFF, elem);
        const ExpertsResult result = run_on_device(there, call);
        for (std::uint64_t token = 0; token < call.tokens; ++token) {
          const std::vector<float> row = row_of(result, token, hidden);
          if (token != 5) {
            expect_same_bits(row, row_of(clean, token, hidden), "a neighbour");
            continue;
          }
          for (const float value : row) ASSERT_NE(value, value) << "NaN became a number";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, KernelOrder, testing::ValuesIn(gpu_kernels()), instance_name);

// For a tool that looks at every access.
class SmallKernelOrder : public KernelOrder {};

TEST_P(SmallKernelOrder, ReplaysHaveTheBitsOfEagerCalls) {
  constexpr Ids kIds[] = {Ids::uniform, Ids::none, Ids::one};
  const Experts experts = random_experts({.format = any_format(),
                                          .act_format = any_act(),
                                          .hidden = 128,
                                          .inter = 64,
                                          .experts = 4,
                                          .local = 3,
                                          .top_k = 2},
                                         random_);
  replay(experts, 20, kIds, 4, 5);
}

INSTANTIATE_TEST_SUITE_P(Catalog, SmallKernelOrder, testing::ValuesIn(gpu_kernels()),
                         instance_name);

}  // namespace
}  // namespace moxie
