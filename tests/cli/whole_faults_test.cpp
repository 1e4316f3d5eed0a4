// SPDX-License-Identifier: Apache-2.0
// Faults around the experts of a whole model: what doctor, inspect, pack and verify say of them.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "cli/command.hpp"
#include "cli/run_command.hpp"
#include "support/whole_checkpoint.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

using test::expect_document;
using test::expect_refusal;
using test::expect_success;
using test::TinyTensor;
using test::Words;

class WholeFaults : public testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }

  std::string write(const std::string& name, const test::TinyEdit& edit) const {
    const test::TinyEdit sound = [](TinyTensor& tensor) {
      for (char& byte : tensor.bytes)
        if (tensor.dtype == DType::f8_e4m3 && byte == 0x7F) byte = 0x7E;
      return true;
    };
    return test::write_whole(folder_.path() / name,
                             {.config = test::narrow_v4(), .edits = {sound, edit}})
        .string();
  }
  static std::vector<std::string> answer_no(const Words& words) {
    const test::Outcome outcome = test::moxie_says(words + Words{"--json"});
    EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
    return test::codes_of(test::document_of(outcome, words[0]));
  }

  test::TempFolder folder_;
};

TEST_F(WholeFaults, AMissingTensorIsSeenByDoctorAndRefusedByInspectAndPack) {
  const std::string model =
      write("model", [](TinyTensor& tensor) { return tensor.name != "layers.0.attn.wo_b.scale"; });
  EXPECT_EQ(answer_no({"doctor", model}), std::vector<std::string>{"MOXIE-K013"});
  expect_refusal(3, "MOXIE-K013", {"inspect", model});
  expect_refusal(3, "MOXIE-K013", {"pack", model, "--out", at("out")});
  EXPECT_TRUE(expect_document({"doctor", model, "--layers", "1"}).find("ok")->as_bool());
}

// What pack refuses without reading a tensor: doctor answers no, inspect and plan warn.
TEST_F(WholeFaults, WhatPackRefusesOfAConfigIsNoSecretOfPack) {
  const auto expect_seen = [&](const char* code, const std::string& said) {
    expect_refusal(3, code, {"pack", at("model"), "--out", at("out"), "--tp", "3"});
    EXPECT_EQ(answer_no({"doctor", at("model")}), std::vector<std::string>{code});
    for (const char* verb : {"inspect", "plan"}) {
      const test::Outcome outcome = expect_success({verb, at("model")});
      EXPECT_TRUE(test::has(outcome.err, std::string(code) + " warning: ")) << outcome.err;
      EXPECT_TRUE(test::has(outcome.err, said)) << outcome.err;
      EXPECT_EQ(test::codes_of(expect_document({verb, at("model")})),
                std::vector<std::string>{code});
    }
  };
  const Json config = test::narrow_v4();
  for (const char* key : {"o_groups", "vocab_size", "head_dim", "n_shared_experts"}) {
    write("model", [](TinyTensor&) { return true; });
    folder_.write("model/config.json", Json(config).set(key, Json()).dump());
    expect_seen("MOXIE-K015", key);
    const std::string plan = expect_success({"plan", at("model")}).err;
    EXPECT_TRUE(test::has(plan, "no axis but moe_inter")) << plan;
    EXPECT_TRUE(expect_document({"doctor", at("model"), "--layers", "0"}).find("ok")->as_bool());
  }
  folder_.write("model/config.json",
                Json(config).set("compress_ratios", test::number_list({0})).dump());
  expect_seen("MOXIE-K016", "layer 1");
}

