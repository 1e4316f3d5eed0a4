// SPDX-License-Identifier: Apache-2.0
// The output folder: the same for any number of threads, whole or absent, and never the input's.
#include <cmath>

#include "convert/convert_rig.hpp"

namespace moxie::test {
namespace {

Checkpoint dense_synth(const TempFolder& folder, const std::string& name, DenseFormat format) {
  SynthOptions options = synth_options();
  options.dense = format;
  options.pattern = Pattern::outliers;
  synthesise(folder.path() / name, options);
  return open_checkpoint(folder.path() / name);
}

TEST(ConvertFolder, SameBytesAndSameFiguresForAnyNumberOfThreads) {
  const TempFolder folder;
  for (const DenseFormat source : {DenseFormat::bf16, DenseFormat::fp8_block}) {
    const std::string name(name_of(source));
    const Checkpoint in = dense_synth(folder, name, source);
    for (const ConvertFormat format : {ConvertFormat::nvfp4, ConvertFormat::mxfp4}) {
      std::optional<QuantizeReport> first;
      std::filesystem::path first_out;
      for (const unsigned threads : {1U, 2U, 5U}) {
        const Threads limit(threads);
        const auto out =
            folder.path() / (name + std::string(name_of(format)) + std::to_string(threads));
        QuantizeOptions options = to(format);
        options.recipe = ConvertRecipe::mse;
        // Another batch size, too.
        if (threads == 2) options.memory_bytes = 1 << 20;
        QuantizeReport report = quantize_checkpoint(in, out, options);
        if (!first) {
          first = std::move(report);
          first_out = out;
          continue;
        }
        EXPECT_TRUE(same_folders(first_out, out));
        EXPECT_EQ(report.total.noise, first->total.noise);
        EXPECT_EQ(report.total.signal, first->total.signal);
        EXPECT_EQ(report.total.max_error, first->total.max_error);
        ASSERT_EQ(report.worst_first.size(), first->worst_first.size());
        for (std::size_t i = 0; i < report.worst_first.size(); ++i) {
          EXPECT_EQ(report.worst_first[i].expert, first->worst_first[i].expert);
          EXPECT_EQ(report.worst_first[i].projection, first->worst_first[i].projection);
          EXPECT_EQ(report.worst_first[i].stats.noise, first->worst_first[i].stats.noise);
        }
      }
    }
  }
}

TEST(ConvertFolder, DenseSyntheticCheckpointsAreReadAndConvertedWithAnSnr) {
  const TempFolder folder;
  for (const DenseFormat source : {DenseFormat::bf16, DenseFormat::fp8_block}) {
    SynthOptions options = synth_options();
    options.dense = source;
    const std::string name(name_of(source));
    synthesise(folder.path() / name, options);
    const Checkpoint in = open_checkpoint(folder.path() / name);
    const MoeModel model = read_model(in);
    EXPECT_EQ(model.dense.size(), 2U);
    EXPECT_FALSE(model.format);
    EXPECT_TRUE(model.findings.empty());
    const QuantizeReport report =
        quantize_checkpoint(in, folder.path() / (name + "-out"), to(ConvertFormat::nvfp4));
    EXPECT_EQ(report.source, name);
    EXPECT_EQ(report.dialect, DialectKind::deepseek);
    EXPECT_GT(report.total.snr_db(), 18.0);
    EXPECT_LT(report.total.snr_db(), 24.0);
    const MoeModel made = read_model(open_checkpoint(folder.path() / (name + "-out")));
    EXPECT_EQ(made.dialect, "deepseek-v4-nvfp4");
    EXPECT_TRUE(made.findings.empty());
    for (const LayerExperts& layer : made.layers) EXPECT_TRUE(layer.problems.empty());
  }
}

TEST(ConvertFolder, AnInterruptedConversionLeavesNothing) {
  const TempFolder folder;
  const Checkpoint in = dense_synth(folder, "in", DenseFormat::bf16);
  const auto before = folder_bytes(folder.path());
  for (const int calls : {0, 1, 3, 20}) {
    QuantizeOptions options = to(ConvertFormat::nvfp4);
    int left = calls;
    options.progress = [&left](std::uint64_t, std::uint64_t) { return left-- > 0; };
    const Error error =
        refusal_of([&] { quantize_checkpoint(in, folder.path() / "out", options); });
    EXPECT_EQ(error.code(), ErrorCode::interrupted);
    EXPECT_EQ(folder_bytes(folder.path()), before);
  }
  QuantizeOptions options = to(ConvertFormat::nvfp4);
  std::uint64_t last = 0;
  options.progress = [&last](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, total);
    last = done;
    return true;
  };
  const QuantizeReport report = quantize_checkpoint(in, folder.path() / "out", options);
  EXPECT_EQ(last, report.bytes);
}

TEST(ConvertFolder, HostileOutputsAreRefusedBeforeAnyByte) {
  const TempFolder folder;
  const Checkpoint in = dense_synth(folder, "in", DenseFormat::bf16);
  std::filesystem::create_directories(folder.path() / "full");
  std::ofstream(folder.path() / "full" / "x") << "x";
  std::ofstream(folder.path() / "file") << "x";
  std::filesystem::create_directory_symlink(folder.path() / "in", folder.path() / "link");
  const auto before = folder_bytes(folder.path() / "in");
  for (const std::string out :
       {"full", "file", "in", "in/new", "in/a/b", "link/new", "in/../in/x"}) {
    expect_refusal([&] { quantize_checkpoint(in, folder.path() / out, to(ConvertFormat::nvfp4)); },
                   ErrorCode::usage, "MOXIE-U002");
  }
  expect_refusal([&] { quantize_checkpoint(in, {}, to(ConvertFormat::nvfp4)); }, ErrorCode::usage,
                 "MOXIE-U002");
  EXPECT_EQ(folder_bytes(folder.path() / "in"), before);
  expect_refusal(
      [&] { quantize_checkpoint(in, folder.path() / "file" / "x", to(ConvertFormat::nvfp4)); },
      ErrorCode::environment, "MOXIE-E001");
  QuantizeOptions little = to(ConvertFormat::nvfp4);
  little.memory_bytes = 1000;
  expect_refusal([&] { quantize_checkpoint(in, folder.path() / "out", little); }, ErrorCode::usage,
                 "MOXIE-K004");
  // An empty folder is taken.
  std::filesystem::create_directories(folder.path() / "empty");
  EXPECT_EQ(quantize_checkpoint(in, folder.path() / "empty", to(ConvertFormat::nvfp4)).projections,
            18U);
}

TEST(ConvertFolder, RecipesAndFormatsThatDoNotGoTogetherAreRefused) {
  const TempFolder folder;
  const Checkpoint in = dense_synth(folder, "in", DenseFormat::bf16);
  const auto refused = [&](const QuantizeOptions& options, const std::string& code) {
    expect_refusal([&] { quantize_checkpoint(in, folder.path() / "out", options); },
                   ErrorCode::unsupported, code);
  };
  refused(to(ConvertFormat::nvfp4, {}, ConvertRecipe::ceil), "MOXIE-Q004");
  refused(to(ConvertFormat::nvfp4, {}, ConvertRecipe::floor), "MOXIE-Q004");
  refused(to(ConvertFormat::mxfp4, {}, ConvertRecipe::four_over_six), "MOXIE-Q004");
  refused(to(ConvertFormat::mxfp4, {}, ConvertRecipe::amax), "MOXIE-Q004");
  refused(to(ConvertFormat::mxfp4, {}, ConvertRecipe::fp8_closed), "MOXIE-Q004");
  refused(to(ConvertFormat::fp8), "MOXIE-Q006");
  refused(to(ConvertFormat::mxfp4, DialectKind::modelopt), "MOXIE-Q005");
  refused(to(ConvertFormat::nvfp4, DialectKind::gpt_oss), "MOXIE-Q005");
}

TEST(ConvertFolder, Q09_WidthsThatAreNoWholeGroupsAreRefused) {
  const TempFolder folder;
  SynthOptions options = synth_options();
  options.dense = DenseFormat::bf16;
  options.hidden = 48;
  options.inter = 33;
  synthesise(folder.path() / "in", options);
  const Checkpoint in = open_checkpoint(folder.path() / "in");
  for (const ConvertFormat format : {ConvertFormat::nvfp4, ConvertFormat::mxfp4}) {
    expect_refusal([&] { quantize_checkpoint(in, folder.path() / "out", to(format)); },
                   ErrorCode::unsupported, "MOXIE-Q001");
  }
}

// Block-scaled FP8 beside the experts can only be described by the config that has its record.
TEST(ConvertFolder, OtherFp8TensorsNeedTheirRecord) {
  const TempFolder folder;
  Json config = family_config("deepseek_v3", 64, 32, 1);
  config.set("n_routed_experts", 1)
      .set("quantization_config", Json::object().set("quant_method", "fp8"));
  std::vector<TinyTensor> tensors;
  for (const auto& [leaf, rows, cols] :
       {std::tuple("gate_proj", 32, 64), std::tuple("up_proj", 32, 64),
        std::tuple("down_proj", 64, 32)}) {
    tensors.push_back(bf16_tensor(
        std::string("model.layers.0.mlp.experts.0.") + leaf + ".weight",
        {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cols)}, random_values(1)));
  }
  tensors.push_back({.name = "model.layers.0.self_attn.o_proj.weight",
                     .dtype = DType::f8_e4m3,
                     .shape = {2, 2},
                     .bytes = "abcd"});
  const Checkpoint in = open_checkpoint(write_folder(folder.path() / "in", config, tensors));
  for (const DialectKind dialect : {DialectKind::modelopt, DialectKind::compressed_tensors}) {
    expect_refusal(
        [&] { quantize_checkpoint(in, folder.path() / "out", to(ConvertFormat::nvfp4, dialect)); },
        ErrorCode::unsupported, "MOXIE-Q005");
  }
  const QuantizeReport report =
      quantize_checkpoint(in, folder.path() / "out", to(ConvertFormat::nvfp4));
  EXPECT_EQ(report.dialect, DialectKind::deepseek);
  const Checkpoint made = open_checkpoint(folder.path() / "out");
  const Json& quantization = *made.config().find("quantization_config");
  EXPECT_EQ(quantization.find("quant_method")->as_string(), "fp8");
  EXPECT_EQ(quantization.find("moe_quant_algo")->as_string(), "W4A16_NVFP4");
  EXPECT_TRUE(read_model(made).require_layer(0).problems.empty());
}

