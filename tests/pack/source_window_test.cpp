// SPDX-License-Identifier: Apache-2.0
// What is packed from: windows of the source, read ahead of its use.
#include "pack/source_window.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "pack/read_ahead.hpp"
#include "support/packed_model.hpp"
#include "support/page_cache.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::TinyModel;

// Two thirds of every tensor, the last ones first.
std::vector<SourceRange> middle_of(const Checkpoint& checkpoint) {
  std::vector<SourceRange> ranges;
  for (const TensorInfo& tensor : checkpoint.tensors())
    ranges.push_back({&tensor, tensor.bytes / 6, tensor.bytes * 4 / 6});
  std::ranges::reverse(ranges);
  return ranges;
}

bool holds_its_bytes(const SourceWindow& window, const Checkpoint& checkpoint,
                     const SourceRange& range) {
  const std::byte* held = window.find(*range.tensor, range.offset, range.bytes);
  if (held == nullptr) return false;
  const auto stored = checkpoint.bytes(*range.tensor).subspan(range.offset, range.bytes);
  return std::equal(stored.begin(), stored.end(), held);
}

TEST(SourceWindow, HoldsTheBytesOfItsRangesWhetherTheyAreCachedOrNot) {
  const TinyModel model(BlockFormat::nvfp4, 704, 512);
  const Checkpoint& checkpoint = model->checkpoint;
  SourceWindow window;
  for (const bool cached : {true, false}) {
    if (!cached) {
      for (std::uint32_t file = 0; file < checkpoint.files().size(); ++file) {
        checkpoint.release(file);
        test::drop_cache(checkpoint.files()[file].path);
      }
    }
    const std::vector<SourceRange> ranges = middle_of(checkpoint);
    window.fill(checkpoint, ranges);
    for (const SourceRange& range : ranges)
      EXPECT_TRUE(holds_its_bytes(window, checkpoint, range)) << range.tensor->name;
  }
}

TEST(SourceWindow, SaysWhatItDoesNotHoldAndTheMappedFileHasIt) {
  const TinyModel model(BlockFormat::mxfp4, 704, 512);
  const Checkpoint& checkpoint = model->checkpoint;
  const TensorInfo& first = checkpoint.tensors().front();
  const TensorInfo& last = checkpoint.tensors().back();
  SourceWindow window;
  EXPECT_EQ(window.find(first, 0, 1), nullptr);
  window.fill(checkpoint, std::vector<SourceRange>{{&first, 0, 1}});
  EXPECT_NE(window.find(first, 0, 1), nullptr);
  EXPECT_EQ(window.find(last, last.bytes - 1, 1), nullptr);
  const SourceBytes bytes(checkpoint, &window);
  EXPECT_EQ(bytes.find(last, 0, last.bytes), checkpoint.bytes(last).data());
  EXPECT_EQ(bytes.find(first, 0, 1), window.find(first, 0, 1));
  window.fill(checkpoint, {});
  EXPECT_EQ(window.find(first, 0, 1), nullptr);
}

TEST(SourceWindow, RefusesAFileThatHasBecomeShorter) {
  const TinyModel model(BlockFormat::mxfp4);
  const Checkpoint& checkpoint = model->checkpoint;
  const TensorInfo& last = checkpoint.tensors().back();
  const auto& file = checkpoint.files()[last.file];
  std::filesystem::resize_file(file.path, file.bytes - 1);
  SourceWindow window;
  const Error error = test::refusal_of(
      [&] { window.fill(checkpoint, std::vector<SourceRange>{{&last, 0, last.bytes}}); });
  EXPECT_EQ(error.code(), ErrorCode::environment);
  EXPECT_EQ(error.findings().front().where.file, file.path.string());
}

