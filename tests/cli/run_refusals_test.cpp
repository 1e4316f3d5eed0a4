// SPDX-License-Identifier: Apache-2.0
// What moxie run refuses, with which exit code, before it computes anything.
#include <sys/stat.h>

#include <filesystem>

#include "cli/run_command.hpp"
#include "moxie/catalog.hpp"
#include "moxie/device.hpp"
#include "support/forced_kernels.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie {
namespace {

using test::expect_refusal;
using test::Words;

class RunRefusals : public test::RunCommand {
 protected:
  RunRefusals() : model_(synth("model")) {}

  std::string model_;
};

TEST_F(RunRefusals, NameValuesThatCanNotBeC01) {
  const std::pair<Words, const char*> wrong[] = {
      {{"--tp", "0"}, "MOXIE-P001"},
      {{"--tp", "1,65"}, "MOXIE-P001"},
      {{"--tp", "3..1"}, "MOXIE-U001"},
      {{"--tp", "1,,3"}, "MOXIE-U001"},
      {{"--tp", "-1"}, "MOXIE-U001"},
      {{"--repeat", "0"}, "MOXIE-U001"},
      {{"--threads", "0"}, "MOXIE-U001"},
      {{"--tokens", "x"}, "MOXIE-U001"},
      {{"--layer", "-1"}, "MOXIE-U001"},
      {{"--top-k", "0"}, "MOXIE-U001"},
      {{"--top-k", "9"}, "MOXIE-R007"},
      {{"--routing", "even"}, "MOXIE-U001"},
      {{"--routing", "zipf:"}, "MOXIE-U001"},
      {{"--routing", "hot:"}, "MOXIE-U001"},
      {{"--routing", "zipf:x"}, "MOXIE-U001"},
      {{"--routing", "zipf:-1"}, "MOXIE-U003"},
      {{"--routing", "one:8"}, "MOXIE-U003"},
      {{"--routing", "one:"}, "MOXIE-U001"},
      {{"--routing", "file:"}, "MOXIE-U001"},
      {{"--output", at("absent/out")}, "MOXIE-U003"},
      {{"--output", model_}, "MOXIE-U003"},
      {{"--output", ""}, "MOXIE-U003"},
      {{"--output", "/proc/out"}, "MOXIE-U003"},
      {{"--output", model_ + "/config.json"}, "MOXIE-U003"}};
  for (const auto& [options, code] : wrong) expect_refusal(2, code, Words{"run", model_} + options);
}

// A result never replaces what is no file, nor a part of what ran.
TEST_F(RunRefusals, KeepWhatIsNoPlaceForAResult) {
  namespace fs = std::filesystem;
  const fs::path fifo = at("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  fs::create_symlink("nowhere", at("link"));
  const std::string shard = model_ + "/model-00001-of-00001.safetensors";
  ASSERT_TRUE(fs::exists(shard));
  const std::string packed = pack(model_, "packed", {});
  for (const std::string& place : {fifo.string(), at("link"), shard})
    expect_refusal(2, "MOXIE-U003", {"run", model_, "--tokens", "1", "--output", place});
  for (const char* inside : {"/moxie-plan.json", "/new", "/rank-000/new.safetensors"})
    expect_refusal(2, "MOXIE-U003", {"run", packed, "--output", packed + inside});
  // A new file in a checkpoint's folder would be a shard of it the next time.
  expect_refusal(2, "MOXIE-U003", {"run", model_, "--output", model_ + "/new.safetensors"});
  expect_refusal(2, "MOXIE-U003",
                 {"run", shard, "--output", model_ + "/model.safetensors.index.json"});
  EXPECT_TRUE(fs::is_fifo(fifo));
  EXPECT_TRUE(fs::is_symlink(at("link")));
  test::expect_success({"run", model_, "--tokens", "1", "-q"});
  test::expect_success({"run", packed, "--tokens", "1", "-q"});
}

// Sizes are refused by arithmetic, before anything of that size is made.
TEST_F(RunRefusals, NameSizesThatNoCallMayHave) {
  for (const char* tokens : {"36028797018963968", "36028797018963969", "18446744073709551615",
                             "99999999999999", "4611686018427387904"}) {
    expect_refusal(2, "MOXIE-R008", {"run", model_, "--tokens", tokens});
    expect_refusal(2, "MOXIE-R008", {"run", model_, "--tokens", tokens, "--routing", "model"});
  }
  // Of several sizes too, before the others take memory.
  expect_refusal(2, "MOXIE-R008",
                 {"bench", "--problem", "deepseek-v4-flash", "--experts", "2", "--tokens",
                  "1..99999999999999"});
  expect_refusal(2, "MOXIE-R008",
                 {"bench", "--problem", "deepseek-v4-flash", "--experts", "2", "--tokens",
                  "1..9223372036854775808"});
  for (const char* top_k : {"4294967296", "9223372036854775808"})
    expect_refusal(2, "MOXIE-R007",
                   {"run", model_, "--tokens", "1", "--routing", "one:1", "--top-k", top_k});
}

TEST_F(RunRefusals, NameWhatIsNotThereC01) {
  expect_refusal(3, "MOXIE-C001", {"run", at("absent")});
  expect_refusal(3, "MOXIE-M011", {"run", model_, "--layer", "7"});
  std::filesystem::copy(model_ + "/config.json", at("config.json"));
  expect_refusal(3, "MOXIE-M011", {"run", at("config.json")});
  expect_refusal(3, "MOXIE-R005", {"run", model_, "--input", at("absent")});
  expect_refusal(3, "MOXIE-R005", {"run", model_, "--routing", "file:" + at("absent")});
}

// Not built is 4, built and without the device is 5; both before a weight is read.
TEST_F(RunRefusals, NameTheDeviceThatIsNotHereC01) {
  const GpuReport gpus = list_gpus();
  for (const Target target : {Target::sm90, Target::sm100, Target::sm120}) {
    if (device_refusal(target, gpus).empty()) continue;
    const std::string name(name_of(target));
    if (gpus.built) {
      expect_refusal(5, "MOXIE-E004", {"run", model_, "--target", name});
    } else {
      expect_refusal(4, "MOXIE-R001", {"run", model_, "--target", name});
    }
  }
}

TEST_F(RunRefusals, NameWhatNoKernelRunsC01) {
  expect_refusal(4, "MOXIE-P002", {"run", model_, "--target", "sm90", "--act-format", "int8"}, {},
                 kernel_catalog().size());
  expect_refusal(4, "MOXIE-P004", {"run", model_, "--ep", "9"});
  // A function that clamps, without its limit.
  test::write_tiny(folder_.path() / "unlimited", {});
  expect_refusal(4, "MOXIE-R001", {"run", at("unlimited")});
}

// The input's rows are the experts'; the router of a latent model reads the model's.
TEST_F(RunRefusals, SayThatARouterReadsAnotherWidth) {
  test::TinyOptions options{.dialect = test::TinyDialect::modelopt, .layers = 1, .gated = false};
  options.config = test::tiny_config(options);
  options.config->set("moe_latent_size", options.hidden).set("hidden_size", 256);
  const std::string gate = "model.layers.0.mlp.gate.";
  options.extra = {{gate + "weight", DType::bf16, {3, 256}, std::string(3 * 256 * 2, '\0')},
                   {gate + "e_score_correction_bias", DType::f32, {3}, std::string(12, '\0')}};
  const std::string latent = test::write_tiny(at("latent"), options).string();
  const std::string line =
      expect_refusal(4, "MOXIE-R004", {"run", latent, "--tokens", "3", "--routing", "model"});
  EXPECT_TRUE(test::has(line, "rows of 256 for the router")) << line;
  EXPECT_TRUE(test::has(line, "rows of 64 for the experts")) << line;
  EXPECT_TRUE(test::has(line, "--routing file:PATH")) << line;
  test::expect_success({"run", latent, "--tokens", "3", "--check", "-q"});
}

TEST_F(RunRefusals, NameTheTensorOfAnInputThatIsWrong) {
  const auto refused = [&](const std::vector<test::TinyTensor>& tensors, const Words& more = {}) {
    return expect_refusal(3, "MOXIE-R005",
                          Words{"run", model_, "--check", "--input", input(tensors)} + more);
  };
  for (const std::int64_t id : {std::int64_t{8}, std::int64_t{-2}, std::int64_t{1} << 32}) {
    const std::string line = refused({activations(2), ids({2, 2}, {0, 1, id, 2}), weights({2, 2})});
    EXPECT_TRUE(test::has(line, "topk_ids")) << line;
    EXPECT_TRUE(test::has(line, "token 1, column 0")) << line;
  }
  refused({ids({2, 2}, {0, 1, 2, 3}), weights({2, 2})});
  refused({activations(2), weights({2, 2})});
  refused({activations(2), ids({2, 3}, {0, 1, 2, 3, 4, 5}), weights({2, 3})});
  // A hash layer needs token ids, and an input is taken as it is.
  const std::string line = refused({activations(2)}, {"--routing", "model"});
  EXPECT_TRUE(test::has(line, "token_ids")) << line;
}

TEST_F(RunRefusals, NameAnInputThatContradictsTheOptions) {
  const std::string routed = input({activations(2), ids({2, 2}, {0, 1, 2, 3}), weights({2, 2})});
  expect_refusal(2, "MOXIE-R006", {"run", model_, "--input", routed, "--tokens", "3"});
  for (const char* routing : {"uniform", "model"})
    expect_refusal(2, "MOXIE-R013", {"run", model_, "--input", routed, "--routing", routing});
}

TEST_F(RunRefusals, NameAnOptionThatContradictsAPackedSet) {
  const std::string set = pack(model_, "set", {"--tp", "3", "--ep", "2"});
  for (const Words& options :
       {Words{"--tp", "1"}, Words{"--tp", "3,1"}, Words{"--ep", "1"}, Words{"--format", "nvfp4"},
        Words{"--act-format", "fp8"}, Words{"--target", "sm90"}, Words{"--kernel-align", "64"}})
    expect_refusal(2, "MOXIE-R013", Words{"run", set} + options);
  {
    const test::ForcedKernels forced("cuda");
    expect_refusal(2, "MOXIE-R013", {"run", set});
  }
  expect_refusal(3, "MOXIE-M016", {"run", set, "--routing", "model"});
  expect_refusal(3, "MOXIE-K005", {"run", set, "--layer", "5"});
  std::filesystem::remove_all(set + "/rank-004");
  expect_refusal(3, "MOXIE-K005", {"run", set});
}

}  // namespace
}  // namespace moxie
