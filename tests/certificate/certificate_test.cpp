// SPDX-License-Identifier: Apache-2.0
// Certificates: counts against a slow search, the document and back, and what may be asked of them.
#include "moxie/certificate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "certificate/cast_model.hpp"
#include "quantize/fp4_values.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

using test::cast_options;
using test::TinyDialect;
using test::TinyModel;
using test::TinyOptions;
using test::TinyTensor;

TinyOptions random_mxfp4(unsigned seed) {
  TinyOptions options = test::tiny_options(BlockFormat::mxfp4);
  options.edits.push_back([seed](TinyTensor& tensor) {
    if (!tensor.name.ends_with(".scale")) return true;
    std::mt19937 random(seed + static_cast<unsigned>(std::hash<std::string>{}(tensor.name)));
    std::normal_distribution<double> normal(120, 9);
    for (char& byte : tensor.bytes)
      byte = static_cast<char>(static_cast<int>(std::clamp(normal(random), 0.0, 254.0)));
    return true;
  });
  return options;
}

// The least number of groups outside, over all factors; `scales` of one granule.
std::uint64_t least_outside(const std::vector<int>& scales, ExactWindow window) {
  const ExponentRange range = exponents_of(window);
  std::uint64_t least = scales.size();
  for (int factor = -300; factor <= 300; ++factor) {
    std::uint64_t outside = 0;
    for (const int scale : scales) {
      const int exponent = scale - 127 + factor;
      outside += scale != 0 && (exponent < range.least || exponent > range.most) ? 1 : 0;
    }
    least = std::min(least, outside);
  }
  return least;
}

TEST(Certificate, CountsGroupsOutsideTheWindowsOfEveryTensorAndOfTheLayer) {
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  const TinyModel model(random_mxfp4(seed));
  const Certificate certificate = certify(*model);
  ASSERT_EQ(certificate.layers.size(), 1U);
  const LayerCertificate& layer = certificate.layers[0];
  WindowCounts expected{};
  std::uint64_t groups = 0;
  std::uint64_t zeros = 0;
  std::size_t lossy = 0;
  for (std::uint64_t expert = 0; expert < 3; ++expert) {
    for (const ProjectionKind kind : projections_of(model->config)) {
      const RowsView& view = model.layer().experts[expert][kind].block_scales;
      std::vector<int> all;
      WindowCounts outside{};
      for (std::uint64_t row = 0; row < view.rows; ++row) {
        std::vector<std::byte> bytes(view.row_bytes);
        read_row(model->checkpoint, view, row, 0, bytes);
        std::vector<int> of_row;
        for (const std::byte byte : bytes) of_row.push_back(std::to_integer<int>(byte));
        for (std::size_t window = 0; window < kExactWindows; ++window)
          outside[0][window] += least_outside(of_row, static_cast<ExactWindow>(window));
        all.insert(all.end(), of_row.begin(), of_row.end());
      }
      for (std::size_t window = 0; window < kExactWindows; ++window) {
        // At most 96 rows and 3 groups: one block is the whole matrix.
        outside[1][window] = outside[2][window] =
            least_outside(all, static_cast<ExactWindow>(window));
      }
      for (const int scale : all) ++(scale == 0 ? zeros : groups);
      bool is_lossy = false;
      for (std::size_t granule = 0; granule < kGranules; ++granule) {
        for (std::size_t window = 0; window < kExactWindows; ++window) {
          expected[granule][window] += outside[granule][window];
          is_lossy = is_lossy || outside[granule][window] > 0;
        }
      }
      if (!is_lossy) continue;
      ASSERT_LT(lossy, layer.tensors.size());
      EXPECT_EQ(layer.tensors[lossy].expert, expert);
      EXPECT_EQ(layer.tensors[lossy].projection, kind);
      EXPECT_EQ(layer.tensors[lossy].outside, outside);
      ++lossy;
    }
  }
  EXPECT_EQ(layer.outside, expected);
  EXPECT_EQ(layer.groups, groups);
  EXPECT_EQ(layer.zero_groups, zeros);
  EXPECT_EQ(layer.tensors.size(), lossy);
  EXPECT_GT(expected[2][0], 0U) << "the scales spread wider than the narrowest window";
}

