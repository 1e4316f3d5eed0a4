// SPDX-License-Identifier: Apache-2.0
// Experts that a conversion leaves as they are: declared, noted, or refused.
#include "convert/convert_rig.hpp"

namespace moxie::test {
namespace {

constexpr std::uint64_t kHidden = 64;
constexpr std::uint64_t kInter = 32;

// One layer's experts under `prefix`, all in one type.
void add_experts(std::vector<TinyTensor>& tensors, const std::string& prefix, DType dtype,
                 bool is_native = false, std::uint64_t experts = 2) {
  const std::array<std::string, 3> leaves =
      is_native ? std::array<std::string, 3>{"w1", "w3", "w2"}
                : std::array<std::string, 3>{"gate_proj", "up_proj", "down_proj"};
  for (std::uint64_t expert = 0; expert < experts; ++expert) {
    for (std::size_t kind = 0; kind < 3; ++kind) {
      const Shape shape = kind == 2 ? Shape{kHidden, kInter} : Shape{kInter, kHidden};
      const std::string stem = prefix + "." + std::to_string(expert) + "." + leaves[kind];
      if (dtype == DType::bf16) {
        tensors.push_back(bf16_tensor(stem + ".weight", shape, random_values(expert + kind)));
        continue;
      }
      tensors.push_back({.name = stem + ".weight",
                         .dtype = DType::f8_e4m3,
                         .shape = shape,
                         .bytes = std::string(kHidden * kInter, '\x38')});
      tensors.push_back({.name = stem + ".weight_scale_inv",
                         .dtype = DType::f32,
                         .shape = {1, 1},
                         .bytes = std::string("\0\0\x80\x3F", 4)});
    }
  }
}

std::vector<std::string> codes_of(const QuantizeReport& report) {
  std::vector<std::string> codes;
  for (const Finding& finding : report.findings) codes.push_back(finding.code);
  return codes;
}

bool is_ignored(const Checkpoint& made, const std::string& pattern) {
  for (const Json& module : made.config().find("quantization_config")->find("ignore")->elements()) {
    if (module.as_string() == pattern) return true;
  }
  return false;
}

void expect_readable(const Checkpoint& made) {
  const MoeModel model = read_model(made);
  EXPECT_FALSE(model.layers.empty());
  for (const LayerExperts& layer : model.layers) EXPECT_TRUE(layer.problems.empty());
}

// DeepSeek-V4's config says FP4 of all experts, those of prediction blocks too.
TEST(LeftExperts, DenseOnesOfAPredictionBlockAreRefusedWhereTheConfigCallsThemFp4) {
  const TempFolder folder;
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    std::vector<TinyTensor> mtp;
    add_experts(mtp, "mtp.0.ffn.experts", dtype, true);
    const Checkpoint source = tiny_checkpoint(folder,
                                              {.dialect = TinyDialect::deepseek_v4,
                                               .hidden = kHidden,
                                               .inter = kInter,
                                               .experts = 2,
                                               .extra = mtp},
                                              std::string(name_of(dtype)));
    for (const ConvertFormat format : {ConvertFormat::nvfp4, ConvertFormat::mxfp4}) {
      const Error error =
          refusal_of([&] { quantize_checkpoint(source, folder.path() / "out", to(format)); });
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      EXPECT_EQ(code_of(error), "MOXIE-Q005") << error.what();
      EXPECT_TRUE(error.findings().front().where.tensor.starts_with("mtp.0.ffn.experts.0."))
          << error.what();
      EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
    }
  }
}

// What is written can be read, or is not written.
TEST(LeftExperts, DenseOnesOfAPredictionBlockLeaveAReadableModelOrNone) {
  const TempFolder folder;
  std::vector<TinyTensor> tensors;
  add_experts(tensors, "model.layers.0.mlp.experts", DType::bf16);
  add_experts(tensors, "mtp.layers.0.mlp.experts", DType::bf16);
  const Checkpoint source = open_checkpoint(
      write_folder(folder.path() / "in", family_config("qwen3_moe", kHidden, kInter, 2), tensors));
  unsigned written = 0;
  unsigned refused = 0;
  for (const ConvertFormat format : {ConvertFormat::nvfp4, ConvertFormat::mxfp4}) {
    for (const DialectKind dialect : {DialectKind::modelopt, DialectKind::compressed_tensors}) {
      if (format == ConvertFormat::mxfp4 && dialect == DialectKind::modelopt) continue;
      const auto out = folder.path() / (std::to_string(written) + "-" + std::to_string(refused));
      try {
        const QuantizeReport report = quantize_checkpoint(source, out, to(format, dialect));
        ++written;
        EXPECT_EQ(codes_of(report), std::vector<std::string>{"MOXIE-Q011"});
        EXPECT_EQ(report.findings.back().got, "mtp.layers.0.mlp.experts");
        const Checkpoint made = open_checkpoint(out);
        expect_readable(made);
        EXPECT_TRUE(is_ignored(made, dialect == DialectKind::modelopt ? "mtp.*" : "re:mtp\\..*"));
      } catch (const Error& error) {
        ++refused;
        EXPECT_EQ(code_of(error), "MOXIE-Q005") << error.what();
        EXPECT_EQ(error.findings().front().where.tensor,
                  "mtp.layers.0.mlp.experts.0.gate_proj.weight");
        EXPECT_FALSE(std::filesystem::exists(out));
      }
    }
  }
  EXPECT_EQ(refused, 0U);
  EXPECT_EQ(written + refused, 3U);
}

TEST(LeftExperts, StackedOnesOfAPredictionBlockAreNotedAndListed) {
  const TempFolder folder;
  std::vector<TinyTensor> tensors;
  for (const std::string block : {"model.language_model.layers.0.", "mtp.layers.0."}) {
    tensors.push_back(bf16_tensor(block + "mlp.experts.gate_up_proj", {2, 2 * kInter, kHidden},
                                  random_values(1)));
    tensors.push_back(
        bf16_tensor(block + "mlp.experts.down_proj", {2, kHidden, kInter}, random_values(2)));
  }
  const Checkpoint source = open_checkpoint(write_folder(
      folder.path() / "in", family_config("qwen3_5_moe", kHidden, kInter, 2), tensors));
  for (const DialectKind dialect : {DialectKind::modelopt, DialectKind::compressed_tensors}) {
    const auto out = folder.path() / std::string(name_of(dialect));
    const QuantizeReport report =
        quantize_checkpoint(source, out, to(ConvertFormat::nvfp4, dialect));
    EXPECT_EQ(codes_of(report), std::vector<std::string>{"MOXIE-Q011"});
    EXPECT_EQ(report.copied_tensors, 2U);
    const Checkpoint made = open_checkpoint(out);
    expect_readable(made);
    EXPECT_TRUE(is_ignored(made, dialect == DialectKind::modelopt ? "mtp.*" : "re:mtp\\..*"));
  }
}

// Kimi and DeepSeek-V3 keep a prediction block as one more layer; only a config that counts it
// says so.
TEST(LeftExperts, ThoseAfterTheLastLayerAreNotedAndWarnedOfUnlessCounted) {
  const TempFolder folder;
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    for (const bool counted : {false, true}) {
      Json config = family_config("deepseek_v3", kHidden, kInter, 2);
      config.set("n_routed_experts", 2);
      if (dtype != DType::bf16)
        config.set("quantization_config", Json::object().set("quant_method", "fp8"));
      if (counted) config.set("num_nextn_predict_layers", 1);
      std::vector<TinyTensor> tensors;
      add_experts(tensors, "model.layers.0.mlp.experts", dtype);
      add_experts(tensors, "model.layers.1.mlp.experts", dtype);
      const std::string name = std::string(name_of(dtype)) + (counted ? "counted" : "");
      const Checkpoint source =
          open_checkpoint(write_folder(folder.path() / name, config, tensors));
      const auto out = folder.path() / (name + "-out");
      const QuantizeReport report = quantize_checkpoint(source, out, to(ConvertFormat::nvfp4));
      const std::vector<std::string> expected =
          counted ? std::vector<std::string>{"MOXIE-Q011"}
                  : std::vector<std::string>{"MOXIE-M015", "MOXIE-Q011"};
      EXPECT_EQ(codes_of(report), expected);
      EXPECT_EQ(report.findings.front().got, "model.layers.1.mlp.experts");
      EXPECT_EQ(report.findings.front().severity, counted ? Severity::note : Severity::warning);
      expect_readable(open_checkpoint(out));
    }
  }
}

