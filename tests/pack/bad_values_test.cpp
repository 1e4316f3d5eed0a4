// SPDX-License-Identifier: Apache-2.0
// Stored values that no reader may use are refused before anything is computed, by name and place.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "moxie/pack.hpp"
#include "support/packed_model.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::Bytes;
using test::code_of;
using test::packed_blob;
using test::plan_of;
using test::poke;
using test::refusal_of;
using test::set_scalar;
using test::tiny_options;
using test::TinyModel;
using testing::Values;

const std::string kExpert1 = "layers.0.ffn.experts.1.";

std::string scale_name(BlockFormat format, const char* projection) {
  return kExpert1 + projection + (format == BlockFormat::mxfp4 ? ".scale" : ".weight_scale");
}

// One bad scale byte at a row and group of a tensor of expert 1, on two ranks. 96 = 2 * 48 rows or
// columns in NVFP4 and 64 + 32 in MXFP4.
struct BadScale {
  BlockFormat format;
  std::uint8_t code;
  const char* projection;
  std::uint64_t row;
  std::uint64_t group;
  unsigned rank;  // whose slice it is in
};

class PackBadScale : public testing::TestWithParam<BadScale> {};

// pit8, pit7: named by tensor, row and group; the other rank does not read it.
TEST_P(PackBadScale, IsRefusedOnTheRankThatReadsItAndOnNoOther) {
  const BadScale& bad = GetParam();
  const bool mxfp4 = bad.format == BlockFormat::mxfp4;
  const bool down = std::string(bad.projection) == "w2";
  const std::uint64_t groups = (down ? 96 : 64) / (mxfp4 ? 32 : 16);
  const std::string name = scale_name(bad.format, bad.projection);
  test::TinyOptions options = tiny_options(bad.format);
  options.edits = {poke(name, bad.row * groups + bad.group, bad.code)};
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 2, 1, 128);

  const Error error = refusal_of([&] { packed_blob(*model, plan, bad.rank, 1); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(code_of(error), "MOXIE-K003");
  const Finding& finding = error.findings().front();
  EXPECT_EQ(finding.where.tensor, name);
  EXPECT_EQ(finding.where.layer, 0);
  EXPECT_EQ(finding.where.expert, 1U);
  EXPECT_NE(finding.where.file.find("model.safetensors"), std::string::npos);
  const std::string place =
      "at row " + std::to_string(bad.row) + ", group " + std::to_string(bad.group);
  EXPECT_NE(finding.message.find(place), std::string::npos) << finding.message;
  const bool is_nan = mxfp4 || (bad.code & 0x7F) == 0x7F;
  EXPECT_NE(finding.message.find(is_nan ? "NaN" : "sign"), std::string::npos) << finding.message;

  EXPECT_NO_THROW(packed_blob(*model, plan, 1 - bad.rank, 1)) << "not in this rank's slice";
  EXPECT_NO_THROW(packed_blob(*model, plan, bad.rank, 0)) << "not this expert's";
}

constexpr auto kMx = BlockFormat::mxfp4;
constexpr auto kNv = BlockFormat::nvfp4;
INSTANTIATE_TEST_SUITE_P(FirstMiddleLast, PackBadScale,
                         Values(BadScale{kMx, 0xFF, "w1", 0, 0, 0},     // first byte
                                BadScale{kMx, 0xFF, "w1", 63, 1, 0},    // last of rank 0
                                BadScale{kMx, 0xFF, "w3", 64, 0, 1},    // first of rank 1
                                BadScale{kMx, 0xFF, "w3", 95, 1, 1},    // last byte
                                BadScale{kMx, 0xFF, "w2", 0, 0, 0},     // first column
                                BadScale{kMx, 0xFF, "w2", 31, 1, 0},    // last column of rank 0
                                BadScale{kMx, 0xFF, "w2", 63, 2, 1},    // last byte
                                BadScale{kNv, 0x7F, "w1", 0, 0, 0},     // NaN
                                BadScale{kNv, 0xFF, "w1", 47, 3, 0},    // NaN with a sign
                                BadScale{kNv, 0x80, "w1", 48, 0, 1},    // -0
                                BadScale{kNv, 0xB8, "w3", 70, 2, 1},    // -1
                                BadScale{kNv, 0xFE, "w3", 95, 3, 1},    // -448
                                BadScale{kNv, 0x7F, "w2", 0, 3, 1},     // first column of rank 1
                                BadScale{kNv, 0x81, "w2", 32, 2, 0},    // last column of rank 0
                                BadScale{kNv, 0x7F, "w2", 63, 5, 1}));  // last byte

// 0xFE and 0x7E are the largest legal codes; 0x00 is a legal scale in both formats.
TEST(PackScales, LargestAndSmallestLegalCodesPass) {
  for (const BlockFormat format : test::kFormats) {
    test::TinyOptions options = tiny_options(format);
    const std::uint8_t largest = format == BlockFormat::mxfp4 ? 0xFE : 0x7E;
    options.edits = {poke(scale_name(format, "w1"), 0, largest),
                     poke(scale_name(format, "w2"), 0, 0x00)};
    const TinyModel model(options);
    EXPECT_NO_THROW(packed_blob(*model, plan_of(*model, 2), 0, 1));
  }
}

// Blocks of 256 bytes are searched by their maximum; a bad code must show at every position.
TEST(PackScales, BadCodeIsFoundAtEveryPositionOfALongSlice) {
  const TinyModel model(BlockFormat::mxfp4, 544, 32);  // 544 scale bytes: two blocks and a rest
  const TensorInfo& scales = *model.layer().experts[1].gate.block_scales.tensor;
  const auto file = model->checkpoint.files()[scales.file].path;
  const ShardPlan plan = plan_of(*model, 1);
  for (const std::uint64_t at : {0, 1, 254, 255, 256, 257, 511, 512, 543}) {
    const std::string intact = test::read_bytes(file);
    std::string bytes = intact;
    bytes[scales.offset + at] = '\xFF';
    model.folder().write("model/model.safetensors", bytes);
    const Error error =
        refusal_of([&] { packed_blob(read_model(open_checkpoint(model / "model")), plan, 0, 1); });
    EXPECT_NE(error.findings().front().message.find("at row " + std::to_string(at) + ", group 0"),
              std::string::npos)
        << error.what();
    model.folder().write("model/model.safetensors", intact);
  }
}

class PackBadScalar : public testing::TestWithParam<float> {};

// pit13: a consumed scalar that is not finite and greater than zero is refused.
TEST_P(PackBadScalar, GlobalScaleIsRefusedByTensorLayerAndExpert) {
  for (const char* projection : {"w1", "w3", "w2"}) {
    const std::string name = kExpert1 + projection + ".weight_scale_2";
    test::TinyOptions options = tiny_options(BlockFormat::nvfp4);
    options.edits = {set_scalar(name, GetParam())};
    const TinyModel model(options);
    const ShardPlan plan = plan_of(*model, 2);
    for (const unsigned rank : {0U, 1U}) {
      const Error error = refusal_of([&] { packed_blob(*model, plan, rank, 1); });
      EXPECT_EQ(error.code(), ErrorCode::input);
      EXPECT_EQ(code_of(error), "MOXIE-M007");
      EXPECT_EQ(error.findings().front().where.tensor, name);
      EXPECT_EQ(error.findings().front().where.layer, 0);
      EXPECT_EQ(error.findings().front().where.expert, 1U);
      EXPECT_NO_THROW(packed_blob(*model, plan, rank, 2));
    }
  }
}

// an activation scale counts only where the planned activation format consumes it.
TEST_P(PackBadScalar, ActivationScaleIsRefusedOnlyWhereItIsConsumed) {
  const std::string name = kExpert1 + "w2.input_scale";
  test::TinyOptions options = tiny_options(BlockFormat::nvfp4);
  options.edits = {set_scalar(name, GetParam())};
  const TinyModel model(options);
  ShardPlan plan = plan_of(*model, 2);
  const Bytes blob = packed_blob(*model, plan, 0, 1);
  const auto stored = test::bytes_of(blob, *plan.layout.find(Segment::down_act_dequant_mul));
  const TensorInfo& source = *model.layer().experts[1].down.act_dequant_mul.tensor;
  EXPECT_TRUE(test::same_bytes(model->checkpoint.bytes(source), stored)) << "kept as it is";
  plan.act_format = ActFormat::nvfp4;
  const Error error = refusal_of([&] { packed_blob(*model, plan, 0, 1); });
  EXPECT_EQ(code_of(error), "MOXIE-M007");
  EXPECT_EQ(error.findings().front().where.tensor, name);
}

INSTANTIATE_TEST_SUITE_P(Unusable, PackBadScalar,
                         Values(0.0F, -0.0F, -0.5F, std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()));

// C17, pit13, R-10: absent is not zero.
TEST(PackScalars, AbsentActivationScaleIsRefusedByLayerProjectionAndExpert) {
  test::TinyOptions options = tiny_options(BlockFormat::nvfp4);
  options.edits = {test::leave_out("experts.2.w2.input_scale")};
  const TinyModel model(options);
  ShardPlan plan = plan_of(*model, 2);
  plan.act_format = ActFormat::nvfp4;
  EXPECT_NO_THROW(packed_blob(*model, plan, 0, 0));
  EXPECT_NO_THROW(packed_blob(*model, plan, 0, 1));
  const Error error = refusal_of([&] { packed_blob(*model, plan, 0, 2); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(code_of(error), "MOXIE-M006");
  const Finding& finding = error.findings().front();
  EXPECT_EQ(finding.where.layer, 0);
  EXPECT_EQ(finding.where.expert, 2U);
  EXPECT_TRUE(finding.message.starts_with("down has no activation scale")) << finding.message;
}

// C17: it never becomes 0, 1/0 or a neighbour's value.
TEST(PackScalars, AbsentActivationScaleIsNaNInTheBlobWhenNothingConsumesIt) {
  test::TinyOptions options = tiny_options(BlockFormat::nvfp4);
  options.edits = {test::leave_out("experts.2.w2.input_scale")};
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 2);
  for (const unsigned rank : {0U, 1U}) {
    const Bytes blob = packed_blob(*model, plan, rank, 2, std::byte{0x5A});
    const auto stored = test::bytes_of(blob, *plan.layout.find(Segment::down_act_dequant_mul));
    std::uint32_t bits = 0;
    std::memcpy(&bits, stored.data(), sizeof bits);
    EXPECT_EQ(bits, 0x7FC00000U);
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(bits)));
  }
}