TEST_F(WholeFaults, PlanWarnsOfATensorThatPackMisses) {
  const std::string model = write("model", [](TinyTensor& tensor) {
    return tensor.name != "layers.0.attn.wo_a.weight" && tensor.name != "norm.weight";
  });
  expect_refusal(3, "MOXIE-K013", {"pack", model, "--out", at("out")}, {}, 2);
  const test::Outcome planned = expect_success({"plan", model, "--tp", "3"});
  EXPECT_TRUE(test::has(planned.err, "layers.0.attn.wo_a.weight")) << planned.err;
  EXPECT_TRUE(test::has(planned.err, "norm.weight")) << planned.err;
  const Json bare = expect_document({"plan", model + "/config.json"});
  EXPECT_TRUE(bare.find("findings")->elements().empty());
  const std::string few = write("few", [](TinyTensor& tensor) {
    return tensor.name.find(".ffn.experts.") != std::string::npos || tensor.name == "embed.weight";
  });
  const Json document = expect_document({"plan", few});
  EXPECT_EQ(document.find("findings")->elements().size(), 21U) << "the last says how many more";
}

// Nobody has looked at what is not here: that is no clean bill of health.
TEST_F(WholeFaults, AShardThatIsNotHereIsNotCalledExamined) {
  expect_success({"synth", at("model"), "--model", "tiny", "--whole", "--num-layers", "2", "-q"});
  const fs::path shard = at("model/model-00001-of-00004.safetensors");
  ASSERT_TRUE(fs::exists(shard));
  fs::remove(shard);
  for (const Words& more : {Words{}, Words{"--deep"}, Words{"--layers", "0"}}) {
    EXPECT_EQ(answer_no(Words{"doctor", at("model")} + more),
              std::vector<std::string>{"MOXIE-C010"});
  }
  const test::Outcome said = test::moxie_says({"doctor", at("model")});
  EXPECT_TRUE(test::has(said.out, "2 of 3 layers examined")) << said.out;
  EXPECT_TRUE(test::has(said.err, "could not be examined")) << said.err;
  EXPECT_TRUE(test::has(said.err, shard.filename().string())) << said.err;
  const test::Outcome other = expect_success({"doctor", at("model"), "--layers", "1"});
  EXPECT_TRUE(test::has(other.out, ": 1 layer examined")) << other.out;
  EXPECT_TRUE(test::has(other.out, "verdict: passed\n")) << other.out;
  expect_success({"inspect", at("model")});
}

// Every machine may pack its own rank, and a verdict of one says nothing of the others.
TEST_F(WholeFaults, RanksThatAreNotHereAreNamed) {
  const std::string model = write("model", [](TinyTensor&) { return true; });
  expect_success({"pack", model, "--out", at("set"), "--tp", "3", "--rank", "1"});
  for (const char* verb : {"doctor", "inspect"}) {
    const test::Outcome outcome = expect_success({verb, at("set")});
    EXPECT_TRUE(test::has(outcome.err, "MOXIE-V004 warning: ")) << outcome.err;
    EXPECT_TRUE(test::has(outcome.err, "were not looked at: 0, 2")) << outcome.err;
    EXPECT_EQ(test::codes_of(expect_document({verb, at("set")})),
              (std::vector<std::string>{"MOXIE-K009", "MOXIE-V004"}));
  }
  const std::string doctor = expect_success({"doctor", at("set"), "--deep"}).out;
  EXPECT_TRUE(test::has(doctor, "2 layers on 1 of 3 ranks examined")) << doctor;
  EXPECT_TRUE(test::has(doctor, "verdict: passed, of what is here\n")) << doctor;
  EXPECT_EQ(answer_no({"doctor", at("set"), "--layers", "9"}),
            (std::vector<std::string>{"MOXIE-K009", "MOXIE-V004", "MOXIE-K005"}));
}

TEST_F(WholeFaults, ABadValueIsSeenByDoctorDeep) {
  const auto planted = [&](const std::string& name, std::uint64_t place, const std::string& bytes) {
    return write(name, [&](TinyTensor& tensor) {
      if (tensor.name == name) tensor.bytes.replace(place, bytes.size(), bytes);
      return true;
    });
  };
  const std::string scale = planted("layers.0.attn.wq_b.scale", 1, "\xFF");
  expect_success({"doctor", scale});
  EXPECT_EQ(answer_no({"doctor", scale, "--deep"}), std::vector<std::string>{"MOXIE-K003"});
  const std::string bias = planted("mtp.0.ffn.gate.bias", 4, std::string("\0\0\x80\x7F", 4));
  EXPECT_EQ(answer_no({"doctor", bias, "--deep"}), std::vector<std::string>{"MOXIE-M016"});
  expect_refusal(3, "MOXIE-M016", {"pack", bias, "--out", at("out")});
  const std::string head = planted("head.weight", 0, std::string("\xC0\x7F", 2));
  EXPECT_EQ(answer_no({"doctor", head, "--deep"}), std::vector<std::string>{"MOXIE-K018"});
}

