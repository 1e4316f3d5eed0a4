// SPDX-License-Identifier: Apache-2.0
// Times open_checkpoint on a folder shaped like DeepSeek-V4: 61 shards with an index, 140,544
// tensors.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../tests/support/temp_folder.hpp"
#include "base/staged_file.hpp"
#include "checkpoint/safetensors_writer.hpp"
#include "moxie/checkpoint.hpp"
#include "moxie/json.hpp"

namespace {

constexpr unsigned kShards = 61;
constexpr unsigned kExperts = 384;
constexpr std::size_t kTensors = std::size_t{kShards} * kExperts * 3 * 2;

std::string shard_name(unsigned shard) {
  std::string number = std::to_string(shard + 1);
  number.insert(0, 5 - number.size(), '0');
  return "model-" + number + "-of-00061.safetensors";
}

// One layer per shard: a weight and a scale for each of an expert's three projections.
std::vector<moxie::TensorEntry> entries_of(unsigned layer) {
  std::vector<moxie::TensorEntry> entries;
  for (unsigned expert = 0; expert < kExperts; ++expert) {
    for (const std::string_view projection : {"w1", "w2", "w3"}) {
      const std::string name = "layers." + std::to_string(layer) + ".ffn.experts." +
                               std::to_string(expert) + "." + std::string(projection);
      entries.push_back({name + ".weight", moxie::DType::i8, {32, 16}});
      entries.push_back({name + ".scale", moxie::DType::f8_e8m0, {32, 1}});
    }
  }
  return entries;
}

// Written once, on first use; removed when the program ends.
const std::filesystem::path& checkpoint_folder() {
  static const moxie::test::TempFolder folder;
  static const bool written = [] {
    moxie::Json::Object weight_map;
    std::uint64_t total_size = 0;
    for (unsigned shard = 0; shard < kShards; ++shard) {
      const auto entries = entries_of(shard);
      moxie::SafetensorsWriter writer(folder.path() / shard_name(shard), entries);
      for (const moxie::TensorEntry& entry : entries) {
        writer.write(std::vector<std::byte>(entry.bytes()));
        weight_map.push_back({entry.name, shard_name(shard)});
        total_size += entry.bytes();
      }
      writer.commit();
    }
    moxie::Json index;
    index.set("metadata", moxie::Json::object().set("total_size", total_size))
        .set("weight_map", moxie::Json(std::move(weight_map)));
    moxie::write_text_file(folder.path() / "model.safetensors.index.json", index.dump());
    moxie::write_text_file(folder.path() / "config.json", R"({"model_type": "deepseek_v4"})");
    return true;
  }();
  benchmark::DoNotOptimize(written);
  return folder.path();
}

// Everything open_checkpoint does: mapping, headers, index, directory. The files are in the page
// cache.
void open_indexed_shards(benchmark::State& state) {
  const std::filesystem::path& folder = checkpoint_folder();
  for (auto _ : state) {
    const moxie::Checkpoint checkpoint = moxie::open_checkpoint(folder);
    if (checkpoint.tensors().size() != kTensors || !checkpoint.findings().empty()) {
      throw std::runtime_error("opened another checkpoint than was written");
    }
  }
  state.counters["tensors/s"] =
      benchmark::Counter(kTensors, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(open_indexed_shards)->Unit(benchmark::kMillisecond)->UseRealTime()->MinTime(3);

}  // namespace
