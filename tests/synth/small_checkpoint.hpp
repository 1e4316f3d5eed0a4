// SPDX-License-Identifier: Apache-2.0
// Small synthetic checkpoints and the bytes in them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "moxie/checkpoint.hpp"
#include "moxie/synth.hpp"
#include "support/temp_folder.hpp"

namespace moxie::test {

// The tiny model, narrowed so that one layer is some tens of kilobytes.
inline SynthOptions small_options(BlockFormat format, DialectKind dialect = DialectKind::deepseek,
                                  Pattern pattern = Pattern::normal) {
  SynthOptions options;
  options.config = synth_config("tiny");
  options.num_layers = 2;
  options.experts = 3;
  options.hidden = 64;
  options.inter = 96;
  options.format = format;
  options.dialect = dialect;
  options.pattern = pattern;
  options.seed = 7;
  return options;
}

inline Checkpoint synthesised(const TempFolder& folder, const SynthOptions& options,
                              std::string_view name = "model") {
  synthesise(folder.path() / name, options);
  return open_checkpoint(folder.path() / name);
}

inline std::span<const std::uint8_t> bytes_of(const Checkpoint& checkpoint,
                                              const TensorInfo& tensor) {
  const auto bytes = checkpoint.bytes(tensor);
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

inline std::span<const std::uint8_t> bytes_of(const Checkpoint& checkpoint, std::string_view name) {
  const TensorInfo* tensor = checkpoint.find(name);
  if (tensor == nullptr) throw std::runtime_error("no tensor " + std::string(name));
  return bytes_of(checkpoint, *tensor);
}

inline float scalar_of(const Checkpoint& checkpoint, std::string_view name) {
  const auto bytes = bytes_of(checkpoint, name);
  float value = 0;
  if (bytes.size() != sizeof value) throw std::runtime_error("no scalar: " + std::string(name));
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// The tensor data of all files, in order.
inline std::string data_of(const Checkpoint& checkpoint) {
  std::string data;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const auto bytes = bytes_of(checkpoint, tensor);
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return data;
}

}  // namespace moxie::test