// Sizes and checksums agree; what is gone only the plan tells.
TEST_F(WholeFaults, ATensorThatARankLostIsSeenByDoctor) {
  const std::string model = write("model", [](TinyTensor&) { return true; });
  expect_success({"pack", model, "--out", at("set"), "--tp", "3"});
  expect_success({"verify", at("set"), "--against", model});
  EXPECT_TRUE(expect_document({"doctor", at("set"), "--deep"}).find("ok")->as_bool());
  const fs::path rank = fs::path(at("set")) / "rank-001";
  const auto rewrite = [&](const std::string& name, const test::TinyEdit& edit) {
    const std::string intact = test::read_bytes(rank / name);
    std::vector<TinyTensor> tensors;
    {
      const Checkpoint packed = open_checkpoint(rank / name);
      for (const TensorInfo& tensor : packed.tensors()) {
        const auto bytes = packed.bytes(tensor);
        TinyTensor copy{tensor.name, tensor.dtype, tensor.shape,
                        std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
        if (edit(copy)) tensors.push_back(std::move(copy));
      }
    }
    test::write_tensors(rank / name, tensors);
    const std::string bytes = test::read_bytes(rank / name);
    Json list = Json::parse(test::read_bytes(rank / "files.json"), "files.json");
    Json files = *list.find("files");
    files.set(name, Json::object().set("bytes", bytes.size()).set("xxh3_128", hash_hex(bytes)));
    folder_.write("set/rank-001/files.json", list.set("files", std::move(files)).dump());
  };
  rewrite("model-00000.safetensors",
          [](TinyTensor& tensor) { return tensor.name != "layers.0.attn.wkv.scale"; });
  for (const Words& more : {Words{}, Words{"--deep"}, Words{"--layers", "0"}}) {
    EXPECT_EQ(answer_no(Words{"doctor", at("set")} + more),
              (std::vector<std::string>{"MOXIE-K009", "MOXIE-V004"}));
  }
  rewrite("model-top.safetensors", [](TinyTensor& tensor) {
    if (tensor.name == "norm.weight") tensor.dtype = DType::f16;
    return true;
  });
  EXPECT_EQ(answer_no({"doctor", at("set")}),
            (std::vector<std::string>{"MOXIE-K009", "MOXIE-V004", "MOXIE-V004"}));
}

TEST_F(WholeFaults, ANumericCheckThatIsRefusedMakesNoProofAndLeavesAnOlderOne) {
  const std::string model = write("model", [](TinyTensor&) { return true; });
  expect_success({"pack", model, "--out", at("set"), "--tp", "2"});
  const Words verify = {"verify", at("set"), "--against", model};
  const Words numeric = {"--numeric", "--layers", "99"};
  expect_refusal(4, "MOXIE-V011", verify + numeric);
  EXPECT_FALSE(fs::exists(at("set/moxie-proof.json")));
  expect_success(verify);
  EXPECT_TRUE(fs::exists(at("set/moxie-proof.json")));
  const std::string proof = test::read_bytes(at("set/moxie-proof.json"));
  expect_refusal(4, "MOXIE-V011", verify + numeric);
  EXPECT_EQ(test::read_bytes(at("set/moxie-proof.json")), proof);
}

// Neither a read-only folder nor a full disk changes a verdict.
TEST_F(WholeFaults, AProofThatCanNotBeWrittenIsAWarningBelowTheVerdict) {
  const std::string model = write("model", [](TinyTensor&) { return true; });
  expect_success({"pack", model, "--out", at("set"), "--tp", "2"});
  const Words verify = {"verify", at("set"), "--against", model, "--numeric"};
  const auto expect_warning = [&](const test::Launch& launch) {
    const test::Outcome text = expect_success(verify, launch);
    EXPECT_TRUE(test::has(text.out, "verdict: passed")) << text.out;
    EXPECT_TRUE(test::has(text.err, "MOXIE-V012 warning: ")) << text.err;
    EXPECT_TRUE(test::has(text.err, "moxie-proof.json")) << text.err;
    EXPECT_EQ(test::codes_of(expect_document(verify, launch)),
              std::vector<std::string>{"MOXIE-V012"});
  };
  const std::vector<std::string> before = test::tree_of(at("set"));
  expect_warning({.command = {}, .file_bytes = 100});
  EXPECT_EQ(test::tree_of(at("set")), before);
  folder_.write("set/moxie-proof.json/in-the-way", "");  // root may write to any folder
  expect_warning({});
  fs::remove_all(at("set/moxie-proof.json"));
  expect_success(verify);
  EXPECT_TRUE(fs::is_regular_file(at("set/moxie-proof.json")));
}

// A file that was made here is not to be downloaded.
TEST_F(WholeFaults, AShortenedFileOfASetIsToBePackedAgain) {
  const std::string model = write("model", [](TinyTensor&) { return true; });
  expect_success({"pack", model, "--out", at("set"), "--tp", "2"});
  const fs::path file = fs::path(at("set")) / "rank-001/model-00000.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  for (const Words& words : {Words{"verify", at("set"), "--against", model},
                             Words{"doctor", at("set")}, Words{"run", at("set")}}) {
    const test::Outcome outcome = test::moxie_says(words);
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_TRUE(test::has(outcome.err, "pack the rank again")) << outcome.err;
    EXPECT_FALSE(test::has(outcome.err, "download")) << outcome.err;
  }
}

