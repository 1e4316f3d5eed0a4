// SPDX-License-Identifier: Apache-2.0
// Reciprocal scalars: blobs hold what multiplies, logical files hold what the source stores.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>

#include "support/packed_model.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;
using test::Bytes;
using test::code_of;
using test::packed_blob;
using test::plan_of;
using test::refusal_of;
using test::set_scalar;
using test::TinyDialect;
using test::TinyModel;
using test::TinyOptions;

const std::string kExpert1 = "model.layers.0.mlp.experts.1.";
constexpr FileLayout kLayouts[] = {FileLayout::logical, FileLayout::kernel};

TinyOptions inverse_options(std::vector<test::TinyEdit> edits = {}) {
  return {.dialect = TinyDialect::compressed_nvfp4, .layers = 1, .edits = std::move(edits)};
}

float float_at(std::span<const std::byte> bytes) {
  float value = 0;
  EXPECT_EQ(bytes.size(), sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// Every scalar replaced by its reciprocal.
bool invert_scalars(test::TinyTensor& tensor) {
  if (tensor.dtype != DType::f32) return true;
  float value = 0;
  std::memcpy(&value, tensor.bytes.data(), sizeof value);
  value = 1.0F / value;
  std::memcpy(tensor.bytes.data(), &value, sizeof value);
  return true;
}

TEST(PackReciprocal, BlobsHoldTheMultipliersOnEveryRank) {
  const TinyModel model(inverse_options());
  const ShardPlan plan = plan_of(*model, 3);
  std::size_t scalars = 0;
  for (unsigned rank = 0; rank < 3; ++rank) {
    for (std::uint64_t expert = 0; expert < 3; ++expert) {
      const Bytes blob = packed_blob(*model, plan, rank, expert);
      for (const PackedSegment& segment : plan.layout.segments) {
        if (segment.segment < Segment::gate_dequant_mul) continue;
        const TensorInfo& source =
            *test::source_of_segment(model.layer().experts[expert], segment.segment);
        // Division of doubles that hold floats, rounded to float, is the division of floats.
        const double stored = float_at(model->checkpoint.bytes(source));
        EXPECT_EQ(float_at(test::bytes_of(blob, segment)), static_cast<float>(1.0 / stored))
            << source.name;
        ++scalars;
      }
    }
  }
  EXPECT_EQ(scalars, 3U * 3 * 6);
}

TEST(PackReciprocal, R09_BothDialectsOfOneModelAreOneBlob) {
  const TinyModel inverse(inverse_options());
  const TinyModel direct(
      TinyOptions{.dialect = TinyDialect::modelopt, .layers = 1, .edits = {invert_scalars}});
  ASSERT_EQ(inverse->dialect, "compressed-tensors");
  ASSERT_EQ(direct->dialect, "modelopt");
  for (const unsigned tp : {1U, 3U}) {
    const ShardPlan plan = plan_of(*inverse, tp);
    for (unsigned rank = 0; rank < tp; ++rank) {
      EXPECT_TRUE(test::same_bytes(pack(*direct, plan, rank, 0).blobs,
                                   pack(*inverse, plan, rank, 0).blobs));
    }
  }
}

TEST(PackReciprocal, LogicalFilesHoldTheStoredBytesNamesAndShapes) {
  const TinyModel model(inverse_options());
  const ShardPlan plan = plan_of(*model, 2);
  pack_to_folder(*model, plan, {.out = model / "packed", .layout = FileLayout::logical});
  for (const char* rank : {"rank-000", "rank-001"}) {
    const Checkpoint packed = open_checkpoint(model / "packed" / rank);
    EXPECT_EQ(packed.tensors().size(), model->checkpoint.tensors().size());
    std::size_t scalars = 0;
    for (const TensorInfo& tensor : packed.tensors()) {
      const TensorInfo* source = model->checkpoint.find(tensor.name);
      ASSERT_NE(source, nullptr) << tensor.name;
      EXPECT_EQ(tensor.dtype, source->dtype);
      if (tensor.dtype != DType::f32) continue;
      ++scalars;
      EXPECT_EQ(tensor.shape, source->shape);
      EXPECT_TRUE(test::same_bytes(model->checkpoint.bytes(*source), packed.bytes(tensor)));
    }
    EXPECT_EQ(scalars, 3U * 6);
  }
}

// A second pass over what the first wrote inverts nothing again.
TEST(PackReciprocal, R09_PackingAPackedModelAgainChangesNothing) {
  const TinyModel model(inverse_options());
  const ShardPlan plan = plan_of(*model, 1);
  pack_to_folder(*model, plan, {.out = model / "first"});
  const auto again = model / "again";
  fs::create_directory(again);
  fs::copy(model / "first" / "config.json", again / "config.json");
  fs::copy(model / "first" / "rank-000" / "model-00000.safetensors", again / "model.safetensors");
  const MoeModel second = read_model(open_checkpoint(again));
  EXPECT_TRUE(second.findings.empty());
  EXPECT_TRUE(test::same_bytes(pack(*model, plan, 0, 0).blobs, pack(second, plan, 0, 0).blobs));
  pack_to_folder(second, plan, {.out = model / "second"});
  EXPECT_EQ(test::read_bytes(model / "first" / "rank-000" / "model-00000.safetensors"),
            test::read_bytes(model / "second" / "rank-000" / "model-00000.safetensors"));
}

// pit13: also 1/0, 1/Inf and reciprocals beyond the largest float.
TEST(PackReciprocal, GlobalsWithoutAUsableReciprocalAreRefusedByName) {
  for (const float value : {0.0F, -0.0F, -0.5F, INFINITY, -INFINITY,
                            std::numeric_limits<float>::quiet_NaN(), 0x1p-130F}) {
    const std::string name = kExpert1 + "gate_proj.weight_global_scale";
    const TinyModel model(inverse_options({set_scalar(name, value)}));
    const ShardPlan plan = plan_of(*model, 2);
    const Error error = refusal_of([&] { packed_blob(*model, plan, 1, 1); });
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_EQ(code_of(error), "MOXIE-M007") << value;
    EXPECT_EQ(error.findings().front().where.tensor, name);
    EXPECT_EQ(error.findings().front().where.expert, 1U);
    EXPECT_NO_THROW(packed_blob(*model, plan, 1, 2));
  }
}

// what nothing consumes is carried, absent or unusable, and loads as it was packed.
TEST(PackReciprocal, UnconsumedActivationScalesAreCarriedInBothLayouts) {
  const std::string name = kExpert1 + "down_proj.input_global_scale";
  std::vector<test::TinyEdit> edits = {test::leave_out(name)};
  for (const float value : {0.0F, -3.0F, INFINITY, std::numeric_limits<float>::quiet_NaN()})
    edits.push_back(set_scalar(name, value));
  for (const test::TinyEdit& edit : edits) {
    for (const FileLayout layout : kLayouts) {
      const TinyModel model(inverse_options({edit}));
      ShardPlan plan = plan_of(*model, 2);
      const auto path = model / name_of(layout);
      pack_to_folder(*model, plan, {.out = path, .layout = layout});
      EXPECT_TRUE(test::same_bytes(pack(*model, plan, 1, 0).blobs,
                                   load_packed(open_packed_folder(path), 1, 0).blobs));
      plan.act_format = ActFormat::nvfp4;
      const std::string code = code_of(refusal_of([&] { packed_blob(*model, plan, 0, 1); }));
      EXPECT_EQ(code, &edit == &edits.front() ? "MOXIE-M006" : "MOXIE-M007");
    }
  }
}

TEST(PackReciprocal, ALoadedLogicalGlobalIsRefusedWhenItsReciprocalIsNoNumber) {
  const TinyModel model(inverse_options());
  const ShardPlan plan = plan_of(*model, 1);
  pack_to_folder(*model, plan, {.out = model / "packed"});
  const auto file = model / "packed" / "rank-000" / "model-00000.safetensors";
  const std::string name = kExpert1 + "up_proj.weight_global_scale";
  const std::string intact = test::read_bytes(file);
  const std::uint64_t at = open_checkpoint(file).find(name)->offset;
  for (const float value : {0.0F, -1.0F, INFINITY, 0x1p-130F}) {
    std::string bytes = intact;
    std::memcpy(bytes.data() + at, &value, sizeof value);
    model.folder().write("packed/rank-000/model-00000.safetensors", bytes);
    const Error error =
        refusal_of([&] { load_packed(open_packed_folder(model / "packed"), 0, 0); });
    EXPECT_EQ(code_of(error), "MOXIE-M007") << value;
    EXPECT_EQ(error.findings().front().where.tensor, name);
  }
}

}  // namespace
}  // namespace moxie