// Packed FP4 that stays would be called unquantised; only DeepSeek's config leaves prediction
// blocks open.
TEST(ConvertFolder, OtherPackedTensorsAreRefusedButForDeepseeksPredictionBlocks) {
  const TempFolder folder;
  const Checkpoint with_mtp =
      tiny_checkpoint(folder, {.dialect = TinyDialect::deepseek_v4, .mtp_blocks = 1}, "mtp");
  expect_refusal(
      [&] {
        quantize_checkpoint(with_mtp, folder.path() / "out",
                            to(ConvertFormat::nvfp4, DialectKind::compressed_tensors));
      },
      ErrorCode::unsupported, "MOXIE-Q005");
  const QuantizeReport report =
      quantize_checkpoint(with_mtp, folder.path() / "out", to(ConvertFormat::nvfp4));
  EXPECT_EQ(report.findings.back().code, "MOXIE-Q011");
  const MoeModel made = read_model(open_checkpoint(folder.path() / "out"));
  for (const LayerExperts& layer : made.layers) {
    EXPECT_TRUE(layer.problems.empty());
    EXPECT_EQ(layer.format, layer.mtp ? BlockFormat::mxfp4 : BlockFormat::nvfp4);
  }
  TinyTensor shared{.name = "model.layers.0.mlp.shared_experts.up_proj.weight",
                    .dtype = DType::u8,
                    .shape = {2, 4},
                    .bytes = "12345678"};
  const Checkpoint with_shared =
      tiny_checkpoint(folder, {.dialect = TinyDialect::modelopt, .extra = {shared}}, "shared");
  expect_refusal(
      [&] {
        quantize_checkpoint(with_shared, folder.path() / "no",
                            to(ConvertFormat::nvfp4, DialectKind::compressed_tensors));
      },
      ErrorCode::unsupported, "MOXIE-Q005");
}