TEST_F(WholeFaults, TheVocabularyThatIsNotThereIsNotCalledChecked) {
  expect_success({"synth", at("model"), "--model", "tiny", "--whole", "--num-layers", "1", "-q"});
  expect_success({"pack", at("model"), "--out", at("set"), "--tp", "3", "--layers", "0"});
  const Json document =
      expect_document({"verify", at("set"), "--against", at("model"), "--numeric"});
  EXPECT_TRUE(document.find("numeric")->elements()[0].find("virtual_rows")->is_null());
  const auto codes = test::codes_of(document);
  EXPECT_EQ(codes, (std::vector<std::string>{"MOXIE-V008", "MOXIE-V008", "MOXIE-V008"}));
}

TEST_F(WholeFaults, EveryVerbOfCheckpointsKnowsAPackedSet) {
  const std::string model = write("model", [](TinyTensor&) { return true; });
  expect_success({"pack", model, "--out", at("set"), "--tp", "3", "--layout", "kernel"});
  const Json packed = *expect_document({"inspect", at("set")}).find("packed");
  EXPECT_EQ(test::number(packed, "tp"), 3U);
  EXPECT_EQ(test::text(packed, "layout"), "kernel");
  EXPECT_EQ(test::numbers(*packed.find("ranks")), (std::vector<std::uint64_t>{0, 1, 2}));
  EXPECT_EQ(test::numbers(*packed.find("layers")), (std::vector<std::uint64_t>{0, 1}));
  for (const Words& words : {Words{"plan", at("set")}, Words{"pack", at("set"), "--out", at("out")},
                             Words{"quantize", at("set"), at("out"), "--format", "nvfp4"},
                             Words{"verify", at("set"), "--against", at("set")}}) {
    const std::string line = expect_refusal(2, "MOXIE-U001", words);
    EXPECT_TRUE(test::has(line, "this is a packed set")) << line;
    EXPECT_FALSE(fs::exists(at("out")));
  }
  const std::string line = expect_refusal(3, "MOXIE-K005", {"run", at("set"), "--layer", "9"});
  EXPECT_TRUE(test::has(line, "the model has 2 layers")) << line;
}

}  // namespace
}  // namespace moxie