// C17: a missing global scale is always an error, whatever the activations are.
TEST(PackScalars, AbsentGlobalScaleStopsTheLayer) {
  test::TinyOptions options = tiny_options(BlockFormat::nvfp4);
  options.edits = {test::leave_out("experts.1.w3.weight_scale_2")};
  const TinyModel model(options);
  const ShardPlan plan = plan_of(*model, 2);
  const Error error = refusal_of([&] { pack(*model, plan, 0, 0); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(code_of(error), "MOXIE-M004");
  EXPECT_NE(std::string(error.what()).find("experts.1.w3.weight_scale_2"), std::string::npos);
  EXPECT_EQ(error.findings().front().where.expert, 1U);
}

// The same for a layer that did not come from read_model.
TEST(PackScalars, AbsentGlobalScaleIsRefusedByProjectionToo) {
  const TinyModel model(BlockFormat::nvfp4);
  const ShardPlan plan = plan_of(*model, 2);
  LayerExperts layer = model.layer();
  layer.experts[1].gate.dequant_mul = {};
  Bytes blob(plan.layout.stride);
  const Error error = refusal_of([&] { pack_expert(*model, plan, plan.ranks[0], layer, 1, blob); });
  EXPECT_EQ(code_of(error), "MOXIE-M006");
  EXPECT_EQ(error.findings().front().message, "gate has no global scale");
  EXPECT_EQ(error.findings().front().where.expert, 1U);
}

TEST(PackScalars, LayerInAnotherFormatThanThePlanIsRefused) {
  const TinyModel mxfp4(BlockFormat::mxfp4);
  const TinyModel nvfp4(BlockFormat::nvfp4);
  const ShardPlan plan = plan_of(*nvfp4, 2);
  const Error error = refusal_of([&] { packed_blob(*mxfp4, plan, 0, 0); });
  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_EQ(code_of(error), "MOXIE-M009");
}

}  // namespace
}  // namespace moxie
