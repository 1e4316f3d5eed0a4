// SPDX-License-Identifier: Apache-2.0
// The metadata says what the config of the same model would say to this engine.
#include "synth/gguf_file.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/errors.hpp"
#include "base/parallel.hpp"
#include "checkpoint/gguf_writer.hpp"
#include "model/gguf_config.hpp"
#include "synth/names.hpp"
#include "synth/patterns.hpp"
#include "synth/written_config.hpp"

namespace moxie::synth {

namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{256} << 10;
constexpr std::uint64_t kBatchBytes = std::uint64_t{16} << 20;

GgufPairs metadata_of(const ModelConfig& model, const std::string& name) {
  const std::string architecture(gguf_architecture(model.model_type));
  GgufPairs pairs{
      {"general.architecture", architecture}, {"general.type", "model"}, {"general.name", name}};
  const auto add = [&](const char* leaf, auto value) {
    pairs.emplace_back(architecture + "." + leaf, value);
  };
  const auto number = [&](const char* leaf, std::uint64_t value) {
    add(leaf, static_cast<std::uint32_t>(value));
  };
  number("block_count", model.num_layers);
  number("embedding_length", model.hidden);
  number("expert_feed_forward_length", model.inter);
  number("expert_count", model.experts);
  number("expert_used_count", model.top_k);
  number("expert_gating_func", gguf_gating(model.router));
  add("expert_weights_norm", model.norm_topk);
  add("expert_weights_scale", static_cast<float>(model.routed_scaling));
  if (model.expert_groups > 1) {
    number("expert_group_count", model.expert_groups);
    number("expert_group_used_count", model.kept_groups);
  }
  if (model.hash_layers > 0) number("hash_layer_count", model.hash_layers);
  if (model.activation == Activation::clamped_swiglu && model.activation_limit)
    add("swiglu_clamp_exp", static_cast<float>(*model.activation_limit));
  if (model.vocab > 0) number("vocab_size", model.vocab);
  return pairs;
}

}  // namespace

void write_gguf(const std::filesystem::path& path, const Recipe& recipe,
                const SynthOptions& options, std::uint64_t total, SynthReport& report) {
  std::vector<Tensor> tensors;
  for (std::uint64_t layer = 0; layer < recipe.layers; ++layer) {
    std::vector<Tensor> more = tensors_of_layer(recipe, layer, tensors.size());
    std::ranges::move(more, std::back_inserter(tensors));
  }
  std::vector<TensorEntry> entries;
  entries.reserve(tensors.size());
  for (const Tensor& tensor : tensors) entries.push_back(tensor.entry);
  const ModelConfig model = read_config(written_config(options.config, recipe), {});
  GgufWriter file(path, metadata_of(model, options.name), entries);
  std::vector<std::byte> buffer(kBatchBytes);
  for (const Tensor& tensor : tensors) {
    const std::uint64_t bytes = tensor.entry.bytes();
    for (std::uint64_t begin = 0; begin < bytes; begin += kBatchBytes) {
      const std::span batch = std::span(buffer).first(std::min(kBatchBytes, bytes - begin));
      parallel_for(divide_up(batch.size(), kPieceBytes), [&](std::uint64_t piece) {
        const std::uint64_t offset = piece * kPieceBytes;
        const std::uint64_t size = std::min(kPieceBytes, batch.size() - offset);
        fill(recipe, tensor, begin + offset, batch.subspan(offset, size));
      });
      file.write(batch);
      report.bytes += batch.size();
      report_progress(options.progress, report.bytes, total);
    }
    file.finish_tensor();
  }
  file.commit();
  report.tensors = tensors.size();
  report.files = 1;
}

}  // namespace moxie::synth
