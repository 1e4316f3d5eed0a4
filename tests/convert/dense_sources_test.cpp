// SPDX-License-Identifier: Apache-2.0
// Dense experts of every kind become the FP4 that the quantiser makes of their values.
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "convert/convert_rig.hpp"
#include "formats/e4m3.hpp"
#include "model/dense_experts.hpp"

namespace moxie::test {
namespace {

constexpr std::uint64_t kHidden = 64;
constexpr std::uint64_t kInter = 32;

std::vector<TinyTensor> qwen_tensors(std::uint64_t experts, std::uint64_t seed) {
  std::vector<TinyTensor> tensors;
  const std::string block = "model.layers.0.mlp.";
  for (std::uint64_t expert = 0; expert < experts; ++expert) {
    const std::string stem = block + "experts." + std::to_string(expert) + ".";
    tensors.push_back(bf16_tensor(stem + "gate_proj.weight", {kInter, kHidden},
                                  random_values(seed + 3 * expert)));
    // Up is larger: it decides the global of both.
    const auto values = random_values(seed + 3 * expert + 1);
    tensors.push_back(bf16_tensor(stem + "up_proj.weight", {kInter, kHidden},
                                  [&](std::uint64_t i) { return 2 * values(i); }));
    tensors.push_back(bf16_tensor(stem + "down_proj.weight", {kHidden, kInter},
                                  random_values(seed + 3 * expert + 2)));
  }
  tensors.push_back(bf16_tensor(block + "gate.weight", {experts, kHidden}, random_values(99)));
  tensors.push_back(bf16_tensor("lm_head.weight", {40, kHidden}, random_values(98)));
  tensors.push_back(
      bf16_tensor("model.layers.0.self_attn.q_proj.weight", {8, kHidden}, random_values(97)));
  return tensors;
}

MatrixRef matrix_of(const Checkpoint& checkpoint, const std::string& name, std::uint64_t rows,
                    std::uint64_t cols) {
  return {.data = raw(checkpoint, name).data(),
          .dtype = DType::bf16,
          .rows = rows,
          .cols = cols,
          .row_stride = cols};
}

TEST(ConvertDense, Q05_GateAndUpShareOneGlobalUnderEveryRecipe) {
  const TempFolder folder;
  const Checkpoint source = open_checkpoint(write_folder(
      folder.path() / "in", family_config("qwen3_moe", kHidden, kInter, 2), qwen_tensors(2, 1)));
  for (const ConvertRecipe recipe : {ConvertRecipe::amax, ConvertRecipe::mse,
                                     ConvertRecipe::four_over_six, ConvertRecipe::fp8_closed}) {
    const auto out = folder.path() / ("out-" + std::string(name_of(recipe)));
    const QuantizeReport report =
        quantize_checkpoint(source, out, to(ConvertFormat::nvfp4, DialectKind::modelopt, recipe));
    EXPECT_EQ(report.projections, 6U);
    EXPECT_EQ(report.recipe, name_of(recipe));
    const Checkpoint made = open_checkpoint(out);
    const auto core = recipe == ConvertRecipe::amax            ? Nvfp4Recipe::amax
                      : recipe == ConvertRecipe::mse           ? Nvfp4Recipe::mse
                      : recipe == ConvertRecipe::four_over_six ? Nvfp4Recipe::four_over_six
                                                               : Nvfp4Recipe::fp8_closed;
    const std::string stem = "model.layers.0.mlp.experts.1.";
    const std::vector<MatrixRef> both = {
        matrix_of(source, stem + "gate_proj.weight", kInter, kHidden),
        matrix_of(source, stem + "up_proj.weight", kInter, kHidden)};
    const float global = nvfp4_dequant_mul(both, core);
    EXPECT_EQ(scalar(made, stem + "gate_proj.weight_scale_2"), global);
    EXPECT_EQ(scalar(made, stem + "up_proj.weight_scale_2"), global);
    const Quantised gate = quantise_nvfp4(both[0], {.recipe = core, .dequant_mul = global});
    const auto codes = raw(made, stem + "gate_proj.weight");
    const auto scales = raw(made, stem + "gate_proj.weight_scale");
    EXPECT_TRUE(std::ranges::equal(codes, gate.matrix.codes));
    EXPECT_TRUE(std::ranges::equal(scales, gate.matrix.scales));
    EXPECT_EQ(made.find(stem + "gate_proj.input_scale"), nullptr);
  }
}

TEST(ConvertDense, MxfpRecipesAndDialectsGiveTheQuantisersBytes) {
  const TempFolder folder;
  const Checkpoint source = open_checkpoint(write_folder(
      folder.path() / "in", family_config("qwen3_moe", kHidden, kInter, 2), qwen_tensors(2, 2)));
  const std::pair<ConvertRecipe, Mxfp4Recipe> recipes[] = {
      {ConvertRecipe::ceil, Mxfp4Recipe::ceil},
      {ConvertRecipe::floor, Mxfp4Recipe::floor},
      {ConvertRecipe::mse, Mxfp4Recipe::mse}};
  for (const auto& [recipe, core] : recipes) {
    const auto out = folder.path() / ("out-" + std::string(name_of(recipe)));
    const QuantizeReport report =
        quantize_checkpoint(source, out, to(ConvertFormat::mxfp4, {}, recipe));
    EXPECT_EQ(report.dialect, DialectKind::compressed_tensors);
    const Checkpoint made = open_checkpoint(out);
    const std::string stem = "model.layers.0.mlp.experts.0.down_proj";
    const Quantised down =
        quantise_mxfp4(matrix_of(source, stem + ".weight", kHidden, kInter), core);
    EXPECT_TRUE(std::ranges::equal(raw(made, stem + ".weight_packed"), down.matrix.codes));
    EXPECT_TRUE(std::ranges::equal(raw(made, stem + ".weight_scale"), down.matrix.scales));
    EXPECT_EQ(read_model(made).require_layer(0).dialect, "compressed-tensors");
  }
}

TEST(ConvertDense, OtherTensorsAndTheRestOfTheConfigStayAsTheyAre) {
  const TempFolder folder;
  const auto in = write_folder(folder.path() / "in", family_config("qwen3_moe", kHidden, kInter, 2),
                               qwen_tensors(2, 3));
  std::ofstream(in / "tokenizer.json") << "{}";
  const auto before = folder_bytes(in);
  const Checkpoint source = open_checkpoint(in);
  const auto out = folder.path() / "out";
  const QuantizeReport report = quantize_checkpoint(source, out, to(ConvertFormat::nvfp4));
  EXPECT_EQ(folder_bytes(in), before);
  const Checkpoint made = open_checkpoint(out);
  EXPECT_TRUE(made.findings().empty());
  EXPECT_EQ(report.copied_tensors, 3U);
  for (const std::string name : {"model.layers.0.mlp.gate.weight", "lm_head.weight",
                                 "model.layers.0.self_attn.q_proj.weight"}) {
    EXPECT_TRUE(std::ranges::equal(raw(made, name), raw(source, name))) << name;
    EXPECT_EQ(made.find(name)->shape, source.find(name)->shape);
  }
  Json config = made.config();
  const Json quantization = *config.find("quantization_config");
  config.erase("quantization_config");
  EXPECT_EQ(config, source.config());
  EXPECT_EQ(quantization.find("quant_algo")->as_string(), "W4A16_NVFP4");
  std::set<std::string> ignored;
  for (const Json& module : quantization.find("ignore")->elements())
    ignored.insert(module.as_string());
  EXPECT_EQ(ignored, (std::set<std::string>{"lm_head", "model.layers.*.mlp.gate",
                                            "model.layers.*.self_attn.q_proj"}));
  EXPECT_EQ(made.quant_config().find("quantization")->find("quant_algo")->as_string(),
            "W4A16_NVFP4");
  EXPECT_EQ(read_bytes(out / "tokenizer.json"), "{}");
  const MoeModel model = read_model(made);
  EXPECT_FALSE(model.config.input_scales);
  EXPECT_TRUE(model.findings.empty());
}

TEST(ConvertDense, Q08_StackedExpertsAreConvertedAllAndCounted) {
  const TempFolder folder;
  const std::string prefix = "model.language_model.layers.0.mlp.experts.";
  const Checkpoint source = open_checkpoint(
      write_folder(folder.path() / "in", family_config("qwen3_5_moe", 64, 64, 8),
                   {bf16_tensor(prefix + "gate_up_proj", {8, 128, 64}, random_values(4)),
                    bf16_tensor(prefix + "down_proj", {8, 64, 64}, random_values(5))}));
  const QuantizeReport report =
      quantize_checkpoint(source, folder.path() / "out", to(ConvertFormat::nvfp4));
  EXPECT_EQ(report.projections, 24U);
  EXPECT_EQ(report.total.elems, 98304U);
  EXPECT_EQ(report.expert_bytes, 49152U + 6144U + 96U);
  const Checkpoint made = open_checkpoint(folder.path() / "out");
  std::uint64_t bytes = 0;
  for (const TensorInfo& tensor : made.tensors()) bytes += tensor.bytes;
  EXPECT_EQ(bytes, report.bytes);
  EXPECT_EQ(bytes, 49152U + 6144U + 96U);
  // Output-major: up of expert 1 is rows 64..127 of its matrix.
  const MoeModel model = read_model(made);
  const auto up = values_of(model, model.require_layer(0), 1, ProjectionKind::up);
  const auto stored = random_values(4);
  for (std::uint64_t i = 0; i < 64 * 64; ++i)
    ASSERT_NEAR(up[i], stored(128 * 64 + 64 * 64 + i), 0.4) << i;
}

TEST(ConvertDense, Q08_AMissingProjectionOrNoneAtAllIsAnError) {
  const TempFolder folder;
  std::vector<TinyTensor> tensors = qwen_tensors(8, 6);
  const std::string gone = "model.layers.0.mlp.experts.5.up_proj.weight";
  std::erase_if(tensors, [&](const TinyTensor& tensor) { return tensor.name == gone; });
  const Json config = family_config("qwen3_moe", kHidden, kInter, 8);
  const Checkpoint partial = open_checkpoint(write_folder(folder.path() / "a", config, tensors));
  const Error error = refusal_of(
      [&] { quantize_checkpoint(partial, folder.path() / "out", to(ConvertFormat::nvfp4)); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_NE(std::string(error.what()).find("23 of 24"), std::string::npos) << error.what();
  EXPECT_NE(std::string(error.what()).find(gone), std::string::npos) << error.what();

  const Checkpoint none = open_checkpoint(write_folder(
      folder.path() / "b", config,
      {bf16_tensor("model.layers.0.mlp.experts.gate_up_fused", {8, 64, 64}, random_values(1))}));
  expect_refusal(
      [&] { quantize_checkpoint(none, folder.path() / "out", to(ConvertFormat::nvfp4)); },
      ErrorCode::input, "MOXIE-Q008");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
}

// Every family's own orientation, where the shapes can not tell.
TEST(ConvertDense, R12_OrientationComesFromTheDeclaredLayout) {
  const TempFolder folder;
  const std::string prefix = "model.layers.0.mlp.experts.";
  const auto one_at = [](std::uint64_t place) {
    return [place](std::uint64_t i) { return i == place ? 1.0F : 0.0F; };
  };
  // gpt-oss: down [I, H] has input 1, output 2; gate_up [H, 2I] has input 3 of gate 5.
  const Checkpoint oss = open_checkpoint(
      write_folder(folder.path() / "oss", family_config("gpt_oss", 32, 32, 1),
                   {bf16_tensor(prefix + "gate_up_proj", {1, 32, 64}, one_at(3 * 64 + 2 * 5)),
                    bf16_tensor(prefix + "down_proj", {1, 32, 32}, one_at(1 * 32 + 2))}));
  const QuantizeReport report =
      quantize_checkpoint(oss, folder.path() / "out", to(ConvertFormat::mxfp4));
  EXPECT_EQ(report.dialect, DialectKind::gpt_oss);
  ASSERT_FALSE(report.findings.empty());
  EXPECT_EQ(report.findings.back().code, "MOXIE-Q010");
  const Checkpoint made = open_checkpoint(folder.path() / "out");
  EXPECT_EQ(made.find(prefix + "gate_up_proj_blocks")->shape, (Shape{1, 64, 1, 16}));
  EXPECT_EQ(made.find(prefix + "gate_up_proj_scales")->shape, (Shape{1, 64, 1}));
  EXPECT_EQ(made.find(prefix + "gate_up_proj_bias")->shape, (Shape{1, 64}));
  EXPECT_EQ(made.find(prefix + "down_proj_bias")->dtype, DType::bf16);
  const auto down = raw(made, prefix + "down_proj_blocks");
  for (std::uint64_t i = 0; i < down.size(); ++i)
    EXPECT_EQ(down[i], i == 2 * 16 + 0 ? 0x60 : 0) << i;      // row 2, column 1: the high nibble, 4
  EXPECT_EQ(raw(made, prefix + "down_proj_scales")[2], 125);  // 4 * 2^-2
  const auto gate_up = raw(made, prefix + "gate_up_proj_blocks");
  for (std::uint64_t i = 0; i < gate_up.size(); ++i)
    EXPECT_EQ(gate_up[i], i == 10 * 16 + 1 ? 0x60 : 0) << i;  // gate 5 is row 10; column 3

  // Qwen3.5: the same bytes are [H, I]: output 1, input 2.
  const Checkpoint qwen = open_checkpoint(
      write_folder(folder.path() / "qwen", family_config("qwen3_5_moe", 32, 32, 1),
                   {bf16_tensor(prefix + "gate_up_proj", {1, 64, 32}, one_at(33 * 32 + 4)),
                    bf16_tensor(prefix + "down_proj", {1, 32, 32}, one_at(1 * 32 + 2))}));
  quantize_checkpoint(qwen, folder.path() / "out2", to(ConvertFormat::mxfp4));
  const MoeModel model = read_model(open_checkpoint(folder.path() / "out2"));
  const LayerExperts& layer = model.require_layer(0);
  EXPECT_EQ(values_of(model, layer, 0, ProjectionKind::down)[1 * 32 + 2], 1.0);
  EXPECT_EQ(values_of(model, layer, 0, ProjectionKind::up)[1 * 32 + 4], 1.0);

  // The other family's shape is refused, not transposed.
  const Checkpoint wrong =
      open_checkpoint(write_folder(folder.path() / "wrong", family_config("gpt_oss", 64, 32, 1),
                                   {bf16_tensor(prefix + "gate_up_proj", {1, 64, 64}, one_at(0)),
                                    bf16_tensor(prefix + "down_proj", {1, 64, 32}, one_at(0))}));
  expect_refusal(
      [&] { quantize_checkpoint(wrong, folder.path() / "out3", to(ConvertFormat::mxfp4)); },
      ErrorCode::input, "MOXIE-M005");
}

TEST(ConvertDense, GptOssKeepsItsBiasesAndRefusesOtherDialects) {
  const TempFolder folder;
  const std::string prefix = "model.layers.0.mlp.experts.";
  const Checkpoint source = open_checkpoint(
      write_folder(folder.path() / "in", family_config("gpt_oss", 32, 64, 3),
                   {bf16_tensor(prefix + "gate_up_proj", {3, 32, 128}, random_values(1)),
                    bf16_tensor(prefix + "gate_up_proj_bias", {3, 128}, random_values(2)),
                    bf16_tensor(prefix + "down_proj", {3, 64, 32}, random_values(3)),
                    bf16_tensor(prefix + "down_proj_bias", {3, 32}, random_values(4))}));
  const QuantizeReport report =
      quantize_checkpoint(source, folder.path() / "out", to(ConvertFormat::mxfp4));
  const Checkpoint made = open_checkpoint(folder.path() / "out");
  for (const std::string name : {"gate_up_proj_bias", "down_proj_bias"})
    EXPECT_TRUE(std::ranges::equal(raw(made, prefix + name), raw(source, prefix + name)));
  EXPECT_TRUE(std::ranges::none_of(
      report.findings, [](const Finding& finding) { return finding.code == "MOXIE-Q010"; }));
  EXPECT_EQ(made.config().find("quantization_config")->find("quant_method")->as_string(), "mxfp4");
  // Expert 2, up 9 is row 19; its 32 inputs are column 19 of the source's [32, 128].
  std::vector<float> up9(32);
  for (std::uint64_t h = 0; h < 32; ++h)
    up9[h] = decode_bf16(encode_bf16(random_values(1)(2 * 32 * 128 + h * 128 + 19)));
  const Quantised row = quantise_mxfp4(
      {.data = up9.data(), .dtype = DType::f32, .rows = 1, .cols = 32, .row_stride = 32},
      Mxfp4Recipe::ceil);
  const auto blocks = raw(made, prefix + "gate_up_proj_blocks").subspan((2 * 128 + 19) * 16, 16);
  EXPECT_TRUE(std::ranges::equal(blocks, row.matrix.codes));
  EXPECT_EQ(raw(made, prefix + "gate_up_proj_scales")[2 * 128 + 19], row.matrix.scales[0]);
  expect_refusal(
      [&] { quantize_checkpoint(source, folder.path() / "no", to(ConvertFormat::nvfp4)); },
      ErrorCode::unsupported, "MOXIE-Q005");
}

// Block-scaled FP8: the multiplier of a tile, whatever the scales' type and the tiles' size.
TEST(ConvertDense, Fp8BlocksAreReadWithTheirTileScales) {
  const TempFolder folder;
  struct Case {
    DType dtype;
    std::string part;
    std::uint64_t tile;
  };
  for (const Case& given :
       {Case{DType::f32, "weight_scale_inv", 128}, Case{DType::bf16, "weight_scale_inv", 32},
        Case{DType::f8_e8m0, "scale", 32}, Case{DType::f32, "scale", 48}}) {
    const std::uint64_t hidden = 160;
    const std::uint64_t inter = 96;
    Json config = family_config("qwen3_moe", hidden, inter, 1);
    Json tile = Json::array();
    tile.push_back(given.tile);
    tile.push_back(given.tile);
    config.set("quantization_config",
               Json::object().set("quant_method", "fp8").set("weight_block_size", std::move(tile)));
    std::vector<TinyTensor> tensors;
    std::map<std::string, std::vector<float>> expected;
    for (const auto& [leaf, rows, cols] :
         {std::tuple("gate_proj", inter, hidden), std::tuple("up_proj", inter, hidden),
          std::tuple("down_proj", hidden, inter)}) {
      const std::string stem = std::string("model.layers.0.mlp.experts.0.") + leaf;
      TinyTensor weight{.name = stem + ".weight", .dtype = DType::f8_e4m3, .shape = {rows, cols}};
      for (std::uint64_t i = 0; i < rows * cols; ++i)
        weight.bytes += static_cast<char>(Stream(5, {rows}).word(i) % 0x7F);
      const std::uint64_t across = (cols + given.tile - 1) / given.tile;
      const std::uint64_t down = (rows + given.tile - 1) / given.tile;
      TinyTensor scales{
          .name = stem + "." + given.part, .dtype = given.dtype, .shape = {down, across}};
      std::vector<float> factors;
      for (std::uint64_t i = 0; i < down * across; ++i) {
        factors.push_back(std::ldexp(1.0F, static_cast<int>(i % 5) - 3));
        if (given.dtype == DType::f32) {
          scales.bytes.append(reinterpret_cast<const char*>(&factors.back()), 4);
        } else if (given.dtype == DType::bf16) {
          const std::uint16_t bits = encode_bf16(factors.back());
          scales.bytes.append(reinterpret_cast<const char*>(&bits), 2);
        } else {
          scales.bytes += static_cast<char>(127 + static_cast<int>(i % 5) - 3);
        }
      }
      for (std::uint64_t i = 0; i < rows * cols; ++i) {
        expected[leaf].push_back(decode_e4m3(static_cast<std::uint8_t>(weight.bytes[i])) *
                                 factors[i / cols / given.tile * across + i % cols / given.tile]);
      }
      tensors.push_back(std::move(weight));
      tensors.push_back(std::move(scales));
    }
    const std::string name = given.part + std::to_string(given.tile);
    const Checkpoint source = open_checkpoint(write_folder(folder.path() / name, config, tensors));
    const MoeModel dense = read_model(source);
    ASSERT_EQ(dense.dense.size(), 1U);
    EXPECT_EQ(dense.dense[0].format, DenseFormat::fp8_block);
    const auto out = folder.path() / (name + "-out");
    quantize_checkpoint(source, out, to(ConvertFormat::mxfp4));
    const Checkpoint made = open_checkpoint(out);
    const Quantised up = quantise_mxfp4({.data = expected["up_proj"].data(),
                                         .dtype = DType::f32,
                                         .rows = inter,
                                         .cols = hidden,
                                         .row_stride = hidden},
                                        Mxfp4Recipe::ceil);
    const std::string stem = "model.layers.0.mlp.experts.0.up_proj.";
    EXPECT_TRUE(std::ranges::equal(raw(made, stem + "weight_packed"), up.matrix.codes)) << name;
    EXPECT_TRUE(std::ranges::equal(raw(made, stem + "weight_scale"), up.matrix.scales)) << name;
    // Scales of another block size are refused.
    tensors[1].shape = {1, tensors[1].shape[0] * tensors[1].shape[1]};
    const Checkpoint wrong =
        open_checkpoint(write_folder(folder.path() / (name + "-wrong"), config, tensors));
    if (read_model(source).dense[0].experts[0][0].scales->shape != tensors[1].shape) {
      expect_refusal(
          [&] { quantize_checkpoint(wrong, folder.path() / "no", to(ConvertFormat::mxfp4)); },
          ErrorCode::input, "MOXIE-M005");
    }
  }
}

// Qwen3 with FP8 tiles of 32 x 32; the scales are all 1 but for one.
Checkpoint fp8_checkpoint(const std::filesystem::path& folder, DType dtype, std::string_view part,
                          const std::string& bad_bytes, Json quantization,
                          std::string_view family = "qwen3_moe") {
  Json tile = Json::array();
  tile.push_back(32);
  tile.push_back(32);
  Json config = family_config(family, kHidden, kInter, 2);
  config.set("quantization_config", quantization.set("weight_block_size", std::move(tile)));
  const std::string one = dtype == DType::f32    ? std::string("\0\0\x80\x3F", 4)
                          : dtype == DType::bf16 ? std::string("\x80\x3F", 2)
                                                 : std::string("\x7F", 1);
  std::vector<TinyTensor> tensors;
  for (const std::string expert : {"0", "1"}) {
    for (const auto& [leaf, rows, cols] :
         {std::tuple("gate_proj", kInter, kHidden), std::tuple("up_proj", kInter, kHidden),
          std::tuple("down_proj", kHidden, kInter)}) {
      const std::string stem = "model.layers.0.mlp.experts." + expert + "." + leaf;
      tensors.push_back({.name = stem + ".weight",
                         .dtype = DType::f8_e4m3,
                         .shape = {rows, cols},
                         .bytes = std::string(rows * cols, '\x38')});
      const bool is_bad = expert == "1" && leaf == std::string_view("up_proj");
      tensors.push_back({.name = stem + "." + std::string(part),
                         .dtype = dtype,
                         .shape = {rows / 32, cols / 32},
                         .bytes = one + (is_bad ? bad_bytes : one)});
    }
  }
  return open_checkpoint(write_folder(folder, config, tensors));
}

// Every type of scale, everything that is no multiplier.
TEST(ConvertDense, Fp8ScalesThatAreNoMultipliersAreRefusedByTheirPlace) {
  const TempFolder folder;
  const Json fp8 = Json::object().set("quant_method", "fp8");
  struct Case {
    DType dtype;
    std::string part;
    std::vector<std::string> bad;
    std::string good;
  };
  const auto bytes = [](float value, std::size_t size) {
    return std::string(reinterpret_cast<const char*>(&value) + 4 - size, size);
  };
  std::vector<Case> cases = {{DType::f32, "weight_scale_inv", {}, bytes(1e-40F, 4)},
                             {DType::bf16, "scale", {}, bytes(0.5F, 2)},
                             {DType::f8_e8m0, "scale", {"\xFF"}, "\x01"}};
  for (const float value :
       {0.0F, -0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN(),
        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    cases[0].bad.push_back(bytes(value, 4));
    cases[1].bad.push_back(bytes(value, 2));
  }
  int number = 0;
  for (const Case& given : cases) {
    for (const std::string& bad : given.bad) {
      const Checkpoint source = fp8_checkpoint(folder.path() / std::to_string(++number),
                                               given.dtype, given.part, bad, fp8);
      for (const ConvertFormat format : {ConvertFormat::nvfp4, ConvertFormat::mxfp4}) {
        const Error error =
            refusal_of([&] { quantize_checkpoint(source, folder.path() / "out", to(format)); });
        EXPECT_EQ(error.code(), ErrorCode::input);
        EXPECT_EQ(code_of(error), "MOXIE-M007") << error.what();
        const Finding& finding = error.findings().front();
        EXPECT_EQ(finding.where.tensor, "model.layers.0.mlp.experts.1.up_proj." + given.part);
        EXPECT_EQ(finding.where.expert, 1U);
        EXPECT_EQ(finding.where.layer, 0);
        EXPECT_NE(finding.message.find("row 0, column 1"), std::string::npos) << finding.message;
        EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
      }
    }
    const Checkpoint good = fp8_checkpoint(folder.path() / std::to_string(++number), given.dtype,
                                           given.part, given.good, fp8);
    const auto out = folder.path() / ("out" + std::to_string(number));
    EXPECT_EQ(quantize_checkpoint(good, out, to(ConvertFormat::mxfp4)).projections, 6U);
  }
}

// Only a record of MXFP4 is kept as published.
TEST(ConvertDense, AnFp8RecordIsNotKeptByTheGptOssDialect) {
  const TempFolder folder;
  Json quantization = Json::object().set("quant_method", "fp8");
  quantization.set("modules_to_not_convert", Json::array());
  const Checkpoint source = fp8_checkpoint(folder.path() / "in", DType::f32, "weight_scale_inv",
                                           std::string("\0\0\0\x3F", 4), quantization, "gpt_oss");
  const QuantizeReport report = quantize_checkpoint(source, folder.path() / "out",
                                                    to(ConvertFormat::mxfp4, DialectKind::gpt_oss));
  EXPECT_EQ(report.dialect, DialectKind::gpt_oss);
  const Checkpoint made = open_checkpoint(folder.path() / "out");
  EXPECT_EQ(made.config().find("quantization_config")->find("quant_method")->as_string(), "mxfp4");
  const MoeModel model = read_model(made);
  EXPECT_TRUE(model.findings.empty());
  EXPECT_TRUE(model.require_layer(0).problems.empty());
}

TEST(ConvertDense, HalvesAndSinglesAreReadExactly) {
  const TempFolder folder;
  std::vector<float> decoded(kInter * kHidden);
  TinyTensor half{.name = "model.layers.0.mlp.experts.0.gate_proj.weight",
                  .dtype = DType::f16,
                  .shape = {kInter, kHidden}};
  // Normal, subnormal, zero of either sign.
  for (std::uint64_t i = 0; i < decoded.size(); ++i) {
    const auto bits = static_cast<std::uint16_t>(Stream(3, {1}).word(i) & 0xBFFF);
    const int exponent = (bits >> 10) & 0x1F;
    const double mantissa = bits & 0x3FF;
    const double value =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    decoded[i] = static_cast<float>((bits & 0x8000) != 0 ? -value : value);
    half.bytes.append(reinterpret_cast<const char*>(&bits), 2);
  }
  std::vector<TinyTensor> tensors = {half, half, half};
  tensors[1].name = "model.layers.0.mlp.experts.0.up_proj.weight";
  tensors[2].name = "model.layers.0.mlp.experts.0.down_proj.weight";
  tensors[2].shape = {kHidden, kInter};
  const Checkpoint source = open_checkpoint(
      write_folder(folder.path() / "in", family_config("qwen3_moe", kHidden, kInter, 1), tensors));
  const MoeModel model = read_model(source);
  ASSERT_EQ(model.dense.size(), 1U);
  EXPECT_EQ(name_of(model.dense[0].format), "f16");
  std::vector<float> values(decoded.size(), -1.0F);
  read_values(source, model.dense[0].experts[0][0], values.data());
  for (std::uint64_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(decoded[i]));
}

TEST(ConvertDense, ValuesThatAreNotFiniteAreRefusedByTensorAndExpert) {
  const TempFolder folder;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<TinyTensor> tensors = qwen_tensors(3, 9);
    for (TinyTensor& tensor : tensors) {
      if (tensor.name != "model.layers.0.mlp.experts.2.up_proj.weight") continue;
      const std::uint16_t bits = encode_bf16(bad);
      std::memcpy(tensor.bytes.data() + 2 * (5 * kHidden + 7), &bits, 2);
    }
    const Checkpoint source = open_checkpoint(write_folder(
        folder.path() / "in", family_config("qwen3_moe", kHidden, kInter, 3), tensors));
    for (const ConvertFormat format : {ConvertFormat::nvfp4, ConvertFormat::mxfp4}) {
      const Error error =
          refusal_of([&] { quantize_checkpoint(source, folder.path() / "out", to(format)); });
      EXPECT_EQ(error.code(), ErrorCode::input);
      const Finding& finding = error.findings().front();
      EXPECT_EQ(finding.code, "MOXIE-Q002");
      EXPECT_EQ(finding.where.tensor, "model.layers.0.mlp.experts.2.up_proj.weight");
      EXPECT_EQ(finding.where.expert, 2U);
      EXPECT_EQ(finding.where.layer, 0);
      EXPECT_NE(finding.message.find("row 5, column 7"), std::string::npos) << finding.message;
      EXPECT_EQ(folder_bytes(folder.path()).count("out/"), 0U);
    }
    std::filesystem::remove_all(folder.path() / "in");
  }
}

}  // namespace
}  // namespace moxie::test