// The config leaves layer 1 out of quantisation, so its experts are no broken FP4.
TEST(LeftExperts, LayersInAnotherFormatAreNamedWithBothFormats) {
  const TempFolder folder;
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    TinyOptions options{.dialect = TinyDialect::modelopt,
                        .hidden = kHidden,
                        .inter = kInter,
                        .experts = 2,
                        .layers = 1};
    add_experts(options.extra, "model.layers.1.mlp.experts", dtype);
    Json ignored = Json::array();
    ignored.push_back("model.layers.1.mlp.experts*");
    Json quantization = tiny_quantization(options.dialect);
    quantization.set("ignore", std::move(ignored));
    options.config = tiny_config(options)
                         .set("num_hidden_layers", 2)
                         .set("quantization_config", std::move(quantization));
    const Checkpoint source = tiny_checkpoint(folder, options, std::string(name_of(dtype)));
    const Error error = refusal_of(
        [&] { quantize_checkpoint(source, folder.path() / "out", to(ConvertFormat::mxfp4)); });
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    const Finding& finding = error.findings().front();
    EXPECT_EQ(finding.code, "MOXIE-M009") << error.what();
    EXPECT_EQ(finding.where.layer, 1);
    EXPECT_TRUE(finding.where.tensor.starts_with("model.layers.1.mlp.experts.0."));
    EXPECT_EQ(finding.expected, "nvfp4, as layer 0");
    EXPECT_EQ(finding.got, name_of(dtype));
    EXPECT_FALSE(finding.hint.empty());
  }
}

TEST(LeftExperts, MainExpertsInAnotherFormatThanAPredictionBlockAreNamedSo) {
  const TempFolder folder;
  TinyOptions options{.dialect = TinyDialect::modelopt,
                      .hidden = kHidden,
                      .inter = kInter,
                      .experts = 2,
                      .layers = 0,
                      .mtp_blocks = 1};
  add_experts(options.extra, "model.layers.0.mlp.experts", DType::f8_e4m3);
  options.config = tiny_config(options)
                       .set("num_hidden_layers", 1)
                       .set("quantization_config", Json::object().set("quant_method", "fp8"));
  const Error error = refusal_of([&] {
    quantize_checkpoint(tiny_checkpoint(folder, options), folder.path() / "out",
                        to(ConvertFormat::nvfp4));
  });
  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_EQ(code_of(error), "MOXIE-M009") << error.what();
  EXPECT_EQ(error.findings().front().where.layer, 0);
  EXPECT_EQ(error.findings().front().expected, "mxfp4, as mtp.0.ffn.experts");
  EXPECT_EQ(error.findings().front().got, "F8_E4M3");
}

}  // namespace
}  // namespace moxie::test
