// SPDX-License-Identifier: Apache-2.0
// A batch is a range of the file's data area; threads take pieces of it, whatever tensors those
// cross.
#include "synth/shard.hpp"

#include <algorithm>
#include <iterator>
#include <span>

#include "base/checked.hpp"
#include "base/parallel.hpp"
#include "checkpoint/safetensors_writer.hpp"
#include "synth/patterns.hpp"

namespace moxie::synth {

namespace {

// Large enough that handing out a piece costs nothing, small enough to stay in a second-level cache
// and to share a batch evenly.
constexpr std::uint64_t kPieceBytes = std::uint64_t{256} << 10;
constexpr std::uint64_t kBatchBytes = std::uint64_t{16} << 20;

// Fills [begin, begin + out.size()) of the data area. `ends` are the tensors' end offsets in it.
void fill_range(const Recipe& recipe, const std::vector<Tensor>& tensors,
                const std::vector<std::uint64_t>& ends, std::uint64_t begin,
                std::span<std::byte> out) {
  auto index =
      static_cast<std::size_t>(std::distance(ends.begin(), std::ranges::upper_bound(ends, begin)));
  while (!out.empty()) {
    const std::uint64_t tensor_begin = index == 0 ? 0 : ends[index - 1];
    const auto bytes = std::min<std::uint64_t>(ends[index] - begin, out.size());
    fill(recipe, tensors[index], begin - tensor_begin, out.first(bytes));
    out = out.subspan(bytes);
    begin += bytes;
    ++index;
  }
}

}  // namespace

ShardWriter::ShardWriter(const Recipe& recipe) : recipe_(recipe), buffer_(kBatchBytes) {}

void ShardWriter::write(const std::filesystem::path& path, const std::vector<Tensor>& tensors,
                        const std::function<void(std::uint64_t)>& advance) {
  std::vector<TensorEntry> entries;
  std::vector<std::uint64_t> ends;
  entries.reserve(tensors.size());
  ends.reserve(tensors.size());
  std::uint64_t total = 0;
  for (const Tensor& tensor : tensors) {
    entries.push_back(tensor.entry);
    total += tensor.entry.bytes();
    ends.push_back(total);
  }

  SafetensorsWriter file(path, entries);
  for (std::uint64_t begin = 0; begin < total; begin += kBatchBytes) {
    const std::span batch = std::span(buffer_).first(std::min(kBatchBytes, total - begin));
    parallel_for(divide_up(batch.size(), kPieceBytes), [&](std::uint64_t piece) {
      const std::uint64_t offset = piece * kPieceBytes;
      const std::uint64_t bytes = std::min(kPieceBytes, batch.size() - offset);
      fill_range(recipe_, tensors, ends, begin + offset, batch.subspan(offset, bytes));
    });
    file.write(batch);
    advance(batch.size());
  }
  file.commit();
}

}  // namespace moxie::synth
