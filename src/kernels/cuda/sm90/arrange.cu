// SPDX-License-Identifier: Apache-2.0
// Packed blob to arranged expert and back, on the device: one thread a quad, in both directions
// from the same coordinates.
#include <cuda_runtime.h>

#include "kernels/cuda/sm90/arranged.hpp"
#include "kernels/cuda/sm90/kernels.hpp"

namespace moxie::cuda::sm90 {

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kQuadsPerStep = 64;
constexpr unsigned kMuls = 6;  // of gate, up, down; input scales of the three

enum class Direction : std::uint8_t { arrange, restore };

__host__ __device__ std::uint64_t quads_of(const Product& product) {
  return std::uint64_t{product.units} * product.strips_of_unit * product.steps * kQuadsPerStep;
}

// A row of codes or scales in a packed blob.
struct PackedRow {
  std::uint64_t codes;   // byte offset of its first code
  std::uint64_t scales;  // of its first scale
};

struct Job {
  BlobOffsets packed;
  Arranged to;
  std::uint64_t inter;
  std::uint64_t hidden;
  std::byte* blob;      // packed; written by restore
  std::byte* arranged;  // written by arrange
  std::uint32_t* problems;
};

template <BlockFormat kFormat>
__device__ PackedRow row_of(const Job& job, bool is_down, std::uint64_t strip, unsigned tile,
                            unsigned row) {
  constexpr std::uint64_t kGroup = kFormat == BlockFormat::mxfp4 ? 32 : 16;
  const auto at = [&](std::uint64_t codes, std::uint64_t scales, std::uint64_t r,
                      std::uint64_t columns) {
    return PackedRow{codes + r * (columns / 2), scales + r * (columns / kGroup)};
  };
  const BlobOffsets& in = job.packed;
  if (is_down)
    return at(in.down, in.down_scale, strip * kStripRows + tile * 16 + row, job.inter);
  if (!job.to.gated)
    return at(in.up, in.up_scale, strip * kStripRows + tile * 16 + row, job.hidden);
  return tile == 0 ? at(in.gate, in.gate_scale, strip * 16 + row, job.hidden)
                   : at(in.up, in.up_scale, strip * 16 + row, job.hidden);
}

// The four codes of columns [column, column + 4) in bits 0..15, low first.
__device__ std::uint32_t read_codes(const std::byte* row, std::uint32_t column) {
  return static_cast<std::uint32_t>(row[column / 2]) |
         static_cast<std::uint32_t>(row[column / 2 + 1]) << 8;
}

template <BlockFormat kFormat, Direction kDirection>
__device__ void quad(const Job& job, const Product& product, bool is_down, std::uint64_t index) {
  const auto lane = static_cast<std::uint32_t>(index % 32);
  const auto tile = static_cast<std::uint32_t>(index / 32 % 2);
  const std::uint64_t step = index / kQuadsPerStep % product.steps;
  const std::uint64_t strip = index / kQuadsPerStep / product.steps;
  const std::uint32_t g = lane / 4;
  std::byte* place = job.arranged + product.offset +
                     product.offset_of(strip, static_cast<std::uint32_t>(step), step_bytes(kFormat));
  const PackedRow rows[2] = {row_of<kFormat>(job, is_down, strip, tile, g),
                             row_of<kFormat>(job, is_down, strip, tile, g + 8)};
  std::uint32_t words[4];
  auto* quad_at = reinterpret_cast<uint4*>(place + quad_offset(tile, lane));
  if constexpr (kDirection == Direction::restore) {
    const uint4 value = *quad_at;
    words[0] = value.x, words[1] = value.y, words[2] = value.z, words[3] = value.w;
  }
#pragma unroll
  for (std::uint32_t word = 0; word < 4; ++word) {
    const auto column = static_cast<std::uint32_t>(step) * kStepColumns +
                        word_column(kFormat, lane, word);
    if constexpr (kDirection == Direction::arrange) {
      words[word] = pack_word({{read_codes(job.blob + rows[0].codes, column),
                                read_codes(job.blob + rows[1].codes, column)}});
    } else {
      const WordCodes codes = unpack_word(words[word]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::byte* to = job.blob + rows[half].codes + column / 2;
        to[0] = static_cast<std::byte>(codes.rows[half] & 255U);
        to[1] = static_cast<std::byte>(codes.rows[half] >> 8);
      }
    }
  }
  if constexpr (kDirection == Direction::arrange)
    *quad_at = make_uint4(words[0], words[1], words[2], words[3]);
  // Scales: lane t of a row's four takes group t.
  constexpr std::uint32_t kGroups = kFormat == BlockFormat::mxfp4 ? 2 : 4;
  const std::uint32_t group = lane % 4;
  if (group >= kGroups) return;
#pragma unroll
  for (std::uint32_t half = 0; half < 2; ++half) {
    std::byte* packed = job.blob + rows[half].scales + step * kGroups + group;
    std::byte* arranged = place + scale_offset(kFormat, tile, half, g, group);
    if constexpr (kDirection == Direction::restore) {
      *packed = *arranged;
      continue;
    }
    *arranged = *packed;
    if (kFormat != BlockFormat::mxfp4 || *packed != std::byte{0}) continue;
    // 2^-127 is below what the kernel's factors hold: only groups of zeros may have it.
    const std::byte* codes = job.blob + rows[half].codes + step * 32 + group * 16;
    for (int i = 0; i < 16; ++i) {
      if ((codes[i] & std::byte{0x77}) != std::byte{0}) atomicOr(job.problems, 1U);
    }
  }
}

__device__ void copy_float(std::byte* to, const std::byte* from) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = from[i];
}

