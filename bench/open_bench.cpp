// SPDX-License-Identifier: Apache-2.0
// Times open_checkpoint on a folder shaped like DeepSeek-V4-Pro: 61 shards with an index, 140,544
// expert tensors.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <filesystem>
#include <stdexcept>

#include "moxie/checkpoint.hpp"
#include "moxie/model.hpp"
#include "moxie/synth.hpp"
#include "support/temp_folder.hpp"

namespace {

// `moxie synth --model deepseek-v4-pro --num-layers 61 --experts 384 --hidden 32 --inter 32`,
// written once, on first use, and removed when the program ends.
const std::filesystem::path& checkpoint_folder() {
  static const moxie::test::TempFolder folder;
  static const std::filesystem::path path = [] {
    moxie::SynthOptions options;
    options.config = moxie::synth_config("deepseek-v4-pro");
    options.num_layers = 61;
    options.experts = 384;
    options.hidden = 32;
    options.inter = 32;
    moxie::synthesise(folder.path() / "checkpoint", options);
    return folder.path() / "checkpoint";
  }();
  return path;
}

void count_tensors(benchmark::State& state, std::uint64_t tensors) {
  state.counters["tensors"] = static_cast<double>(tensors);
  state.counters["tensors/s"] = benchmark::Counter(static_cast<double>(tensors),
                                                   benchmark::Counter::kIsIterationInvariantRate);
}

// Everything open_checkpoint does: mapping, headers, index, directory. The files are in the page
// cache.
void open_indexed_shards(benchmark::State& state) {
  const std::filesystem::path& folder = checkpoint_folder();
  std::uint64_t tensors = 0;
  for (auto _ : state) {
    const moxie::Checkpoint checkpoint = moxie::open_checkpoint(folder);
    if (!checkpoint.findings().empty()) throw std::runtime_error("opening found something wrong");
    tensors = checkpoint.tensors().size();
  }
  count_tensors(state, tensors);
}
BENCHMARK(open_indexed_shards)->Unit(benchmark::kMillisecond)->UseRealTime()->MinTime(3);

// What read_model adds: dialect, and the names, types and shapes of every expert tensor.
void read_all_layers(benchmark::State& state) {
  const moxie::Checkpoint checkpoint = moxie::open_checkpoint(checkpoint_folder());
  for (auto _ : state) {
    const moxie::MoeModel model = moxie::read_model(checkpoint);
    if (model.layers.size() != 61 || !model.layers.back().problems.empty()) {
      throw std::runtime_error("read another model than was written");
    }
  }
  count_tensors(state, checkpoint.tensors().size());
}
BENCHMARK(read_all_layers)->Unit(benchmark::kMillisecond)->UseRealTime()->MinTime(1);

}  // namespace
