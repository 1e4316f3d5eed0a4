// SPDX-License-Identifier: Apache-2.0
// FP4 to FP4 and to FP8: what stays, what changes, and what is refused.
#include <cmath>
#include <limits>

#include "convert/convert_rig.hpp"
#include "formats/e4m3.hpp"
#include "model/dense_experts.hpp"

namespace moxie::test {
namespace {

Checkpoint synth_of(const TempFolder& folder, const std::string& name, BlockFormat format,
                    DialectKind dialect, Pattern pattern = Pattern::normal) {
  SynthOptions options = synth_options();
  options.format = format;
  options.dialect = dialect;
  options.pattern = pattern;
  synthesise(folder.path() / name, options);
  return open_checkpoint(folder.path() / name);
}

// Every value of every projection of two checkpoints, by a function of both.
template <class Compare>
void for_each_value(const Checkpoint& a, const Checkpoint& b, const Compare& compare) {
  const MoeModel first = read_model(a);
  const MoeModel second = read_model(b);
  ASSERT_EQ(first.layers.size(), second.layers.size());
  ASSERT_FALSE(first.layers.empty());
  for (const LayerExperts& layer : first.layers) {
    const LayerExperts& other = second.require_layer(layer.layer);
    for (std::uint64_t expert = 0; expert < layer.experts.size(); ++expert) {
      for (const ProjectionKind kind :
           {ProjectionKind::gate, ProjectionKind::up, ProjectionKind::down}) {
        const auto before = values_of(first, layer, expert, kind);
        const auto after = values_of(second, other, expert, kind);
        ASSERT_EQ(before.size(), after.size());
        for (std::size_t i = 0; i < before.size(); ++i) compare(before[i], after[i]);
      }
    }
  }
}

bool within_one_ulp(float a, float b) { return a == b || std::nextafter(a, b) == b; }

TEST(ConvertFp4, R09_DirectAndInverseDialectsGoThereAndBack) {
  const TempFolder folder;
  const Checkpoint direct = synth_of(folder, "in", BlockFormat::nvfp4, DialectKind::modelopt);
  quantize_checkpoint(direct, folder.path() / "inverse",
                      to(ConvertFormat::nvfp4, DialectKind::compressed_tensors));
  const Checkpoint inverse = open_checkpoint(folder.path() / "inverse");
  quantize_checkpoint(inverse, folder.path() / "again",
                      to(ConvertFormat::nvfp4, DialectKind::compressed_tensors));
  quantize_checkpoint(inverse, folder.path() / "back",
                      to(ConvertFormat::nvfp4, DialectKind::modelopt));
  const Checkpoint again = open_checkpoint(folder.path() / "again");
  const Checkpoint back = open_checkpoint(folder.path() / "back");
  const std::string stem = "model.layers.1.mlp.experts.2.down_proj.";
  const float global = scalar(direct, stem + "weight_scale_2");
  EXPECT_TRUE(within_one_ulp(scalar(inverse, stem + "weight_global_scale"), 1.0F / global));
  EXPECT_TRUE(within_one_ulp(scalar(inverse, stem + "input_global_scale"),
                             1.0F / scalar(direct, stem + "input_scale")));
  EXPECT_EQ(scalar(again, stem + "weight_global_scale"),
            scalar(inverse, stem + "weight_global_scale"));
  for (const TensorInfo& tensor : direct.tensors()) {
    const TensorInfo* found = back.find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    if (tensor.dtype == DType::f32 && tensor.shape.empty()) {
      EXPECT_TRUE(within_one_ulp(scalar(back, tensor.name), scalar(direct, tensor.name)));
      continue;
    }
    EXPECT_TRUE(std::ranges::equal(raw(back, tensor.name), raw(direct, tensor.name)))
        << tensor.name;
  }
  for (const TensorInfo& tensor : inverse.tensors()) {
    EXPECT_TRUE(std::ranges::equal(raw(again, tensor.name), raw(inverse, tensor.name)))
        << tensor.name;
  }
  EXPECT_TRUE(read_model(inverse).config.input_scales);
}

TEST(ConvertFp4, R09_TheWorkedNumbersDecodeToOne) {
  const TempFolder folder;
  SynthOptions options = synth_options();
  options.format = BlockFormat::nvfp4;
  options.dialect = DialectKind::modelopt;
  const auto in = folder.path() / "in";
  synthesise(in, options);
  // The first expert's gate gets the global of the case.
  const Checkpoint before = open_checkpoint(in);
  const TensorInfo& tensor = *before.find("model.layers.0.mlp.experts.0.gate_proj.weight_scale_2");
  const float direct = 1.0F / 2688.0F;
  {
    std::fstream file(before.files()[tensor.file].path,
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(tensor.offset));
    file.write(reinterpret_cast<const char*>(&direct), sizeof direct);
  }
  quantize_checkpoint(open_checkpoint(in), folder.path() / "out",
                      to(ConvertFormat::nvfp4, DialectKind::compressed_tensors));
  const float stored = scalar(open_checkpoint(folder.path() / "out"),
                              "model.layers.0.mlp.experts.0.gate_proj.weight_global_scale");
  EXPECT_TRUE(within_one_ulp(stored, 2688.0F)) << stored;
  EXPECT_NEAR(6.0 * 448.0 / static_cast<double>(stored), 1.0, 1e-7);
}

TEST(ConvertFp4, pit26_MxfpBecomesNvfpExactlyAndComesBackTheSame) {
  const TempFolder folder;
  const Checkpoint source = synth_of(folder, "in", BlockFormat::mxfp4, DialectKind::deepseek);
  const QuantizeReport there =
      quantize_checkpoint(source, folder.path() / "nv", to(ConvertFormat::nvfp4));
  EXPECT_EQ(there.changed_elems, 0U);
  EXPECT_EQ(there.total.noise, 0);
  EXPECT_TRUE(there.recipe.empty());
  const Checkpoint nvfp4 = open_checkpoint(folder.path() / "nv");
  std::uint64_t differing = 0;
  std::uint64_t values = 0;
  for_each_value(source, nvfp4, [&](double a, double b) {
    differing += a != b ? 1U : 0U;
    ++values;
  });
  EXPECT_EQ(differing, 0U);
  EXPECT_EQ(values, there.total.elems);
  for (const std::string expert : {"layers.0.ffn.experts.0.", "layers.1.ffn.experts.2."}) {
    EXPECT_EQ(scalar(nvfp4, expert + "w1.weight_scale_2"),
              scalar(nvfp4, expert + "w3.weight_scale_2"));
  }
  const QuantizeReport back =
      quantize_checkpoint(nvfp4, folder.path() / "mx", to(ConvertFormat::mxfp4));
  EXPECT_EQ(back.changed_elems, 0U);
  const Checkpoint mxfp4 = open_checkpoint(folder.path() / "mx");
  for (const TensorInfo& tensor : source.tensors()) {
    EXPECT_TRUE(std::ranges::equal(raw(mxfp4, tensor.name), raw(source, tensor.name)))
        << tensor.name;
    EXPECT_EQ(mxfp4.find(tensor.name)->dtype, tensor.dtype);
  }
  EXPECT_TRUE(mxfp4.quant_config().is_null());
}

TEST(ConvertFp4, WhatIsNoCastIsRequantisedAndCounted) {
  const TempFolder folder;
  const Checkpoint source = synth_of(folder, "in", BlockFormat::nvfp4, DialectKind::modelopt);
  const QuantizeReport report =
      quantize_checkpoint(source, folder.path() / "out", to(ConvertFormat::mxfp4));
  EXPECT_EQ(report.recipe, "ceil");
  EXPECT_EQ(report.dialect, DialectKind::compressed_tensors);
  std::uint64_t changed = 0;
  double noise = 0;
  double signal = 0;
  for_each_value(source, open_checkpoint(folder.path() / "out"), [&](double a, double b) {
    changed += a != b ? 1U : 0U;
    noise += (a - b) * (a - b);
    signal += a * a;
  });
  EXPECT_EQ(report.changed_elems, changed);
  EXPECT_GT(changed, 0U);
  EXPECT_NEAR(report.total.snr_db(), 10 * std::log10(signal / noise), 1e-3);
  ASSERT_EQ(report.worst_first.size(), 18U);
  for (std::size_t i = 1; i < report.worst_first.size(); ++i) {
    EXPECT_LE(report.worst_first[i - 1].stats.snr_db(), report.worst_first[i].stats.snr_db());
  }
}

TEST(ConvertFp4, MxfpBecomesFp8WithTheSameValues) {
  const TempFolder folder;
  const Checkpoint source = synth_of(folder, "in", BlockFormat::mxfp4, DialectKind::deepseek);
  const QuantizeReport report =
      quantize_checkpoint(source, folder.path() / "out", to(ConvertFormat::fp8));
  EXPECT_EQ(report.changed_elems, 0U);
  EXPECT_FALSE(report.dialect);
  const MoeModel before = read_model(source);
  const MoeModel after = read_model(open_checkpoint(folder.path() / "out"));
  ASSERT_EQ(after.dense.size(), 2U);
  for (const DenseExperts& layer : after.dense) {
    EXPECT_TRUE(layer.problems.empty());
    for (std::uint64_t expert = 0; expert < 3; ++expert) {
      for (const ProjectionKind kind :
           {ProjectionKind::gate, ProjectionKind::up, ProjectionKind::down}) {
        const auto expected = values_of(before, before.require_layer(layer.layer), expert, kind);
        std::vector<float> values(expected.size(), -7.0F);
        read_values(after.checkpoint, layer.experts[expert][static_cast<std::size_t>(kind)],
                    values.data());
        for (std::size_t i = 0; i < values.size(); ++i)
          ASSERT_EQ(static_cast<double>(values[i]), expected[i]) << i;
      }
    }
  }
  EXPECT_EQ(after.checkpoint.config().find("expert_dtype"), nullptr);
}

// Plants a byte of a tensor of a synthetic folder.
void plant(const Checkpoint& checkpoint, const std::string& name, std::uint64_t at,
           std::uint8_t value) {
  const TensorInfo& tensor = *checkpoint.find(name);
  std::fstream file(checkpoint.files()[tensor.file].path,
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(tensor.offset + at));
  file.put(static_cast<char>(value));
}

TEST(ConvertFp4, Fp8ThatWouldLoseAValueIsRefusedWithItsPlace) {
  const TempFolder folder;
  const Checkpoint source =
      synth_of(folder, "in", BlockFormat::mxfp4, DialectKind::deepseek, Pattern::constant);
  const std::string name = "layers.1.ffn.experts.2.w2.scale";
  plant(source, name, 7 * (96 / 32) + 1, 127 - 15);
  const Error error = refusal_of([&] {
    quantize_checkpoint(open_checkpoint(folder.path() / "in"), folder.path() / "out",
                        to(ConvertFormat::fp8));
  });
  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_EQ(code_of(error), "MOXIE-Q007");
  EXPECT_EQ(error.findings().front().where.tensor, "layers.1.ffn.experts.2.w2.weight");
  EXPECT_NE(std::string(error.what()).find("row 7, group 1"), std::string::npos) << error.what();
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
  // A spread of 14 fits.
  plant(source, name, 7 * (96 / 32) + 1, 127 - 14);
  EXPECT_EQ(quantize_checkpoint(open_checkpoint(folder.path() / "in"), folder.path() / "out",
                                to(ConvertFormat::fp8))
                .changed_elems,
            0U);
}

TEST(ConvertFp4, pit26_ASpreadOf18IsRequantisedWithTheShareThatChanged) {
  const TempFolder folder;
  const Checkpoint source =
      synth_of(folder, "in", BlockFormat::mxfp4, DialectKind::deepseek, Pattern::constant);
  plant(source, "layers.0.ffn.experts.0.w1.scale", 0, 127 - 18);
  const QuantizeReport report = quantize_checkpoint(
      open_checkpoint(folder.path() / "in"), folder.path() / "out", to(ConvertFormat::nvfp4));
  // 1.0 at half of the least scale is 0.5: exact, but with new codes.
  EXPECT_EQ(report.changed_elems, 0U);
  plant(source, "layers.0.ffn.experts.0.w1.scale", 0, 127 - 20);
  const QuantizeReport lossy = quantize_checkpoint(
      open_checkpoint(folder.path() / "in"), folder.path() / "lossy", to(ConvertFormat::nvfp4));
  EXPECT_EQ(lossy.changed_elems, 32U);
  EXPECT_EQ(lossy.worst_first.front().projection, ProjectionKind::gate);
  EXPECT_EQ(lossy.worst_first.front().expert, 0U);
}

TEST(ConvertFp4, ScalesThatAreNoNumbersAreRefusedUnderEveryFormat) {
  const TempFolder folder;
  const Checkpoint mx = synth_of(folder, "mx", BlockFormat::mxfp4, DialectKind::deepseek);
  plant(mx, "layers.1.ffn.experts.1.w3.scale", 3, 0xFF);
  const Checkpoint nv = synth_of(folder, "nv", BlockFormat::nvfp4, DialectKind::modelopt);
  plant(nv, "model.layers.1.mlp.experts.1.up_proj.weight_scale", 3, 0x80);
  for (const std::string name : {"mx", "nv"}) {
    for (const ConvertFormat format : {ConvertFormat::mxfp4, ConvertFormat::nvfp4}) {
      const Error error = refusal_of([&] {
        quantize_checkpoint(open_checkpoint(folder.path() / name), folder.path() / "out",
                            to(format));
      });
      EXPECT_EQ(code_of(error), "MOXIE-Q002") << error.what();
      EXPECT_EQ(error.findings().front().where.expert, 1U);
      EXPECT_EQ(error.findings().front().where.layer, 1);
    }
  }
}

// Every dialect of the input into every dialect that the format has.
TEST(ConvertFp4, EveryDialectBecomesEveryOther) {
  const TempFolder folder;
  const std::pair<BlockFormat, DialectKind> sources[] = {
      {BlockFormat::mxfp4, DialectKind::deepseek},
      {BlockFormat::mxfp4, DialectKind::compressed_tensors},
      {BlockFormat::mxfp4, DialectKind::quark},
      {BlockFormat::nvfp4, DialectKind::deepseek},
      {BlockFormat::nvfp4, DialectKind::modelopt},
      {BlockFormat::nvfp4, DialectKind::compressed_tensors}};
  int number = 0;
  for (const auto& [format, dialect] : sources) {
    const std::string name = std::to_string(++number);
    const Checkpoint source = synth_of(folder, name, format, dialect);
    const bool is_mxfp4 = format == BlockFormat::mxfp4;
    for (const DialectKind target : {DialectKind::deepseek, DialectKind::modelopt,
                                     DialectKind::compressed_tensors, DialectKind::gpt_oss}) {
      const auto out = folder.path() / (name + "-" + std::string(name_of(target)));
      const QuantizeOptions options =
          to(is_mxfp4 ? ConvertFormat::mxfp4 : ConvertFormat::nvfp4, target);
      const bool fits = target == DialectKind::modelopt   ? !is_mxfp4
                        : target == DialectKind::gpt_oss  ? false
                        : target == DialectKind::deepseek ? dialect == DialectKind::deepseek
                                                          : true;
      if (!fits) {
        expect_refusal([&] { quantize_checkpoint(source, out, options); }, ErrorCode::unsupported,
                       "MOXIE-Q005");
        continue;
      }
      const QuantizeReport report = quantize_checkpoint(source, out, options);
      EXPECT_EQ(report.projections, 18U);
      EXPECT_EQ(report.changed_elems, 0U);
      const Checkpoint made = open_checkpoint(out);
      EXPECT_TRUE(made.findings().empty());
      std::uint64_t differing = 0;
      for_each_value(source, made, [&](double a, double b) {
        differing += std::abs(a - b) > std::abs(a) * 3e-7;
      });
      EXPECT_EQ(differing, 0U) << out;
    }
  }
}

// The family decides: readers of the gpt-oss dialect want biases and its activation.
TEST(ConvertFp4, TheGptOssDialectIsForItsFamilyAlone) {
  const TempFolder folder;
  const TinyOptions options{.dialect = TinyDialect::compressed_mxfp4};
  const QuantizeOptions stacked = to(ConvertFormat::mxfp4, DialectKind::gpt_oss);
  const Error error = refusal_of([&] {
    quantize_checkpoint(tiny_checkpoint(folder, options, "other"), folder.path() / "no", stacked);
  });
  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_EQ(code_of(error), "MOXIE-Q005");
  EXPECT_EQ(error.findings().front().got, "deepseek_v3");
  EXPECT_NE(error.findings().front().hint.find("compressed-tensors"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "no"));

  SynthOptions oss = synth_options("gpt-oss-20b");
  oss.hidden = 64;
  synthesise(folder.path() / "oss", oss);
  const Checkpoint source = open_checkpoint(folder.path() / "oss");
  const QuantizeReport report = quantize_checkpoint(source, folder.path() / "out", stacked);
  EXPECT_TRUE(report.findings.empty());
  const Checkpoint made = open_checkpoint(folder.path() / "out");
  EXPECT_TRUE(read_model(made).findings.empty());
  for (const TensorInfo& tensor : source.tensors()) {
    EXPECT_TRUE(std::ranges::equal(raw(made, tensor.name), raw(source, tensor.name)))
        << tensor.name;
  }
}

// Below 2^-128 a scale has no finite reciprocal.
TEST(ConvertFp4, ScalesWithoutAReciprocalAreRefusedInBothDirections) {
  const TempFolder folder;
  int number = 0;
  const std::string stem = "model.layers.1.mlp.experts.2.up_proj.";
  for (const TinyDialect from : {TinyDialect::modelopt, TinyDialect::compressed_nvfp4}) {
    const bool inverse = from == TinyDialect::compressed_nvfp4;
    for (const bool input : {false, true}) {
      const std::string name =
          stem + (input ? (inverse ? "input_global_scale" : "input_scale")
                        : (inverse ? "weight_global_scale" : "weight_scale_2"));
      for (const float value : {2.5e-39F, 1e-45F, 0.0F, -1.0F, INFINITY, NAN}) {
        const Checkpoint source =
            tiny_checkpoint(folder, {.dialect = from, .edits = {set_scalar(name, value)}},
                            std::to_string(++number));
        const Error error = refusal_of([&] {
          quantize_checkpoint(source, folder.path() / "out",
                              to(ConvertFormat::nvfp4, inverse ? DialectKind::modelopt
                                                               : DialectKind::compressed_tensors));
        });
        EXPECT_EQ(error.code(), ErrorCode::input);
        EXPECT_EQ(code_of(error), "MOXIE-M007") << error.what();
        const auto& where = error.findings().front().where;
        EXPECT_EQ(where.tensor, name);
        EXPECT_EQ(where.layer, 1);
        EXPECT_EQ(where.expert, 2U);
        EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
      }
    }
    // The least that has one, and the largest of all.
    for (const float value : {3.0e-39F, std::numeric_limits<float>::max()}) {
      const Checkpoint source = tiny_checkpoint(
          folder,
          {.dialect = from,
           .edits = {set_scalar(stem + (inverse ? "weight_global_scale" : "weight_scale_2"),
                                value)}},
          std::to_string(++number));
      const auto out = folder.path() / ("fits" + std::to_string(number));
      quantize_checkpoint(source, out,
                          to(ConvertFormat::nvfp4,
                             inverse ? DialectKind::modelopt : DialectKind::compressed_tensors));
      const float stored =
          scalar(open_checkpoint(out), stem + (inverse ? "weight_scale_2" : "weight_global_scale"));
      EXPECT_TRUE(std::isfinite(stored));
      EXPECT_NEAR(static_cast<double>(stored) * static_cast<double>(value), 1.0, 1e-6);
    }
  }
}

// Stacked experts with biases, exactly as a tensor per projection; and on to other dialects.
TEST(ConvertFp4, GptOssBecomesNvfp4WithTheSameValuesAndBiases) {
  const TempFolder folder;
  SynthOptions options{.config = synth_config("gpt-oss-20b")};
  options.experts = 3;
  options.hidden = 64;
  options.inter = 96;
  options.num_layers = 2;
  synthesise(folder.path() / "in", options);
  const Checkpoint in = open_checkpoint(folder.path() / "in");
  const QuantizeReport report = quantize_checkpoint(
      in, folder.path() / "modelopt", to(ConvertFormat::nvfp4, DialectKind::modelopt));
  EXPECT_EQ(report.changed_elems, 0U);
  const Checkpoint modelopt = open_checkpoint(folder.path() / "modelopt");
  quantize_checkpoint(modelopt, folder.path() / "inverse",
                      to(ConvertFormat::nvfp4, DialectKind::compressed_tensors));
  const Checkpoint inverse = open_checkpoint(folder.path() / "inverse");
  quantize_checkpoint(in, folder.path() / "quark", to(ConvertFormat::mxfp4, DialectKind::quark));
  const Checkpoint quark = open_checkpoint(folder.path() / "quark");
  const MoeModel before = read_model(in);
  for (const Checkpoint& made : {modelopt, inverse, quark}) {
    for_each_value(in, made, [](double a, double b) { ASSERT_EQ(a, b); });
    const MoeModel after = read_model(made);
    EXPECT_EQ(made.find("model.layers.0.mlp.experts.gate_up_proj_bias"), nullptr);
    for (const LayerExperts& layer : before.layers) {
      for (std::uint64_t expert = 0; expert < 3; ++expert) {
        for (const ProjectionKind kind : projections_of(before.config)) {
          const RowsView& from = layer.experts[expert][kind].bias;
          const RowsView& to = after.require_layer(layer.layer).experts[expert][kind].bias;
          ASSERT_TRUE(to.present());
          EXPECT_EQ(to.tensor->dtype, DType::bf16);
          for (std::uint64_t row = 0; row < from.rows; ++row) {
            std::array<std::byte, 4> a{};
            std::array<std::byte, 4> b{};
            read_row(in, from, row, 0, a);
            read_row(made, to, row, 0, b);
            ASSERT_EQ(a, b);
          }
        }
      }
    }
  }
  expect_refusal(
      [&] {
        quantize_checkpoint(quark, folder.path() / "stacked",
                            to(ConvertFormat::mxfp4, DialectKind::gpt_oss));
      },
      ErrorCode::unsupported, "MOXIE-Q005");
}

TEST(ConvertFp4, NamesThatAreOnlyReadAreRefused) {
  const TempFolder folder;
  SynthOptions options = synth_options();
  options.config = synth_config("tiny");
  options.dialect = DialectKind::gguf;
  options.format = BlockFormat::mxfp4;
  synthesise(folder.path() / "in", options);
  expect_refusal(
      [&] {
        quantize_checkpoint(open_checkpoint(folder.path() / "in"), folder.path() / "out",
                            to(ConvertFormat::nvfp4, DialectKind::modelopt));
      },
      ErrorCode::unsupported, "MOXIE-Q012");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
}

}  // namespace
}  // namespace moxie::test
