// SPDX-License-Identifier: Apache-2.0
// Experts in GGUF's blocks and the same experts in safetensors are one packed blob, wherever the
// ranks cut.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "formats/nibble_order.hpp"
#include "support/gguf_model.hpp"
#include "support/packed_model.hpp"

namespace moxie {
namespace {

using test::Bytes;
using test::packed_blob;

struct Pair {
  MoeModel gguf;
  MoeModel other;
};

Pair models_of(const test::TempFolder& folder, BlockFormat format, std::uint64_t hidden,
               std::uint64_t inter, std::uint64_t seed) {
  SynthOptions options{.config = test::gguf_source_config(hidden, inter),
                       .format = format,
                       .dialect = DialectKind::gguf,
                       .seed = seed};
  MoeModel gguf = test::synth_model(folder.path() / "gguf", options);
  options.dialect = format == BlockFormat::mxfp4 ? DialectKind::quark : DialectKind::modelopt;
  return {std::move(gguf), test::synth_model(folder.path() / "other", options)};
}

// pit3. With 32-wide parts of 96 a rank's codes of down begin at an MXFP4 block, with 48-wide ones
// of 192 inside an NVFP4 super-block.
TEST(PackGguf, BlobsAreThoseOfTheSameWeightsInSafetensors) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const struct {
    BlockFormat format;
    std::uint64_t hidden;
    std::uint64_t inter;
  } cases[] = {{BlockFormat::mxfp4, 64, 96},   {BlockFormat::mxfp4, 32, 160},
               {BlockFormat::nvfp4, 64, 192},  {BlockFormat::nvfp4, 128, 64},
               {BlockFormat::nvfp4, 192, 128}, {BlockFormat::mxfp4, 96, 64}};
  for (const auto& it : cases) {
    const test::TempFolder folder;
    const Pair pair = models_of(folder, it.format, it.hidden, it.inter, seed);
    ASSERT_EQ(pair.gguf.dialect, "gguf");
    ASSERT_EQ(pair.gguf.format, it.format);
    for (unsigned tp = 1; tp <= 4; ++tp) {
      const ShardPlan plan = test::plan_of(pair.gguf, tp, 1, 32);
      SCOPED_TRACE(test::describe(plan));
      for (unsigned rank = 0; rank < tp; ++rank) {
        for (std::uint64_t expert = 0; expert < 3; ++expert) {
          const Bytes expected = packed_blob(pair.other, plan, rank, expert, std::byte{0xAA});
          const Bytes got = packed_blob(pair.gguf, plan, rank, expert, std::byte{0x55});
          EXPECT_TRUE(test::same_bytes(expected, got)) << "rank " << rank << " expert " << expert;
        }
      }
    }
  }
}

// pit3: a reader that takes GGUF's bytes for pairs of neighbours makes other blobs.
TEST(PackGguf, BytesTakenAsTheyAreStoredAreNotTheCanonicalOnes) {
  for (const BlockFormat format : test::kFormats) {
    const test::TempFolder folder;
    const Pair pair = models_of(folder, format, 64, 192, 5);
    const std::uint64_t scales = format == BlockFormat::mxfp4 ? 1 : 4;
    const std::uint64_t code_bytes = format == BlockFormat::mxfp4 ? 16 : 32;
    const std::uint64_t group = format == BlockFormat::mxfp4 ? 32 : 16;
    const RowsView& codes = pair.gguf.require_layer(0).experts[1].up.codes;
    const auto stored = pair.gguf.checkpoint.bytes(*codes.tensor).subspan(codes.offset);
    std::vector<std::byte> row(code_bytes);
    read_row(pair.gguf.checkpoint, codes, 0, 0, row);
    const auto swapped = stored.subspan(scales, code_bytes);
    EXPECT_FALSE(test::same_bytes(swapped, row)) << name_of(format);
    // What a byte holds by the published layout, element by element.
    for (std::uint64_t k = 0; k < 2 * code_bytes; ++k) {
      const std::uint64_t in_group = k % group;
      const auto byte =
          std::to_integer<unsigned>(swapped[k / group * group / 2 + in_group % (group / 2)]);
      const unsigned code = in_group < group / 2 ? byte & 15U : byte >> 4U;
      const auto pair_byte = std::to_integer<unsigned>(row[k / 2]);
      EXPECT_EQ(k % 2 == 0 ? pair_byte & 15U : pair_byte >> 4U, code) << k;
    }
  }
}

TEST(PackGguf, EveryExpertHasItsOwnMultiplier) {
  const test::TempFolder folder;
  const Pair pair = models_of(folder, BlockFormat::nvfp4, 64, 64, 5);
  for (std::uint64_t expert = 0; expert < 3; ++expert) {
    for (const ProjectionKind kind : {ProjectionKind::gate, ProjectionKind::down}) {
      const auto multiplier = [&](const MoeModel& model) {
        return read_scalar(model.checkpoint,
                           model.require_layer(0).experts[expert][kind].dequant_mul);
      };
      EXPECT_EQ(multiplier(pair.gguf), multiplier(pair.other));
      if (expert == 0) continue;
      EXPECT_NE(multiplier(pair.gguf),
                read_scalar(pair.gguf.checkpoint,
                            pair.gguf.require_layer(0).experts[0][kind].dequant_mul));
    }
  }
}

}  // namespace
}  // namespace moxie