TEST(ConvertFolder, ExpertsWithoutAGateHaveTwoProjections) {
  const TempFolder folder;
  Json config;
  config.set("model_type", "nemotron_h").set("hidden_size", 64).set("moe_intermediate_size", 32);
  config.set("n_routed_experts", 2).set("num_experts_per_tok", 1).set("num_hidden_layers", 1);
  std::vector<TinyTensor> tensors;
  for (const std::string expert : {"0", "1"}) {
    const std::string stem = "backbone.layers.0.mixer.experts." + expert + ".";
    tensors.push_back(bf16_tensor(stem + "up_proj.weight", {32, 64}, random_values(1)));
    tensors.push_back(bf16_tensor(stem + "down_proj.weight", {64, 32}, random_values(2)));
  }
  const Checkpoint in = open_checkpoint(write_folder(folder.path() / "in", config, tensors));
  quantize_checkpoint(in, folder.path() / "mx", to(ConvertFormat::mxfp4));
  const QuantizeReport report = quantize_checkpoint(open_checkpoint(folder.path() / "mx"),
                                                    folder.path() / "nv", to(ConvertFormat::nvfp4));
  EXPECT_EQ(report.projections, 4U);
  EXPECT_EQ(report.changed_elems, 0U);
  EXPECT_TRUE(read_model(open_checkpoint(folder.path() / "nv")).require_layer(0).problems.empty());
  expect_refusal(
      [&] {
        quantize_checkpoint(in, folder.path() / "no",
                            to(ConvertFormat::mxfp4, DialectKind::gpt_oss));
      },
      ErrorCode::unsupported, "MOXIE-Q005");
}

