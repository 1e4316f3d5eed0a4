// SPDX-License-Identifier: Apache-2.0
// The inner loops over a type of lanes, included inside the target region of each instruction set.
//
// Lanes has 16 floats (Floats), 8 doubles (Doubles) with + - *, and 4 doubles (Quad): an NVFP4
// block is one Floats, an MXFP4 group two. Every sum has an order that does not depend on their
// width: errors of a candidate scale go into 4 partial sums by column modulo 4, the statistics of a
// row into 8 by column modulo 8; partial sums are then added in pairs.
//
// A file with a region includes row_scalars.hpp before it: here, inside, it comes too late.
#pragma once

#include "quantize/row_scalars.hpp"

namespace moxie {

template <class Lanes>
struct RowKernel {
  using Floats = typename Lanes::Floats;
  using Doubles = typename Lanes::Doubles;
  using Quad = typename Lanes::Quad;

  // kParts * 16 values.
  template <unsigned kParts>
  struct Block {
    Floats values[kParts];
    Floats magnitudes[kParts];
    float amax;
  };

  // No member has an initialiser: g++ gives implicit constructors no region.
  struct Sums {
    Doubles signal;
    Doubles noise;
    Doubles max_error;
  };

  // 16 values from column `col` on.
  template <DType kType>
  static Floats load(const std::byte* row, std::uint64_t col) {
    if constexpr (kType == DType::bf16) {
      return Lanes::load_bf16(row + 2 * col);
    } else {
      return Lanes::load_f32(row + 4 * col);
    }
  }

  template <unsigned kParts, DType kType>
  static Block<kParts> load_block(const std::byte* row, std::uint64_t col) {
    Block<kParts> block;
    for (std::uint64_t part = 0; part < kParts; ++part) {
      block.values[part] = load<kType>(row, col + 16 * part);
      block.magnitudes[part] = Lanes::magnitude(block.values[part]);
    }
    Floats most = block.magnitudes[0];
    for (std::uint64_t part = 1; part < kParts; ++part)
      most = Lanes::larger(most, block.magnitudes[part]);
    block.amax = Lanes::largest_of(most);
    return block;
  }

  template <unsigned kParts>
  static double squared_error(const Block<kParts>& block, const BlockScale& scale) {
    const Doubles multiplier = Lanes::all(scale.multiplier);
    Quad sums = Lanes::quad_zeros();
    for (const Floats& magnitudes : block.magnitudes) {
      const auto nearest = Lanes::nearest(Lanes::divided(magnitudes, scale.divisor));
      const Doubles low = Lanes::low(magnitudes) - Lanes::low(nearest.values) * multiplier;
      const Doubles high = Lanes::high(magnitudes) - Lanes::high(nearest.values) * multiplier;
      sums = Lanes::add_fours(sums, low * low);
      sums = Lanes::add_fours(sums, high * high);
    }
    return Lanes::sum_of(sums);
  }

  // The best of `count` scale bytes, which are ordered from the largest scale down: the first with
  // the least error.
  template <unsigned kParts, class ScaleOf>
  static std::uint8_t best_scale(const Block<kParts>& block, const std::uint8_t* candidates,
                                 unsigned count, const ScaleOf& scale_of) {
    std::uint8_t best = candidates[0];
    if (count == 1) return best;
    double least = squared_error(block, scale_of(best));
    for (unsigned i = 1; i < count; ++i) {
      const double error = squared_error(block, scale_of(candidates[i]));
      if (error < least) {
        least = error;
        best = candidates[i];
      }
    }
    return best;
  }

  static void add_errors(Sums& sums, Doubles magnitudes, Doubles nearest, Doubles multiplier) {
    const Doubles error = magnitudes - nearest * multiplier;
    sums.signal = sums.signal + magnitudes * magnitudes;
    sums.noise = sums.noise + error * error;
    sums.max_error = Lanes::larger(sums.max_error, Lanes::magnitude(error));
  }

  // Writes the codes of a block. A value above `reach` is clipped.
  template <unsigned kParts>
  static void encode(const Block<kParts>& block, const BlockScale& scale, double reach,
                     std::uint8_t* packed,  // [kParts * 8]
                     Sums& sums, QuantStats& stats) {
    const Doubles multiplier = Lanes::all(scale.multiplier);
    const float clip_above = float_not_above(reach);
    unsigned used = 0;
    for (std::uint64_t part = 0; part < kParts; ++part) {
      const Floats magnitudes = block.magnitudes[part];
      const auto nearest = Lanes::nearest(Lanes::divided(magnitudes, scale.divisor));
      Lanes::write_codes(nearest.codes, block.values[part], packed + 8 * part);
      add_errors(sums, Lanes::low(magnitudes), Lanes::low(nearest.values), multiplier);
      add_errors(sums, Lanes::high(magnitudes), Lanes::high(nearest.values), multiplier);
      const unsigned coded = Lanes::count_above(nearest.values, 0);
      used += coded;
      stats.flushed_elems += Lanes::count_above(magnitudes, 0) - coded;
      stats.clipped_elems += Lanes::count_above(magnitudes, clip_above);
    }
    stats.zero_blocks += block.amax == 0 ? 1U : 0U;
    stats.underflowed_blocks += block.amax > 0 && used == 0 ? 1U : 0U;
  }

