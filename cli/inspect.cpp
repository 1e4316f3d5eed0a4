// SPDX-License-Identifier: Apache-2.0
// moxie inspect: what a checkpoint is, from its headers.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/verbs.hpp"
#include "moxie/pack.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

struct TensorClass {
  std::string_view name;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

// Sorts tensors by what their names say.
std::array<TensorClass, 4> classify(const Checkpoint& checkpoint) {
  std::array<TensorClass, 4> classes = {{{"experts"}, {"shared"}, {"attention"}, {"other"}}};
  const auto has = [](std::string_view name, std::string_view word) {
    return name.find(word) != std::string_view::npos;
  };
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const std::string_view name = tensor.name;
    // Norms of blocks, mixes of the residual and vision models are none of a layer's attention.
    const bool beside = has(name, "attn_norm") || has(name, "hc_attn_") || has(name, "vision") ||
                        has(name, "visual");
    const std::size_t kind = has(name, "shared_expert")                      ? 1
                             : has(name, ".experts.") || has(name, "_exps.") ? 0
                             : has(name, "attn") && !beside                  ? 2
                                                                             : 3;
    ++classes[kind].tensors;
    classes[kind].bytes += tensor.bytes;
  }
  return classes;
}

std::string activation_text(const ModelConfig& config) {
  std::string text(name_of(config.activation));
  if (config.activation_limit) text += fmt::format(", limit {:g}", *config.activation_limit);
  return text;
}

Json document_of(const OpenedModel& opened, const std::array<TensorClass, 4>& classes) {
  const MoeModel& model = opened.model;
  const ModelConfig& config = model.config;
  Json document;
  document.set("schema", "moxie.inspect/1").set("path", model.checkpoint.path().string());
  document.set("family", config.model_type)
      .set("dialect", model.dialect.empty() ? Json() : Json(model.dialect));
  document.set("format", model.format ? Json(name_of(*model.format)) : Json());
  document.set("expert_type", model.format           ? Json(name_of(*model.format))
                              : !model.dense.empty() ? Json(name_of(model.dense.front().format))
                                                     : Json());
  document.set("quantization", config.quantization).set("activation", name_of(config.activation));
  document.set("activation_limit",
               config.activation_limit ? Json(*config.activation_limit) : Json());
  document.set("router", name_of(config.router)).set("routed_scaling", config.routed_scaling);
  document.set("hidden", config.hidden).set("inter", config.inter).set("experts", config.experts);
  document.set("top_k", config.top_k)
      .set("num_layers", config.num_layers)
      .set("moe_layers", config.moe_layers.size());
  document.set("hash_layers", config.hash_layers).set("gated", config.gated);
  const std::uint64_t bytes = model.format ? expert_bytes(config, *model.format) : 0;
  document.set("expert_bytes", bytes).set("layer_bytes", bytes * config.experts);
  document.set("total_bytes", bytes * config.experts * model.planned_layers());
  Json layers = Json::array();
  for (const LayerExperts& layer : model.layers) {
    Json entry;
    entry.set("layer", layer.layer).set("prefix", layer.prefix).set("mtp", layer.mtp);
    entry.set("dialect", layer.dialect)
        .set("format", name_of(layer.format))
        .set("experts", layer.experts.size());
    entry.set("complete", layer.problems.empty());
    layers.push_back(std::move(entry));
  }
  for (const DenseExperts& layer : model.dense) {
    Json entry;
    entry.set("layer", layer.layer).set("prefix", layer.prefix).set("mtp", false);
    entry.set("dialect", nullptr)
        .set("format", name_of(layer.format))
        .set("experts", layer.experts.size());
    entry.set("stacked", layer.stacked).set("complete", layer.problems.empty());
    layers.push_back(std::move(entry));
  }
  document.set("layers", std::move(layers));
  Json tensors;
  for (const TensorClass& kind : classes) {
    tensors.set(kind.name, Json::object().set("tensors", kind.tensors).set("bytes", kind.bytes));
  }
  document.set("tensors", std::move(tensors));
  document.set("files", model.checkpoint.files().size()).set("findings", to_json(opened.findings));
  return document;
}