TEST(ConvertFolder, ActivationsGiveInputScalesToEveryDialect) {
  const TempFolder folder;
  const Checkpoint in = dense_synth(folder, "in", DenseFormat::bf16);
  const auto spike = [](float value) {
    return [value](std::uint64_t i) { return i == 77 ? -value : 0.25F; };
  };
  const auto acts = folder.path() / "acts" / "acts.safetensors";
  std::filesystem::create_directories(acts.parent_path());
  write_tensors(acts, {bf16_tensor("layers.0.hidden_states", {4, 160}, spike(5.0F)),
                       bf16_tensor("hidden_states", {2, 160}, spike(3.0F)),
                       bf16_tensor("intermediate", {3, 96}, spike(7.0F))});
  for (const DialectKind dialect : {DialectKind::modelopt, DialectKind::compressed_tensors}) {
    QuantizeOptions options = to(ConvertFormat::nvfp4, dialect);
    options.activations = acts;
    const auto out = folder.path() / std::string(name_of(dialect));
    const QuantizeReport report = quantize_checkpoint(in, out, options);
    EXPECT_TRUE(report.input_scales);
    const MoeModel model = read_model(open_checkpoint(out));
    EXPECT_TRUE(model.config.input_scales);
    for (const auto& [layer, amax] : {std::pair(0, 5.0F), std::pair(1, 3.0F)}) {
      const ExpertTensors& expert = model.require_layer(layer).experts[1];
      EXPECT_NEAR(read_scalar(model.checkpoint, expert.gate.act_dequant_mul), amax / 2688.0F, 1e-9);
      EXPECT_NEAR(read_scalar(model.checkpoint, expert.up.act_dequant_mul), amax / 2688.0F, 1e-9);
      EXPECT_NEAR(read_scalar(model.checkpoint, expert.down.act_dequant_mul), 7.0F / 2688.0F, 1e-9);
    }
  }
  const auto refused = [&](const std::vector<TinyTensor>& tensors, ConvertFormat format,
                           ErrorCode exit, const std::string& code) {
    write_tensors(acts, tensors);
    QuantizeOptions options = to(format);
    options.activations = acts;
    expect_refusal([&] { quantize_checkpoint(in, folder.path() / "out", options); }, exit, code);
  };
  const auto hidden = bf16_tensor("hidden_states", {2, 160}, spike(3.0F));
  refused({hidden}, ConvertFormat::nvfp4, ErrorCode::input, "MOXIE-Q009");
  refused({hidden, bf16_tensor("intermediate", {3, 95}, spike(1.0F))}, ConvertFormat::nvfp4,
          ErrorCode::input, "MOXIE-Q009");
  refused({hidden, bf16_tensor("intermediate", {3, 96}, spike(NAN))}, ConvertFormat::nvfp4,
          ErrorCode::input, "MOXIE-Q009");
  refused({hidden, bf16_tensor("intermediate", {3, 96}, [](std::uint64_t) { return 0.0F; })},
          ConvertFormat::nvfp4, ErrorCode::input, "MOXIE-Q009");
  refused({hidden}, ConvertFormat::mxfp4, ErrorCode::unsupported, "MOXIE-Q005");
}

TEST(ConvertFolder, AnAbsentShardIsRefused) {
  const TempFolder folder;
  dense_synth(folder, "in", DenseFormat::bf16);
  std::filesystem::remove(folder.path() / "in" / "model-00002-of-00002.safetensors");
  const Checkpoint in = open_checkpoint(folder.path() / "in");
  const Error error =
      refusal_of([&] { quantize_checkpoint(in, folder.path() / "out", to(ConvertFormat::nvfp4)); });
  EXPECT_EQ(error.code(), ErrorCode::input);
  EXPECT_EQ(code_of(error), "MOXIE-C010");
  EXPECT_EQ(error.findings().front().severity, Severity::error);
}

}  // namespace
}  // namespace moxie::test
