// SPDX-License-Identifier: Apache-2.0
// Synthetic whole DeepSeek-V4 models whose numbers mean something, their packed sets, and single
// bytes of those made wrong.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/hash.hpp"
#include "moxie/model.hpp"
#include "moxie/pack.hpp"
#include "moxie/plan.hpp"
#include "moxie/synth.hpp"
#include "support/temp_folder.hpp"
#include "verify/v4_weights.hpp"

namespace moxie::test {

// "tiny" at a quarter of its widths, with tiles of 32: the same pattern on every axis.
inline Json quarter_tiny() {
  Json config = synth_config("tiny");
  Json tile = Json::array();
  tile.push_back(32);
  tile.push_back(32);
  Json quantization = *config.find("quantization_config");
  config.set("quantization_config", quantization.set("weight_block_size", std::move(tile)))
      .set("hidden_size", 64)
      .set("moe_intermediate_size", 160)
      .set("head_dim", 32)
      .set("qk_rope_head_dim", 16)
      .set("q_lora_rank", 32)
      .set("o_lora_rank", 32)
      .set("index_head_dim", 32);
  return config;
}

// A synthetic whole checkpoint in a folder of its own, read.
class SyntheticWhole {
 public:
  explicit SyntheticWhole(Json config, std::uint64_t layers = 1, std::uint64_t seed = 0)
      : model_(make(folder_, std::move(config), layers, seed)) {}

  const MoeModel& operator*() const { return model_; }
  const MoeModel* operator->() const { return &model_; }
  const V4Config& config() const { return *model_.config.v4; }
  std::filesystem::path path() const { return folder_.path() / "model"; }
  std::filesystem::path operator/(std::string_view name) const { return folder_.path() / name; }

  // Packs into a folder of its own.
  std::filesystem::path pack(unsigned tp, unsigned ep = 1) const {
    std::filesystem::path out = folder_.path() / (std::to_string(tp) + "x" + std::to_string(ep));
    pack_to_folder(model_, make_plan(model_, {.tp = tp, .ep = ep}), {.out = out});
    return out;
  }

 private:
  static MoeModel make(const TempFolder& folder, Json config, std::uint64_t layers,
                       std::uint64_t seed) {
    SynthOptions options;
    options.config = std::move(config);
    options.num_layers = layers;
    options.whole = true;
    options.seed = seed;
    synthesise(folder.path() / "model", options);
    return read_model(open_checkpoint(folder.path() / "model"));
  }

  TempFolder folder_;
  MoeModel model_;
};

inline std::filesystem::path rank_folder(const std::filesystem::path& set, unsigned rank) {
  return set / ("rank-00" + std::to_string(rank));
}

inline V4Widths widths_of(const V4Config& v4) {
  return {.heads = v4.heads,
          .sinks = v4.heads,
          .output_groups = v4.output_groups,
          .shared_inter = v4.shared_inter,
          .vocab = v4.vocab};
}
// Of every rank, its padding included.
inline V4Widths widths_of(const ShardPlan& plan) {
  const auto local = [&](Axis axis) { return plan.find(axis)->local.value; };
  return {.heads = local(Axis::heads),
          .sinks = plan.find(Axis::heads)->kernel.value,
          .output_groups = local(Axis::output_groups),
          .shared_inter = local(Axis::shared_inter),
          .vocab = local(Axis::vocab)};
}

// One byte of a rank's tensor is another for as long as this lives; files.json agrees with it.
class PlantedByte {
 public:
  PlantedByte(const std::filesystem::path& set, unsigned rank, const std::string& tensor,
              std::uint64_t at, char value)
      : folder_(rank_folder(set, rank)) {
    const Checkpoint packed = open_checkpoint(folder_);
    const TensorInfo* found = packed.find(tensor);
    file_ = packed.files()[found->file].path;
    place_ = found->offset + at;
    intact_list_ = read_bytes(folder_ / "files.json");
    intact_ = write(value);
    std::string list = intact_list_;
    const auto replace_hash = [&](const std::string& before, const std::string& after) {
      list.replace(list.find(before), before.size(), after);
    };
    std::string bytes = read_bytes(file_);
    const std::string after = hash_hex(bytes);
    bytes[place_] = intact_;
    replace_hash(hash_hex(bytes), after);
    write_list(list);
  }
  ~PlantedByte() {
    write(intact_);
    write_list(intact_list_);
  }
  PlantedByte(const PlantedByte&) = delete;
  PlantedByte& operator=(const PlantedByte&) = delete;

 private:
  char write(char value) const {
    std::fstream stream(file_, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekg(static_cast<std::streamoff>(place_));
    const auto before = static_cast<char>(stream.get());
    stream.seekp(static_cast<std::streamoff>(place_));
    stream.put(value);
    return before;
  }
  void write_list(const std::string& list) const {
    std::fstream(folder_ / "files.json", std::ios::binary | std::ios::in | std::ios::out) << list;
  }

  std::filesystem::path folder_;
  std::filesystem::path file_;
  std::uint64_t place_ = 0;
  char intact_ = 0;
  std::string intact_list_;
};

}  // namespace moxie::test