// "bf16, no FP4: gate and up [768, 2048], down [2048, 768]".
std::string format_text(const MoeModel& model) {
  if (model.format) return std::string(name_of(*model.format));
  if (model.dense.empty()) return "no known FP4 format";
  const DenseExperts& layer = model.dense.front();
  const ModelConfig& config = model.config;
  std::string text =
      fmt::format("{}{}, no FP4: {} [{}, {}], down [{}, {}]", name_of(layer.format),
                  layer.stacked ? " stacked" : "", config.gated ? "gate and up" : "up",
                  config.inter, config.hidden, config.hidden, config.inter);
  if (layer.format == DenseFormat::fp8_block && !layer.experts.empty()) {
    const DenseMatrix& matrix = layer.experts.front()[1];
    text += fmt::format(", a scale for {} x {}", matrix.tile_rows, matrix.tile_cols);
  }
  return text;
}

std::string text_of(const OpenedModel& opened, const std::array<TensorClass, 4>& classes) {
  const MoeModel& model = opened.model;
  const ModelConfig& config = model.config;
  std::string text = fmt::format("{}\n", model.checkpoint.path().string());
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<12} {}\n", name, value);
  };
  line("family", config.model_type);
  line("dialect", model.dialect.empty() ? "none read" : model.dialect);
  line("format", format_text(model));
  line("experts", fmt::format("{} x {}, top {}, hidden {}, inter {}{}",
                              format_count(config.moe_layers.size(), "layer"),
                              format_count(config.experts, "expert"), config.top_k, config.hidden,
                              config.inter, config.gated ? "" : ", no gate"));
  line("activation", activation_text(config));
  line("router", std::string(name_of(config.router)) +
                     (config.hash_layers > 0
                          ? ", first " + format_count(config.hash_layers, "layer") + " by token id"
                          : ""));
  if (model.format) {
    const std::uint64_t bytes = expert_bytes(config, *model.format);
    line("bytes", fmt::format("{} per expert, {} per layer, {} in total", format_count(bytes),
                              format_bytes(bytes * config.experts),
                              format_bytes(bytes * config.experts * model.planned_layers())));
  }
  const auto complete =
      std::ranges::count_if(model.layers, [](const LayerExperts& l) { return l.problems.empty(); });
  const auto complete_dense =
      std::ranges::count_if(model.dense, [](const DenseExperts& l) { return l.problems.empty(); });
  line("read", fmt::format("{} of {} complete in {}", complete + complete_dense,
                           format_count(model.layers.size() + model.dense.size(), "layer"),
                           format_count(model.checkpoint.files().size(), "file")));
  Table table({"tensors", "count", "bytes"});
  for (const TensorClass& kind : classes) {
    table.add_row({std::string(kind.name), format_count(kind.tensors), format_count(kind.bytes)});
  }
  return text + "\n" + table.to_text();
}

}  // namespace

int run_inspect(const InspectArgs& args, const Console& console) {
  if (is_packed_folder(args.model)) return inspect_packed(args, console);
  OpenedModel opened = open_model(args.model);
  bool broken = false;
  const auto add_problems = [&](const std::vector<Finding>& problems) {
    for (Finding finding : problems) {
      // Partial downloads are normal; the shard itself is named once by opening.
      if (finding.code == "MOXIE-C010") continue;
      // What the config does not say of sound tensors stops pack, and may be meant.
      if (finding.code == "MOXIE-K015" || finding.code == "MOXIE-K016")
        finding.severity = Severity::warning;
      broken = broken || finding.severity == Severity::error;
      opened.findings.push_back(std::move(finding));
    }
  };
  for (const LayerExperts& layer : opened.model.layers) add_problems(layer.problems);
  for (const DenseExperts& layer : opened.model.dense) add_problems(layer.problems);
  add_problems(check_whole_model(opened.model));
  if (broken) throw Error::of(ErrorCode::input, std::move(opened.findings));
  const auto classes = classify(opened.model.checkpoint);
  console.print(document_of(opened, classes), text_of(opened, classes));
  console.talk(opened.findings);
  return 0;
}

}  // namespace moxie::cli
