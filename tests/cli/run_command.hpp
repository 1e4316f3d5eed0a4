// SPDX-License-Identifier: Apache-2.0
// Small checkpoints to run, input files to run them on, and the tensors of what comes out.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "moxie/checkpoint.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie::test {

class RunCommand : public testing::Test {
 protected:
  static constexpr std::uint64_t kHidden = 64;

  // Writes a checkpoint of small experts, kHidden wide, and returns its path.
  std::string synth(const std::string& name, const Words& options = {},
                    const Words& sizes = {"--inter", "96", "--experts", "8"}) const {
    const std::string path = at(name);
    expect_success(Words{"synth", path, "--model", "tiny", "--hidden", "64", "-q"} + sizes +
                   options);
    return path;
  }
  std::string pack(const std::string& model, const std::string& name, const Words& options) const {
    expect_success(Words{"pack", model, "--out", at(name), "-q"} + options);
    return at(name);
  }
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }

  template <class Number>
  static TinyTensor tensor(std::string name, DType dtype, Shape shape,
                           const std::vector<Number>& values) {
    std::string bytes(values.size() * sizeof(Number), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return {std::move(name), dtype, std::move(shape), std::move(bytes)};
  }
  // x with one value everywhere.
  static TinyTensor activations(std::uint64_t tokens, float value = 0.5F) {
    return tensor("hidden_states", DType::f32, {tokens, kHidden},
                  std::vector<float>(tokens * kHidden, value));
  }
  static TinyTensor ids(Shape shape, const std::vector<std::int64_t>& values) {
    return tensor("topk_ids", DType::i64, std::move(shape), values);
  }
  static TinyTensor weights(Shape shape, float value = 0.5F) {
    return tensor("topk_weights", DType::f32, shape,
                  std::vector<float>(shape[0] * shape[1], value));
  }
  std::string input(const std::vector<TinyTensor>& tensors) const {
    write_tensors(folder_.path() / "input.safetensors", tensors);
    return at("input.safetensors");
  }

  // An f32 tensor of an output file.
  static std::vector<float> floats(const Checkpoint& file, std::string_view name) {
    const TensorInfo* tensor = file.find(name);
    if (tensor == nullptr || tensor->dtype != DType::f32) {
      ADD_FAILURE() << name << " is no f32 tensor of the file";
      return {};
    }
    std::vector<float> values(tensor->bytes / sizeof(float));
    std::memcpy(values.data(), file.bytes(*tensor).data(), tensor->bytes);
    return values;
  }
  // The bytes of the file that a run writes.
  std::string output_of(const std::string& model, const Words& options) const {
    expect_success(Words{"run", model, "--output", at("out.safetensors"), "-q"} + options);
    return read_bytes(at("out.safetensors"));
  }

  TempFolder folder_;
};

// The run of a document that has only one.
inline const Json& only_run(const Json& document) {
  const auto& runs = document.find("runs")->elements();
  EXPECT_EQ(runs.size(), 1U);
  return runs.at(0);
}

// A member, or a value that no test expects.
inline std::uint64_t number(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value == nullptr ? ~0ULL : value->as_unsigned(~0ULL);
}

inline std::string text(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value == nullptr ? "absent" : value->as_string("no text");
}

// stdout is one record a line and nothing else.
inline std::vector<Json> parse_records(const std::string& out) {
  std::vector<Json> records;
  for (const std::string& line : lines_of(out)) {
    records.push_back(Json::parse(line, "stdout"));
    EXPECT_EQ(records.back().dump_compact(), line);
  }
  return records;
}

inline std::vector<std::uint64_t> numbers(const Json& list) {
  std::vector<std::uint64_t> values;
  for (const Json& element : list.elements()) values.push_back(element.as_unsigned(~0ULL));
  return values;
}

// Codes of all findings.
inline std::vector<std::string> codes_of(const Json& document) {
  std::vector<std::string> codes;
  for (const Json& finding : document.find("findings")->elements())
    codes.push_back(finding.find("code")->as_string());
  return codes;
}

}  // namespace moxie::test
