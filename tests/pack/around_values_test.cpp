// SPDX-License-Identifier: Apache-2.0
// Values around the routed experts that no reader may use: what pack refuses and what a doctor
// finds, in a source and in a packed set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "moxie/pack.hpp"
#include "support/refusal.hpp"
#include "support/whole_checkpoint.hpp"

namespace moxie {
namespace {

using test::TinyTensor;
using test::WholeCheckpoint;

test::WholeOptions hashed(const std::vector<test::TinyEdit>& edits = {}) {
  std::vector<test::TinyEdit> all = {[](TinyTensor& tensor) {
    // Counted bytes hold a NaN of E4M3; codes below it do not.
    for (char& byte : tensor.bytes)
      if (tensor.dtype == DType::f8_e4m3 && byte == 0x7F) byte = 0x7E;
    return true;
  }};
  std::ranges::copy(edits, std::back_inserter(all));
  return {.config = test::narrow_v4({{"num_hash_layers", 1}}, {4, 0, 0}), .edits = all};
}

test::TinyEdit put(const std::string& name, std::uint64_t at, const std::string& bytes) {
  return [=](TinyTensor& tensor) {
    if (tensor.name == name) tensor.bytes.replace(at, bytes.size(), bytes);
    return true;
  };
}
test::TinyEdit drop(const std::string& name) {
  return [=](TinyTensor& tensor) { return tensor.name != name; };
}

const std::string kNan("\0\0\xC0\x7F", 4);

std::vector<std::string> codes_of(const std::vector<Finding>& findings) {
  std::vector<std::string> codes;
  for (const Finding& finding : findings)
    codes.push_back(finding.code + " " + finding.where.tensor);
  return codes;
}

std::vector<Finding> examine(const MoeModel& model) {
  std::vector<Finding> findings = check_whole_model(model);
  for (const LayerExperts& layer : model.layers)
    std::ranges::copy(check_stored_values(model, layer.layer), std::back_inserter(findings));
  std::ranges::copy(check_stored_top(model), std::back_inserter(findings));
  return findings;
}

TEST(AroundValues, OfASoundModelAreSound) {
  const WholeCheckpoint model(hashed());
  EXPECT_TRUE(examine(*model).empty()) << to_string(examine(*model).at(0));
  for (const FileLayout layout : {FileLayout::logical, FileLayout::kernel}) {
    const auto out = model / name_of(layout);
    pack_to_folder(*model, make_plan(*model, {.tp = 3}), {.out = out, .layout = layout});
    const PackedFolder folder = open_packed_folder(out);
    EXPECT_TRUE(check_packed_tensors(folder, true).empty())
        << to_string(check_packed_tensors(folder, true).at(0));
  }
}

TEST(AroundValues, ARouterThatNobodyCanUseIsRefusedByPack) {
  const std::string negative(8, '\xFF');
  std::string large(8, '\0');
  large[0] = 3;  // of three experts
  struct Case {
    std::string tensor;
    std::string bytes;
    std::string got;
  };
  for (const Case& bad : {Case{"layers.1.ffn.gate.bias", kNan, "NaN or infinity at 1"},
                          Case{"layers.0.ffn.gate.weight", std::string("\x80\xFF", 2), "row 0"},
                          Case{"layers.0.ffn.gate.tid2eid", negative, "-1 for token 0"},
                          Case{"layers.0.ffn.gate.tid2eid", large, "3 for token"}}) {
    const std::uint64_t at = bad.bytes.size();
    const WholeCheckpoint model(hashed({put(bad.tensor, at, bad.bytes)}));
    const Error error = test::refusal_of(
        [&] { pack_to_folder(*model, make_plan(*model, {.tp = 3}), {.out = model / "out"}); });
    EXPECT_EQ(error.code(), ErrorCode::input);
    const Finding& finding = error.findings().front();
    EXPECT_EQ(finding.code, "MOXIE-M016") << to_string(finding);
    EXPECT_EQ(finding.where.tensor, bad.tensor);
    EXPECT_NE(finding.got.find(bad.got), std::string::npos) << finding.got;
    EXPECT_FALSE(std::filesystem::exists(model / "out"));
    EXPECT_EQ(codes_of(examine(*model)), std::vector<std::string>{"MOXIE-M016 " + bad.tensor});
  }
}

TEST(AroundValues, AreFoundInEveryKindOfTensor) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"MOXIE-K003 layers.0.attn.wq_a.scale", "\xFF"},
      {"MOXIE-K003 layers.1.ffn.shared_experts.w2.scale", "\xFF"},
      {"MOXIE-K018 layers.0.attn.attn_sink", kNan},
      {"MOXIE-K018 layers.1.attn_norm.weight", std::string("\x80\x7F", 2)},
      {"MOXIE-K018 mtp.0.attn.wo_a.weight", "\x7F"},
      {"MOXIE-K018 head.weight", std::string("\xC0\xFF", 2)},
      {"MOXIE-K018 norm.weight", std::string("\x80\x7F", 2)}};
  for (const auto& [finding, bytes] : bad) {
    const WholeCheckpoint model(hashed({put(finding.substr(11), 0, bytes)}));
    EXPECT_EQ(codes_of(examine(*model)), std::vector<std::string>{finding});
  }
}

TEST(WholeHeaders, EveryListedTensorIsAskedFor) {
  for (const std::string name : {"layers.0.attn.wkv.weight", "layers.1.ffn.shared_experts.w1.scale",
                                 "layers.1.ffn.gate.bias", "mtp.0.norm.weight", "embed.weight"}) {
    EXPECT_EQ(codes_of(check_whole_model(*WholeCheckpoint(hashed({drop(name)})))),
              std::vector<std::string>{"MOXIE-K013 " + name});
  }
  const WholeCheckpoint mistyped(hashed({[](TinyTensor& tensor) {
    if (tensor.name == "layers.0.attn.q_norm.weight") tensor.dtype = DType::f16;
    return true;
  }}));
  EXPECT_EQ(codes_of(check_whole_model(*mistyped)),
            std::vector<std::string>{"MOXIE-K013 layers.0.attn.q_norm.weight"});
  EXPECT_TRUE(check_whole_model(*mistyped, {1}).empty()) << "of the layers asked for";
  test::WholeOptions without_top = hashed();
  without_top.top = false;
  EXPECT_FALSE(check_whole_model(*WholeCheckpoint(without_top)).empty());
  EXPECT_TRUE(check_whole_model(*WholeCheckpoint(without_top), {0, 1, 2}).empty());
}

}  // namespace
}  // namespace moxie