// Steps of one tensor each.
class StepsOf {
 public:
  explicit StepsOf(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  std::optional<NextStep> operator()() {
    if (next_ == checkpoint_.tensors().size()) return std::nullopt;
    const TensorInfo& tensor = checkpoint_.tensors()[next_];
    return NextStep{
        .file = next_++, .last = false, .step = {.sources = {{&tensor, 0, tensor.bytes}}}};
  }

 private:
  const Checkpoint& checkpoint_;
  std::size_t next_ = 0;
};

TEST(ReadAhead, HandsOutEveryStepInOrderWithItsSource) {
  const TinyModel model(BlockFormat::mxfp4);
  for (const std::size_t windows : {1U, 2U, 5U}) {
    std::size_t used = 0;
    ReadAhead(model->checkpoint, windows)
        .run(StepsOf(model->checkpoint), [&](const NextStep& next, const SourceWindow& window) {
          EXPECT_EQ(next.file, used++);
          EXPECT_TRUE(holds_its_bytes(window, model->checkpoint, next.step.sources.front()));
        });
    EXPECT_EQ(used, model->checkpoint.tensors().size());
  }
}

TEST(ReadAhead, EndsWithWhatEitherSideThrows) {
  const TinyModel model(BlockFormat::mxfp4);
  const auto fail = [](const char* text) { throw std::runtime_error(text); };
  const auto thrown_by = [&](auto next, auto use) -> std::string {
    try {
      ReadAhead(model->checkpoint, 2).run(next, use);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "nothing";
  };
  const auto nothing = [](const NextStep&, const SourceWindow&) {};
  EXPECT_EQ(thrown_by(StepsOf(model->checkpoint), nothing), "nothing");
  EXPECT_EQ(thrown_by(StepsOf(model->checkpoint),
                      [&](const NextStep&, const SourceWindow&) { fail("use"); }),
            "use");
  EXPECT_EQ(thrown_by(
                [&, steps = StepsOf(model->checkpoint), left = 3]() mutable {
                  if (left-- == 0) fail("next");
                  return steps();
                },
                nothing),
            "next");
}

// However small the buffer is, what a piece is made from is read in its own step.
TEST(PackSteps, HoldTheSourcesOfAllTheirPieces) {
  const TinyModel model(BlockFormat::nvfp4, 768, 512);
  const ShardPlan plan = test::plan_of(*model, 3);
  const PackedFile file{.name = "layer", .layer = &model.layer(), .plan = plan, .tensors = {}};
  const std::uint64_t stride = plan.layout.stride;
  for (const std::uint64_t buffer : {stride, 2 * stride, 3 * stride, 4 * stride, 100 * stride}) {
    for (const std::uint64_t source : {std::uint64_t{1}, 3 * stride, 100 * stride}) {
      const std::vector<Step> steps =
          steps_of(file, {0, 1, 2}, {.buffer_bytes = buffer, .source_bytes = source});
      std::size_t pieces = 0;
      for (const Step& step : steps) {
        SourceWindow window;
        window.fill(model->checkpoint, step.sources);
        pieces += step.pieces.size();
        for (const Piece& piece : step.pieces) {
          const ExpertTensors& expert = model.layer().experts[piece.expert];
          for (const Projection* projection : {&expert.gate, &expert.up, &expert.down}) {
            for (const RowsView* view : {&projection->codes, &projection->block_scales})
              EXPECT_NE(window.find(*view->tensor, 0, view->tensor->bytes), nullptr);
          }
        }
      }
      EXPECT_EQ(pieces, 3 * model.layer().experts.size());
    }
  }
}

TEST(PackSteps, ReadOfAnExpertOnlyTheRowsOfTheRanksThatArePacked) {
  const TinyModel model(BlockFormat::mxfp4, 768, 512);
  const ShardPlan plan = test::plan_of(*model, 3);
  const LayerExperts& layer = model.layer();
  const PackedFile file{.name = "layer", .layer = &layer, .plan = plan, .tensors = {}};
  const auto bytes_for = [&](const std::vector<unsigned>& ranks) {
    std::uint64_t bytes = 0;
    for (const Step& step :
         steps_of(file, ranks, {.buffer_bytes = 1U << 30, .source_bytes = 1U << 30}))
      bytes += step.source_bytes;
    return bytes;
  };
  std::uint64_t cut_by_rows = 0;
  std::uint64_t all = 0;
  for (const ExpertTensors& expert : layer.experts) {
    for (const Projection* projection : {&expert.gate, &expert.up, &expert.down}) {
      const std::uint64_t stored =
          projection->codes.tensor->bytes + projection->block_scales.tensor->bytes;
      all += stored;
      if (projection != &expert.down) cut_by_rows += stored;
    }
  }
  EXPECT_EQ(bytes_for({0, 1, 2}), all);
  EXPECT_EQ(bytes_for({1}), all - cut_by_rows / 3 * 2);
}

}  // namespace
}  // namespace moxie