TEST(Certificate, AllowsTheCoarsestGranuleUnderWhichNothingIsOutside) {
  TinyOptions options = test::tiny_options(BlockFormat::mxfp4);
  // Rows of one exponent each, 20 apart: a factor per row is enough for E4M3, one for all is not.
  options.edits.push_back([](TinyTensor& tensor) {
    if (!tensor.name.ends_with(".scale")) return true;
    const std::size_t groups = tensor.shape[1];
    for (std::size_t i = 0; i < tensor.bytes.size(); ++i)
      tensor.bytes[i] = static_cast<char>(110 + 20 * (i / groups % 2));
    return true;
  });
  const TinyModel model(options);
  const LayerCertificate layer = certify(*model).layers.at(0);
  EXPECT_EQ(layer.granule_for(ExactWindow::e4m3_normal), Granule::row);
  EXPECT_EQ(layer.granule_for(ExactWindow::e4m3_exact), Granule::row);
  EXPECT_EQ(layer.granule_for(ExactWindow::e5m2_normal), Granule::whole);
  EXPECT_EQ(layer.granule_for(ExactWindow::f16_exact), Granule::whole);
  const WorstGroup& worst = layer.worst[2][0];
  EXPECT_EQ(worst.distance, 21 - 12);
  EXPECT_EQ(worst.expert, 0U);
}

TEST(Certificate, NamesTheExpertOfTheWorstGroup) {
  TinyOptions options = test::tiny_options(BlockFormat::mxfp4);
  options.edits.push_back([](TinyTensor& tensor) {
    if (!tensor.name.ends_with(".scale")) return true;
    std::fill(tensor.bytes.begin(), tensor.bytes.end(), static_cast<char>(120));
    if (tensor.name.ends_with("experts.2.w3.scale"))
      tensor.bytes[2 * 5 + 1] = static_cast<char>(80);
    return true;
  });
  const TinyModel model(options);
  const LayerCertificate layer = certify(*model).layers.at(0);
  for (std::size_t granule = 0; granule < kGranules; ++granule) {
    const WorstGroup& worst =
        layer.worst[granule][static_cast<std::size_t>(ExactWindow::f16_exact)];
    EXPECT_EQ(worst.expert, 2U);
    EXPECT_EQ(worst.projection, ProjectionKind::up);
    EXPECT_EQ(worst.distance, 41 - 37);
    EXPECT_EQ(worst.row, 5U);
    // In its row there are two groups, and the upper one is kept.
    EXPECT_EQ(worst.group, 1U);
  }
  EXPECT_EQ(layer.granule_for(ExactWindow::f16_exact), std::nullopt);
}

TEST(Certificate, IsTheSameAfterItsDocument) {
  const unsigned seed = test::fresh_seed();
  SCOPED_TRACE(seed);
  for (const TinyOptions& options :
       {random_mxfp4(seed), cast_options(seed), test::tiny_options(BlockFormat::nvfp4)}) {
    const TinyModel model(options);
    const Json document = to_json(certify(*model));
    EXPECT_EQ(to_json(certificate_from_json(document, "test")).dump(), document.dump());
    write_certificate(model / "c.json", certify(*model));
    EXPECT_EQ(to_json(read_certificate(model / "c.json")).dump(), document.dump());
  }
}

TEST(Certificate, ADocumentWithoutOneOfItsFieldsIsRefused) {
  const TinyModel model(cast_options(1));
  const Json document = to_json(certify(*model));
  const std::string text = document.dump_compact();
  for (const JsonMember& member : document.members()) {
    Json less = Json::object();
    for (const JsonMember& kept : document.members()) {
      if (kept.key != member.key) less.set(kept.key, kept.value);
    }
    test::expect_refusal([&] { certificate_from_json(less, "c.json"); }, ErrorCode::input,
                         "MOXIE-D001");
  }
  const Json& layer = document.find("layers")->elements()[0];
  for (const JsonMember& member : layer.members()) {
    if (member.key == "allows" || member.key == "mxfp4_cast") continue;  // follow from the rest
    Json less = Json::object();
    for (const JsonMember& kept : layer.members()) {
      if (kept.key != member.key) less.set(kept.key, kept.value);
    }
    Json layers = Json::array();
    layers.push_back(std::move(less));
    Json whole = document;
    whole.set("layers", std::move(layers));
    test::expect_refusal([&] { certificate_from_json(whole, "c.json"); }, ErrorCode::input,
                         "MOXIE-D001");
  }
}

TEST(Certificate, ADocumentThatContradictsItselfIsRefused) {
  const TinyModel model(cast_options(1));
  const std::string text = to_json(certify(*model)).dump_compact();
  const auto edited = [&](const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    std::string changed = text;
    return Json::parse(changed.replace(at, from.size(), to), "c.json");
  };
  const std::string layer = text.substr(text.find("[{\"layer\"") + 1);
  const std::string one = layer.substr(0, layer.rfind("]"));
  for (const Json& document :
       {edited("\"mxfp4_cast\":true", "\"mxfp4_cast\":false"),
        edited("\"allows\":{\"e4m3_normal\":", "\"allows\":{\"e4m3_normal\":\"galaxy\",\"x\":"),
        edited("\"not_casts\":[]", "\"not_casts\":[1]"), edited(one, one + "," + one)}) {
    test::expect_refusal([&] { certificate_from_json(document, "c.json"); }, ErrorCode::input,
                         "MOXIE-D001");
  }
}