  static void finish(const Sums& sums, const QuantRow& row, std::uint64_t blocks) {
    QuantStats& stats = *row.stats;
    stats.elems += row.cols;
    stats.blocks += blocks;
    double signal[8];
    double noise[8];
    double errors[8];
    Lanes::store(sums.signal, signal);
    Lanes::store(sums.noise, noise);
    Lanes::store(sums.max_error, errors);
    stats.signal += sum_in_pairs(signal);
    stats.noise += sum_in_pairs(noise);
    for (const double error : errors)
      stats.max_error = error > stats.max_error ? error : stats.max_error;
  }

  static std::uint8_t nvfp4_scale_of(const Block<1>& block, const Nvfp4Settings& settings) {
    const float global = settings.global;
    const ScaleLimits limits = limits_of(settings.recipe);
    const auto scale_of = [&](std::uint8_t byte) { return nvfp4_block_scale(byte, global); };
    const auto best_of = [&](const Candidates& tried) {
      return best_scale(block, tried.codes.data(), tried.count, scale_of);
    };
    const std::uint8_t centre = scale_for(block.amax, kE2m1Max, global, limits);
    switch (settings.recipe) {
      case Nvfp4Recipe::amax:
        break;
      case Nvfp4Recipe::mse:
        return best_of(kMseCandidates[centre]);
      case Nvfp4Recipe::fp8_closed:
        return best_of(kFp8ClosedCandidates[centre]);
      case Nvfp4Recipe::four_over_six: {
        const std::uint8_t tried[2] = {scale_for(block.amax, 4.0F, global, limits), centre};
        return best_scale(block, tried, 2, scale_of);
      }
    }
    return centre;
  }

  template <DType kType>
  static void nvfp4_row(const QuantRow& row, const Nvfp4Settings& settings) {
    const auto* values = static_cast<const std::byte*>(row.values);
    const std::uint64_t blocks = row.cols / 16;
    QuantStats stats;
    Sums sums = {Lanes::zeros(), Lanes::zeros(), Lanes::zeros()};
    for (std::uint64_t i = 0; i < blocks; ++i) {
      const Block<1> block = load_block<1, kType>(values, 16 * i);
      const std::uint8_t byte =
          block.amax > 0 ? nvfp4_scale_of(block, settings) : kNvfp4ScaleOfZeros;
      row.scales[i] = byte;
      const double reach =
          static_cast<double>(kE2m1Max * kUe4m3Values[byte]) * settings.global_above;
      encode(block, nvfp4_block_scale(byte, settings.global), reach, row.codes + 8 * i, sums,
             stats);
      stats.saturated_blocks += static_cast<double>(block.amax) > settings.tensor_reach ? 1U : 0U;
    }
    row.stats->merge(stats);
    finish(sums, row, blocks);
  }

  template <DType kType>
  static void mxfp4_row(const QuantRow& row, Mxfp4Recipe recipe) {
    const auto* values = static_cast<const std::byte*>(row.values);
    const std::uint64_t groups = row.cols / 32;
    QuantStats stats;
    Sums sums = {Lanes::zeros(), Lanes::zeros(), Lanes::zeros()};
    for (std::uint64_t i = 0; i < groups; ++i) {
      const Block<2> block = load_block<2, kType>(values, 32 * i);
      std::uint8_t byte = block.amax > 0 ? mxfp4_scale_for(block.amax, recipe) : kMxfp4ScaleOfZeros;
      if (recipe == Mxfp4Recipe::mse && byte > 0) {
        // Twice the scale has no value up to the maximum that this one lacks. A quarter of it takes
        // more from the maximum, at least half of it, than 31 roundings can give back.
        const std::uint8_t tried[2] = {byte, static_cast<std::uint8_t>(byte - 1)};
        byte = best_scale(block, tried, 2, mxfp4_block_scale);
      }
      row.scales[i] = byte;
      const BlockScale scale = mxfp4_block_scale(byte);
      encode(block, scale, static_cast<double>(kE2m1Max) * scale.multiplier, row.codes + 16 * i,
             sums, stats);
    }
    row.stats->merge(stats);
    finish(sums, row, groups);
  }

  template <DType kType>
  static std::uint32_t largest_bits_in(const std::byte* values, std::uint64_t cols) {
    Floats most = Lanes::magnitude(load<kType>(values, 0));
    for (std::uint64_t col = 16; col < cols; col += 16)
      most = Lanes::larger_bits(most, Lanes::magnitude(load<kType>(values, col)));
    return Lanes::largest_bits_of(most);
  }

  static std::uint32_t largest_bits(const void* values, DType dtype, std::uint64_t cols) {
    if (cols == 0) return 0;
    const auto* bytes = static_cast<const std::byte*>(values);
    return dtype == DType::bf16 ? largest_bits_in<DType::bf16>(bytes, cols)
                                : largest_bits_in<DType::f32>(bytes, cols);
  }

  static void nvfp4(const QuantRow& row, const Nvfp4Settings& settings) {
    row.dtype == DType::bf16 ? nvfp4_row<DType::bf16>(row, settings)
                             : nvfp4_row<DType::f32>(row, settings);
  }

  static void mxfp4(const QuantRow& row, Mxfp4Recipe recipe) {
    row.dtype == DType::bf16 ? mxfp4_row<DType::bf16>(row, recipe)
                             : mxfp4_row<DType::f32>(row, recipe);
  }
};

}  // namespace moxie
