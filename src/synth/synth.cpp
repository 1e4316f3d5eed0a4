// SPDX-License-Identifier: Apache-2.0
// A checkpoint folder from a recipe: config files, shards, the index.
#include "moxie/synth.hpp"

#include <string>
#include <system_error>
#include <utility>

#include "base/checked.hpp"
#include "base/disk_space.hpp"
#include "base/errors.hpp"
#include "base/staged_file.hpp"
#include "synth/gguf_file.hpp"
#include "synth/names.hpp"
#include "synth/recipe.hpp"
#include "synth/shard.hpp"
#include "synth/whole_tensors.hpp"
#include "synth/written_config.hpp"

namespace moxie {

namespace {

using synth::Recipe;
using synth::Tensor;

void require_free(const std::filesystem::path& out) {
  std::error_code error;
  const auto status = std::filesystem::status(out, error);
  if (status.type() == std::filesystem::file_type::not_found) return;
  if (error) raise_system("look at", out, error.value());
  const bool is_folder = std::filesystem::is_directory(status);
  if (is_folder && std::filesystem::is_empty(out, error) && !error) return;
  if (error) raise_system("look at", out, error.value());
  throw Error(ErrorCode::usage, {.code = "MOXIE-U002",
                                 .message = "the output exists",
                                 .where = {.file = out.string()},
                                 .expected = "a name that does not exist, or an empty folder",
                                 .got = is_folder ? "a folder with files" : "a file",
                                 .hint = "choose another name, or remove it"});
}

// "model-00003-of-00043.safetensors"
std::string shard_name(std::uint64_t shard, std::uint64_t shards) {
  const auto five_digits = [](std::uint64_t number) {
    const std::string text = std::to_string(number);
    return std::string(5 - text.size(), '0') + text;
  };
  return "model-" + five_digits(shard + 1) + "-of-" + five_digits(shards) + ".safetensors";
}

std::uint64_t data_bytes(const std::vector<Tensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.entry.bytes();
  return bytes;
}

// Layers differ only in how their router is stored: by token id up to hash_layers, then by score.
std::uint64_t total_bytes(const Recipe& recipe) {
  if (recipe.whole) return synth::whole_bytes(recipe);
  const std::uint64_t hashed = recipe.hash_layers;
  const std::uint64_t scored = recipe.layers - hashed;
  constexpr std::uint64_t kTooMuch = ~std::uint64_t{0};
  std::uint64_t bytes = 0;
  const auto add = [&](std::uint64_t layers, std::uint64_t first) {
    if (layers == 0) return;
    const auto part =
        checked_multiply(layers, data_bytes(synth::tensors_of_layer(recipe, first, 0)));
    bytes = checked_add(bytes, part.value_or(kTooMuch)).value_or(kTooMuch);
  };
  add(hashed, 0);
  add(scored, hashed);
  return bytes;
}

void write_json(const std::filesystem::path& path, const Json& json) {
  write_text_file(path, json.dump() + "\n");
}

}  // namespace

std::string_view name_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::normal:
      return "normal";
    case Pattern::outliers:
      return "outliers";
    case Pattern::monotonic:
      return "monotonic";
    case Pattern::constant:
      return "constant";
  }
  return "unknown";
}

void synthesise_config(const std::filesystem::path& out, const SynthOptions& options) {
  SynthOptions of_all = options;
  if (const auto all = synth::stated_experts(options.config); !options.experts && all > 0)
    of_all.experts = all;
  const Recipe recipe = synth::make_recipe(of_all);
  if (recipe.dialect == DialectKind::gguf) {
    throw Error(ErrorCode::unsupported, {.code = "MOXIE-P010",
                                         .message = "the gguf dialect has no config files",
                                         .expected = "another dialect",
                                         .got = "gguf"});
  }
  write_json(out / "config.json", synth::written_config(options.config, recipe));
  if (const Json quant_config = synth::written_quant_config(recipe); !quant_config.is_null())
    write_json(out / "hf_quant_config.json", quant_config);
}

SynthReport synthesise(const std::filesystem::path& out, const SynthOptions& options) {
  const Recipe recipe = synth::make_recipe(options);
  const auto folder_path = std::filesystem::absolute(out).lexically_normal();
  require_free(folder_path);

  SynthReport report{.format = recipe.format, .dense = recipe.dense, .dialect = recipe.dialect};
  const std::uint64_t total = total_bytes(recipe);
  require_checkpoint_space(out, total, "ask for fewer experts, layers or columns");
  report_progress(options.progress, 0, total);

  StagedFolder folder(folder_path);
  if (recipe.dialect == DialectKind::gguf) {
    synth::write_gguf(folder.staging() / (options.name + ".gguf"), recipe, options, total, report);
    folder.commit();
    return report;
  }
  write_json(folder.staging() / "config.json", synth::written_config(options.config, recipe));
  ++report.files;
  if (const Json quant_config = synth::written_quant_config(recipe); !quant_config.is_null()) {
    write_json(folder.staging() / "hf_quant_config.json", quant_config);
    ++report.files;
  }

  synth::ShardWriter writer(recipe);
  Json::Object weight_map;
  const std::uint64_t shards = recipe.whole ? synth::whole_shards(recipe) : recipe.layers;
  for (std::uint64_t number = 0; number < shards; ++number) {
    const std::string shard = shard_name(number, shards);
    std::vector<Tensor> tensors = recipe.whole
                                      ? synth::tensors_of_shard(recipe, number, report.tensors)
                                      : synth::tensors_of_layer(recipe, number, report.tensors);
    writer.write(folder.staging() / shard, tensors, [&](std::uint64_t bytes) {
      report.bytes += bytes;
      report_progress(options.progress, report.bytes, total);
    });
    report.tensors += tensors.size();
    ++report.files;
    for (Tensor& tensor : tensors) {
      weight_map.push_back({std::move(tensor.entry.name), Json(shard)});
    }
  }

  Json index;
  index.set("metadata", Json::object().set("total_size", report.bytes))
      .set("weight_map", Json(std::move(weight_map)));
  write_json(folder.staging() / "model.safetensors.index.json", index);
  ++report.files;
  folder.commit();
  return report;
}

}  // namespace moxie
