// SPDX-License-Identifier: Apache-2.0
// Where the steps of an expert lie for cuda.sm90.experts, and what lies where in its workspace; on
// any machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cuda/sm90/arranged.hpp"
#include "kernels/cuda/sm90/call.hpp"

namespace moxie::cuda::sm90 {
namespace {

constexpr BlockFormat kFormats[] = {BlockFormat::mxfp4, BlockFormat::nvfp4};

ExpertsShape shape_of(BlockFormat format, std::uint64_t hidden, std::uint64_t inter) {
  return {.format = format,
          .hidden = hidden,
          .inter = inter,
          .experts = 8,
          .local_experts = 8,
          .top_k = 2};
}
BlobOffsets offsets_of(bool gated, bool biases) {
  BlobOffsets offsets;
  if (!gated) offsets.gate = BlobOffsets::kAbsent;
  if (biases) offsets.gate_bias = offsets.up_bias = offsets.down_bias = 0;
  return offsets;
}

// Calls body(product, format, rows of its weights, columns) for many shapes.
template <class Body>
void for_products(const Body& body) {
  for (const BlockFormat format : kFormats) {
    for (std::uint64_t steps = 1; steps <= 120; ++steps) {
      for (const bool gated : {true, false}) {
        const std::uint64_t other = 64 * (1 + steps % 3);
        const Arranged wide =
            arranged(shape_of(format, steps * 64, other), offsets_of(gated, false));
        body(wide.gate_up, format, (gated ? 2 : 1) * other, steps * 64);
        const Arranged tall =
            arranged(shape_of(format, other, steps * 64), offsets_of(gated, false));
        body(tall.down, format, other, steps * 64);
      }
    }
  }
}

TEST(Sm90Arranged, UnitsHoldAllRowsAndColumns) {
  for_products(
      [](const Product& product, BlockFormat format, std::uint64_t rows, std::uint64_t columns) {
        EXPECT_EQ(product.columns, columns);
        EXPECT_EQ(product.steps * kStepColumns, columns);
        EXPECT_EQ(std::uint64_t{product.units} * product.strips_of_unit * kStripRows, rows);
        EXPECT_EQ(product.splits * product.strips_of_unit, kWarps);
        // FP8 has pairs of strips and of splits.
        EXPECT_TRUE(product.splits == 4 || product.splits == 8);
        EXPECT_EQ(product.splits == 8, product.steps > 16 || rows / kStripRows % 4 != 0)
            << product.steps << " steps, " << rows << " rows";
        EXPECT_EQ(product.unit_bytes,
                  std::uint64_t{product.strips_of_unit} * product.steps * step_bytes(format));
        EXPECT_EQ(product.unit_bytes % 16, 0U) << "bulk copies take 16 bytes";
      });
}

TEST(Sm90Arranged, SplitsShareAStripsStepsEvenlyAndInOrder) {
  for_products([](const Product& product, BlockFormat, std::uint64_t, std::uint64_t) {
    std::uint32_t next = 0;
    for (std::uint32_t split = 0; split < product.splits; ++split) {
      EXPECT_EQ(product.first_step(split), next);
      EXPECT_LE(product.steps_of(split), product.stages);
      EXPECT_GE(product.steps_of(split) + 1, product.stages);
      next += product.steps_of(split);
    }
    EXPECT_EQ(next, product.steps);
  });
}

TEST(Sm90Arranged, StagesHoldTheStepsOfTheFirstWarps) {
  for_products([](const Product& product, BlockFormat, std::uint64_t, std::uint64_t) {
    std::uint32_t all = 0;
    for (std::uint32_t stage = 0; stage < product.stages; ++stage) {
      std::uint32_t warps = 0;
      for (std::uint32_t warp = 0; warp < kWarps; ++warp) {
        const bool has = product.steps_of(warp / product.strips_of_unit) > stage;
        EXPECT_TRUE(!has || warp == warps) << "warps with a step come first";
        warps += has ? 1 : 0;
      }
      EXPECT_EQ(product.warps_in(stage), warps);
      EXPECT_GT(warps, 0U);
      all += warps;
    }
    EXPECT_EQ(product.warps_in(product.stages), 0U);
    EXPECT_EQ(all, product.steps * product.strips_of_unit);
  });
}

TEST(Sm90Arranged, EveryStepHasAPlaceOfItsOwnAndNoneIsLeft) {
  for_products([](const Product& product, BlockFormat format, std::uint64_t, std::uint64_t) {
    const std::uint32_t bytes = step_bytes(format);
    const std::uint64_t end = product.units * product.unit_bytes;
    std::vector<bool> taken(end / bytes);
    const std::uint64_t strips = std::uint64_t{product.units} * product.strips_of_unit;
    std::uint64_t count = 0;
    for (std::uint64_t strip = 0; strip < strips; ++strip) {
      for (std::uint32_t step = 0; step < product.steps; ++step, ++count) {
        const std::uint64_t at = product.offset_of(strip, step, bytes);
        ASSERT_EQ(at % bytes, 0U);
        ASSERT_LT(at, end) << "strip " << strip << ", step " << step;
        ASSERT_FALSE(taken[at / bytes]) << "strip " << strip << ", step " << step;
        taken[at / bytes] = true;
      }
    }
    EXPECT_EQ(count * bytes, end);
  });
}

// The reader's way to a step, warp by warp and stage by stage, leads where the writer put it.
TEST(Sm90Arranged, TheOrderOfReadingIsThatOfWriting) {
  for_products([](const Product& product, BlockFormat format, std::uint64_t, std::uint64_t) {
    const std::uint32_t bytes = step_bytes(format);
    std::uint64_t next = 0;
    for (std::uint32_t unit = 0; unit < product.units; ++unit) {
      for (std::uint32_t stage = 0; stage < product.stages; ++stage) {
        for (std::uint32_t warp = 0; warp < product.warps_in(stage); ++warp, next += bytes) {
          const std::uint64_t strip =
              std::uint64_t{unit} * product.strips_of_unit + warp % product.strips_of_unit;
          const std::uint32_t step = product.first_step(warp / product.strips_of_unit) + stage;
          ASSERT_EQ(product.offset_of(strip, step, bytes), next);
        }
      }
    }
  });
}

// hidden 704: eleven steps over four splits, the first three of which have three.
TEST(Sm90Arranged, IsTheTableWrittenByHand) {
  const Arranged to = arranged(shape_of(BlockFormat::mxfp4, 704, 128), offsets_of(true, true));
  const Product& product = to.gate_up;
  EXPECT_EQ(product.steps, 11U);
  EXPECT_EQ(product.splits, 4U);
  EXPECT_EQ(product.units, 2U);
  EXPECT_EQ(product.stages, 3U);
  struct Row {
    std::uint64_t strip;
    std::uint32_t step;
    std::uint64_t place;  // in steps of 1088 bytes
  };
  // Stages 0 and 1: 16 warps, strips 0 to 3 of splits 0 to 3, which begin with steps 0, 3, 6, 9.
  // Stage 2: 12 warps. A unit: 44 steps.
  constexpr Row kRows[] = {{0, 0, 0},  {1, 0, 1},  {3, 0, 3},  {0, 3, 4},   {2, 6, 10},
                           {3, 9, 15}, {0, 1, 16}, {1, 7, 25}, {3, 10, 31}, {0, 2, 32},
                           {2, 5, 38}, {3, 8, 43}, {4, 0, 44}, {6, 4, 66},  {7, 8, 87}};
  for (const Row& row : kRows)
    EXPECT_EQ(product.offset_of(row.strip, row.step, 1088), row.place * 1088)
        << "strip " << row.strip << ", step " << row.step;
  // 88 steps; down: 22 strips of two steps, two a unit, since four would not fill the last.
  EXPECT_EQ(to.down.offset, 88U * 1088);
  EXPECT_EQ(to.down.strips_of_unit, 2U);
  EXPECT_EQ(to.down.units, 11U);
  EXPECT_EQ(to.down.stages, 1U);
  EXPECT_EQ(to.down.offset_of(3, 1, 1088), (4U + 3) * 1088);
  EXPECT_EQ(to.muls, 132U * 1088);
  EXPECT_EQ(to.biases % sizeof(float), 0U);
  EXPECT_GE(to.stride, 132U * 1088 + (3 + 128 + 128 + 704) * sizeof(float));
  EXPECT_LE(to.stride, 132U * 1088 + (16 + 128 + 128 + 704) * sizeof(float) + 127);
}

TEST(Sm90Arranged, PartsOfAnExpertDoNotOverlap) {
  for (const BlockFormat format : kFormats) {
    for (const std::uint64_t hidden : {64U, 2880U, 7680U}) {
      for (const std::uint64_t inter : {64U, 704U, 2112U}) {
        for (const bool gated : {true, false}) {
          for (const bool biases : {true, false}) {
            const Arranged to =
                arranged(shape_of(format, hidden, inter), offsets_of(gated, biases));
            EXPECT_EQ(to.gated, gated);
            EXPECT_EQ(to.has_bias, biases);
            EXPECT_EQ(to.gate_up.offset, 0U);
            EXPECT_EQ(to.down.offset, to.gate_up.units * to.gate_up.unit_bytes);
            EXPECT_EQ(to.muls, to.down.offset + to.down.units * to.down.unit_bytes);
            EXPECT_GE(to.biases, to.muls + 3 * sizeof(float));
            EXPECT_GE(to.stride, to.biases + (biases ? 2 * inter + hidden : 0) * sizeof(float));
            EXPECT_EQ(to.stride % 128, 0U);
            const std::uint64_t weights = (gated ? 3 : 2) * hidden * inter;
            const std::uint64_t group = format == BlockFormat::mxfp4 ? 32 : 16;
            EXPECT_EQ(to.muls, weights / 2 + weights / group) << "no byte more than is packed";
          }
        }
      }
    }
  }
}

TEST(Sm90Sheets, BeginWithFewerRowsWhereDownHasFewSteps) {
  struct Row {
    std::uint32_t steps;
    std::uint32_t fp16;  // tenths of a row
    std::uint32_t fp8;
  };
  for (const Row& row : {Row{1, 1, 1}, {4, 4, 6}, {11, 11, 16}, {15, 15, 16}, {48, 15, 16}}) {
    EXPECT_EQ(sheets_from(RowForm::fp16, row.steps), row.fp16) << row.steps << " steps";
    EXPECT_EQ(sheets_from(RowForm::fp8, row.steps), row.fp8) << row.steps << " steps";
  }
}

TEST(Sm90Workspace, PartsAreApartAndAligned) {
  for (const auto& [act, form] : {std::pair{ActFormat::bf16, RowForm::none},
                                  {ActFormat::bf16, RowForm::fp16},
                                  {ActFormat::mxfp8, RowForm::none},
                                  {ActFormat::fp8, RowForm::fp8}}) {
    ExpertsShape shape = shape_of(BlockFormat::mxfp4, 192, 64);
    shape.act_format = act;
    std::uint64_t before = 0;
    for (const std::uint64_t tokens : {1U, 2U, 7U, 64U, 129U}) {
      const std::uint64_t slots = tokens * shape.top_k;
      const std::uint64_t items = item_capacity(shape, slots);
      std::vector<std::byte> memory(1 << 20);
      Workspace work;
      const std::uint64_t bytes = carve(shape, tokens, form, memory.data(), work);
      Workspace nowhere;
      EXPECT_EQ(carve(shape, tokens, form, nullptr, nowhere), bytes);
      EXPECT_EQ(nowhere.down, nullptr);
      EXPECT_GT(bytes, before) << "grows with the tokens";
      before = bytes;
      std::vector<std::pair<std::uint64_t, std::uint64_t>> parts;  // offset and bytes
      const auto part = [&](const auto* at, std::uint64_t size) {
        parts.emplace_back(reinterpret_cast<const std::byte*>(at) - memory.data(), size);
      };
      part(work.progress, sizeof(Progress));
      part(work.gate_up_units, items * 4);
      part(work.items, items * sizeof(Item));
      part(work.expert_of_slot, slots * 4);
      part(work.place_of_slot, slots * 4);
      part(work.act, slots * shape.inter * (act == ActFormat::bf16 ? 2 : 4));
      part(work.down, slots * shape.hidden * 4);
      if (form != RowForm::none) {
        const bool fp8 = form == RowForm::fp8;
        part(work.sheet_x, tokens * shape.hidden * (fp8 ? 1 : 2));
        part(work.beside_x, tokens * (fp8 ? 2 : 1) * 4);  // scales of 192 columns
        part(work.beside_act, slots * 4);
      }
      std::ranges::sort(parts);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::uint64_t end = i + 1 < parts.size() ? parts[i + 1].first : bytes;
        EXPECT_EQ(parts[i].first % kAlign, 0U);
        EXPECT_LE(parts[i].first + parts[i].second, end) << "part " << i;
      }
    }
  }
}

// However the slots fall to experts, so many items are enough.
TEST(Sm90Workspace, HoldsTheItemsOfEveryRouting) {
  const ExpertsShape shape = shape_of(BlockFormat::mxfp4, 64, 64);
  for (std::uint64_t slots = 1; slots <= 200; ++slots) {
    const std::uint64_t busy = std::min(slots, shape.local_experts);
    for (std::uint64_t experts = 1; experts <= busy; ++experts) {
      // The worst: one slot to every expert but the first, which may then end early as well.
      const std::uint64_t first = slots - (experts - 1);
      const std::uint64_t items = (first + kRowsOfTile - 1) / kRowsOfTile + (experts - 1);
      EXPECT_LE(items, item_capacity(shape, slots)) << slots << " slots, " << experts;
    }
  }
}

}  // namespace
}  // namespace moxie::cuda::sm90
