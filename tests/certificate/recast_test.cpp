// SPDX-License-Identifier: Apache-2.0
// NVFP4 that is MXFP4 in other words: recognised by its scales, packed with the same values in
// fewer bytes, and refused where the bytes are others.
#include <gtest/gtest.h>

#include <cstring>

#include "certificate/cast_model.hpp"
#include "formats/block_format.hpp"
#include "moxie/certificate.hpp"
#include "moxie/verify.hpp"
#include "quantize/fp4_values.hpp"
#include "support/forced_kernels.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::cast_options;
using test::TinyDialect;
using test::TinyModel;
using test::TinyOptions;

TEST(Recast, APowerOfTwoIsTheSameScaleInBothFormats) {
  for (unsigned code = 0; code < 256; ++code) {
    const auto scale = static_cast<std::uint8_t>(code);
    const double value = code < 0x7F ? test::e4m3_by_definition(code) : -1;
    int exponent = 0;
    const bool power = value > 0 && std::frexp(value, &exponent) == 0.5;
    const std::uint8_t joined = e8m0_of_pair(scale, scale);
    ASSERT_EQ(joined != 0xFF, power) << code;
    if (power) {
      EXPECT_EQ(std::ldexp(1.0, joined - 127), value) << code;
    }
    for (unsigned other = 0; other < 256; ++other) {
      if (other != code) {
        ASSERT_EQ(e8m0_of_pair(scale, static_cast<std::uint8_t>(other)), 0xFF);
      }
    }
  }
}

double global_of(std::span<const std::byte> blob, const PackedLayout& layout, Segment segment) {
  float value = 0;
  std::memcpy(&value, blob.data() + layout.find(segment)->offset, sizeof value);
  return value;
}

// Every value of a rank's part, as it is packed.
std::vector<double> values_of(const ShardPlan& plan, std::span<const std::byte> blob) {
  std::vector<double> values;
  for (unsigned projection = 0; projection < 3; ++projection) {
    const auto segment = [&](Segment first) {
      return static_cast<Segment>(static_cast<unsigned>(first) + projection);
    };
    const PackedSegment& codes = *plan.layout.find(segment(Segment::gate));
    const PackedSegment& scales = *plan.layout.find(segment(Segment::gate_scale));
    const double global = global_of(blob, plan.layout, segment(Segment::gate_dequant_mul));
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(blob.data());
    for (std::uint64_t row = 0; row < codes.rows; ++row) {
      for (std::uint64_t k = 0; k < 2 * codes.row_bytes; ++k) {
        values.push_back(dequantise_element(bytes + codes.offset + row * codes.row_bytes,
                                            bytes + scales.offset + row * scales.row_bytes, k,
                                            plan.format, global));
      }
    }
  }
  return values;
}

TEST(Recast, PackedValuesAreTheSameInFewerBytes) {
  const test::PortableKernel forced;
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  for (const TinyDialect dialect :
       {TinyDialect::modelopt, TinyDialect::deepseek_v4_nvfp4, TinyDialect::compressed_nvfp4}) {
    const TinyModel model(cast_options(seed, dialect));
    ASSERT_EQ(recast_refusal(certify(*model), *model), "");
    const MoeModel recast = recast_model(*model);
    for (const unsigned tp : {1U, 2U, 3U}) {
      // Ranks cut by whole groups of 32 in both.
      const ShardPlan as_nvfp4 = test::plan_of(*model, tp);
      const ShardPlan as_mxfp4 = test::plan_of(recast, tp);
      if (as_nvfp4.ranks[0].slice.rows.count != as_mxfp4.ranks[0].slice.rows.count) continue;
      EXPECT_EQ(as_mxfp4.format, BlockFormat::mxfp4);
      EXPECT_LT(as_mxfp4.layout.expert_bytes, as_nvfp4.layout.expert_bytes);
      for (const RankPlan& rank : as_mxfp4.ranks) {
        for (std::uint64_t expert = 0; expert < 3; ++expert) {
          const auto before = test::packed_blob(*model, as_nvfp4, rank.rank, expert);
          const auto after = test::packed_blob(recast, as_mxfp4, rank.rank, expert);
          EXPECT_EQ(values_of(as_nvfp4, before), values_of(as_mxfp4, after));
        }
      }
    }
  }
}