TEST(Certificate, AScaleOfZeroClosesItsBlockAndIsNoCast) {
  TinyOptions options = cast_options(3);
  const std::string name = "model.layers.0.mlp.experts.0.up_proj.weight_scale";
  options.edits.push_back(test::byte_of(name, 0, 0x00));
  options.edits.push_back(test::byte_of(name, 1, 0x00));
  const auto of = [](const TinyOptions& of_model) {
    return certify(*TinyModel(of_model)).layers.at(0);
  };
  EXPECT_LE(of(options).blocks_not_closed, of(cast_options(3)).blocks_not_closed);
  EXPECT_EQ(of(options).not_casts, std::vector<std::uint64_t>{0});
}

TEST(Certificate, OfAnotherModelIsRefused) {
  const TinyModel model(cast_options(1));
  const TinyModel other(test::tiny_options(BlockFormat::nvfp4, 64));
  test::expect_refusal([&] { require_certificate_of(certify(*other), *model); },
                       ErrorCode::unsupported, "MOXIE-P013");
  EXPECT_NO_THROW(require_certificate_of(certify(*model), *model));
}

TEST(Certificate, AScaleThatIsNoNumberIsRefusedByPlace) {
  TinyOptions options = test::tiny_options(BlockFormat::mxfp4);
  options.edits.push_back(test::byte_of("layers.0.ffn.experts.1.w2.scale", 3, 0xFF));
  const TinyModel model(options);
  test::expect_refusal([&] { certify(*model); }, ErrorCode::input, "MOXIE-K003");
}

TEST(Certificate, TheChecksumIsOfTheScales) {
  const TinyModel one(cast_options(7));
  TinyOptions changed = cast_options(7);
  changed.edits.push_back(
      test::byte_of("model.layers.0.mlp.experts.2.up_proj.weight_scale", 0, 0x30));
  changed.edits.push_back(
      test::byte_of("model.layers.0.mlp.experts.2.up_proj.weight_scale", 1, 0x30));
  TinyOptions other_codes = cast_options(7);
  other_codes.edits.push_back(
      test::byte_of("model.layers.0.mlp.experts.2.up_proj.weight", 0, 0x11));
  const std::string checksum = certify(*one).layers.at(0).scales_checksum;
  EXPECT_NE(certify(*TinyModel(changed)).layers.at(0).scales_checksum, checksum);
  EXPECT_EQ(certify(*TinyModel(other_codes)).layers.at(0).scales_checksum, checksum);
}

TEST(StoredValues, AreFoundOneByOneWhereReadersWouldStopAtTheFirst) {
  TinyOptions options = cast_options(3);
  const std::string expert = "model.layers.0.mlp.experts.";
  options.edits.push_back(test::byte_of(expert + "0.up_proj.weight_scale", 5, 0x7F));
  options.edits.push_back(test::byte_of(expert + "2.down_proj.weight_scale", 0, 0x80));
  options.edits.push_back([&](TinyTensor& tensor) {
    if (tensor.name == expert + "1.gate_proj.weight_scale_2") tensor.bytes.assign(4, '\0');
    if (tensor.name == expert + "1.gate_proj.input_scale") tensor.bytes.assign(4, '\xFF');
    return true;
  });
  const TinyModel model(options);
  const std::vector<Finding> findings = check_stored_values(*model, 0);
  ASSERT_EQ(findings.size(), 4U);
  EXPECT_EQ(findings[0].code, "MOXIE-K003");
  EXPECT_EQ(findings[0].where.expert, 0U);
  EXPECT_EQ(findings[1].code, "MOXIE-M007");
  EXPECT_EQ(findings[1].severity, Severity::error);
  EXPECT_EQ(findings[2].code, "MOXIE-M007");
  EXPECT_EQ(findings[2].severity, Severity::warning) << "not every run consumes it";
  EXPECT_EQ(findings[3].code, "MOXIE-K003");
  EXPECT_EQ(findings[3].where.expert, 2U);
  EXPECT_TRUE(check_stored_values(*TinyModel(cast_options(3)), 0).empty());
}

}  // namespace
}  // namespace moxie