template <Direction kDirection>
__device__ void scalar(const Job& job, std::uint64_t arranged, std::uint64_t packed,
                       float absent) {
  const bool is_absent = packed == BlobOffsets::kAbsent;
  if constexpr (kDirection == Direction::arrange) {
    if (is_absent) {
      *reinterpret_cast<float*>(job.arranged + arranged) = absent;
    } else {
      copy_float(job.arranged + arranged, job.blob + packed);
    }
  } else if (!is_absent) {
    copy_float(job.blob + packed, job.arranged + arranged);
  }
}

// Grid: quads and scalars / kThreads.
template <BlockFormat kFormat, Direction kDirection>
__global__ void __launch_bounds__(kThreads) convert(const __grid_constant__ Job job) {
  std::uint64_t index = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::uint64_t first = quads_of(job.to.gate_up);
  const std::uint64_t second = quads_of(job.to.down);
  if (index < first) return quad<kFormat, kDirection>(job, job.to.gate_up, false, index);
  index -= first;
  if (index < second) return quad<kFormat, kDirection>(job, job.to.down, true, index);
  index -= second;
  if (index < kMuls) {
    const std::uint64_t packed = index == 0   ? job.packed.gate_mul
                                 : index == 1 ? job.packed.up_mul
                                 : index == 2 ? job.packed.down_mul
                                 : index == 3 ? job.packed.gate_act_mul
                                 : index == 4 ? job.packed.up_act_mul
                                              : job.packed.down_act_mul;
    return scalar<kDirection>(job, job.to.muls + index * 4, packed, 1.0F);
  }
  index -= kMuls;
  if (!job.to.has_bias || index >= 2 * job.inter + job.hidden) return;
  const std::uint64_t side = index < job.inter ? 0 : index < 2 * job.inter ? 1 : 2;
  const std::uint64_t base = side == 0   ? job.packed.gate_bias
                             : side == 1 ? job.packed.up_bias
                                         : job.packed.down_bias;
  scalar<kDirection>(job, job.to.biases + index * 4,
                     base == BlobOffsets::kAbsent ? base : base + (index - side * job.inter) * 4,
                     0.0F);
}

template <Direction kDirection>
int launch(const ArrangeArgs& args) {
  const Job job{.packed = args.offsets,
                .to = arranged(args.shape, args.offsets),
                .inter = args.shape.inter,
                .hidden = args.shape.hidden,
                .blob = args.packed,
                .arranged = args.arranged,
                .problems = args.problems};
  const std::uint64_t quads = quads_of(job.to.gate_up) + quads_of(job.to.down);
  const std::uint64_t all = quads + kMuls + (job.to.has_bias ? 2 * job.inter + job.hidden : 0);
  const auto blocks = static_cast<unsigned>(divide_up(all, kThreads));
  auto* stream = static_cast<cudaStream_t>(args.stream);
  if (args.shape.format == BlockFormat::mxfp4) {
    convert<BlockFormat::mxfp4, kDirection><<<blocks, kThreads, 0, stream>>>(job);
  } else {
    convert<BlockFormat::nvfp4, kDirection><<<blocks, kThreads, 0, stream>>>(job);
  }
  return cudaGetLastError();
}

std::uint64_t stride(const ExpertsShape& shape, const BlobOffsets& offsets) {
  return arranged(shape, offsets).stride;
}

constexpr ExpertArrangement kArrangement{.stride = stride,
                                         .arrange = launch<Direction::arrange>,
                                         .restore = launch<Direction::restore>};

}  // namespace

const ExpertArrangement* arrangement() { return &kArrangement; }

}  // namespace moxie::cuda::sm90