TEST(Recast, V4FlashExpertsBecomeSixPercentSmaller) {
  MoeModel model{.checkpoint = TinyModel(BlockFormat::nvfp4)->checkpoint};
  model.config.hidden = 4096;
  model.config.inter = 2048;
  model.config.experts = 256;
  model.config.moe_layers = {0};
  model.format = BlockFormat::nvfp4;
  const auto before = test::plan_of(model, 1).layout.expert_bytes;
  const auto after = test::plan_of(recast_model(model), 1).layout.expert_bytes;
  EXPECT_EQ(before, 14'155'776U + 24);
  EXPECT_EQ(after, 13'369'344U + 24);
}

TEST(Recast, OneScaleThatIsNoPairKeepsTheExpertsNvfp4) {
  struct Case {
    std::size_t at;
    std::uint8_t value;
  };
  for (const Case& fault : {Case{7, 0x39}, Case{6, 0x00}, Case{0, 0x03}}) {
    TinyOptions options = cast_options(5);
    options.edits.push_back(
        test::byte_of("model.layers.0.mlp.experts.1.up_proj.weight_scale", fault.at, fault.value));
    const TinyModel model(options);
    const Certificate certificate = certify(*model);
    EXPECT_EQ(certificate.layers.at(0).not_casts, std::vector<std::uint64_t>{1});
    const std::string refusal = recast_refusal(certificate, *model);
    EXPECT_NE(refusal.find("expert 1"), std::string::npos) << refusal;
  }
}

TEST(Recast, ACertificateOfFewerLayersIsNotEnough) {
  TinyOptions options = cast_options(5);
  options.layers = 2;
  const TinyModel model(options);
  EXPECT_EQ(recast_refusal(certify(*model), *model), "");
  EXPECT_NE(recast_refusal(certify(*model, {.layers = {0}}), *model), "");
}

TEST(Recast, OtherBytesThanCertifiedAreRefusedWhenPacking) {
  TinyOptions options = cast_options(5);
  options.edits.push_back(
      test::byte_of("model.layers.0.mlp.experts.1.down_proj.weight_scale", 9, 0x39));
  const TinyModel model(options);
  const MoeModel recast = recast_model(*model);  // as if a certificate had said so
  const ShardPlan plan = test::plan_of(recast, 2);
  test::expect_refusal([&] { pack(recast, plan, 0, 0); }, ErrorCode::input, "MOXIE-K011");
}

TEST(Recast, ThePackedSetIsProvenRunsAndHasNoLogicalLayout) {
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  const TinyModel model(cast_options(seed));
  const MoeModel recast = recast_model(*model);
  const ShardPlan plan = test::plan_of(recast, 3);
  test::expect_refusal([&] { pack_to_folder(recast, plan, {.out = model / "logical"}); },
                       ErrorCode::unsupported, "MOXIE-K012");
  pack_to_folder(recast, plan, {.out = model / "packed", .layout = FileLayout::kernel});
  // Against the checkpoint as it is.
  const VerifyReport report = verify_packed(model / "packed", *model);
  EXPECT_TRUE(report.passed) << (report.findings.empty() ? "" : report.findings[0].message);
  const PackedFolder folder = open_packed_folder(model / "packed");
  EXPECT_TRUE(folder.plan.recast);
  EXPECT_EQ(to_json(folder.plan).dump(), to_json(plan).dump());
  for (const RankPlan& rank : plan.ranks) {
    EXPECT_EQ(load_packed(folder, rank.rank, 0).blobs, pack(recast, plan, rank.rank, 0).blobs);
  }
}

}  // namespace
}  // namespace moxie
