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

TEST_F(WholeFaults, AVerifyThatIsRefusedLeavesNoProof) {
  const std::string model = write("model", [](TinyTensor&) { return true; });
  expect_success({"pack", model, "--out", at("set"), "--tp", "2"});
  const Words verify = {"verify", at("set"), "--against", model};
  const Words numeric = {"--numeric", "--layers", "99"};
  expect_refusal(4, "MOXIE-V011", verify + numeric);
  EXPECT_FALSE(fs::exists(at("set/moxie-proof.json")));
  expect_success(verify);
  EXPECT_TRUE(fs::exists(at("set/moxie-proof.json")));
  expect_refusal(4, "MOXIE-V011", verify + numeric);
  EXPECT_FALSE(fs::exists(at("set/moxie-proof.json"))) << "an older one";
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

TEST_F(WholeFaults, InspectAndPlanKnowAPackedSet) {
  const std::string model = write("model", [](TinyTensor&) { return true; });
  expect_success({"pack", model, "--out", at("set"), "--tp", "3", "--layout", "kernel"});
  const Json packed = *expect_document({"inspect", at("set")}).find("packed");
  EXPECT_EQ(test::number(packed, "tp"), 3U);
  EXPECT_EQ(test::text(packed, "layout"), "kernel");
  EXPECT_EQ(test::numbers(*packed.find("ranks")), (std::vector<std::uint64_t>{0, 1, 2}));
  EXPECT_EQ(test::numbers(*packed.find("layers")), (std::vector<std::uint64_t>{0, 1}));
  expect_refusal(2, "MOXIE-U001", {"plan", at("set")});
  const std::string line = expect_refusal(3, "MOXIE-K005", {"run", at("set"), "--layer", "9"});
  EXPECT_TRUE(test::has(line, "the model has 2 layers")) << line;
}

}  // namespace
}  // namespace moxie
