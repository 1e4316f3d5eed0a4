// SPDX-License-Identifier: Apache-2.0
// NVFP4: global = amax / reach, scale = UE4M3(block amax / (6 global)), code = value / (scale *
// global). All of it fp32, round to nearest even; errors of candidate scales are double.
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <limits>
#include <span>
#include <string>

#include "formats/e4m3.hpp"
#include "moxie/quantize.hpp"
#include "moxie/status.hpp"
#include "quantize/block.hpp"
#include "quantize/fp8_closed.hpp"
#include "quantize/quantise_rows.hpp"
#include "quantize/source_rows.hpp"

namespace moxie {

namespace {

constexpr unsigned kGroup = 16;
constexpr std::uint8_t kScaleOfZeros = 0x38;  // 1.0
constexpr std::uint8_t kLeastScaleCode = 0x01;

// Which scales a recipe uses, and the multiple of the global that a tensor's maximum becomes.
struct ScaleLimits {
  std::uint8_t least = kLeastScaleCode;
  std::uint8_t most = kE4m3MaxCode;
  float global_reach = kE2m1Max * kE4m3Max;
};

ScaleLimits limits_of(Nvfp4Recipe recipe) {
  switch (recipe) {
    case Nvfp4Recipe::four_over_six:
      // A maximum that becomes 4 needs one and a half times the scale: 384 instead of 256.
      return {.global_reach = kE2m1Max * 256.0F};
    case Nvfp4Recipe::fp8_closed:
      return {.least = kLeastClosedScale,
              .most = kMostClosedScale,
              .global_reach = kE2m1Max * decode_ue4m3(kMostClosedScale)};
    case Nvfp4Recipe::amax:
    case Nvfp4Recipe::mse:
      break;
  }
  return {};
}

float global_of(float amax, Nvfp4Recipe recipe) {
  if (amax == 0) return 1.0F;
  return std::max(amax / limits_of(recipe).global_reach, kNvfp4LeastGlobal);
}

std::string shortest(float value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end.ptr};
}

void require_global(float global, Nvfp4Recipe recipe) {
  const float most = decode_ue4m3(limits_of(recipe).most) * global;
  if (global >= kNvfp4LeastGlobal && most <= std::numeric_limits<float>::max()) return;
  throw Error(ErrorCode::input,
              {.code = "MOXIE-Q003",
               .message = "a global scale that can not be used",
               .expected = "a number from 2^-117 on whose product with the largest block scale is "
                           "finite in fp32",
               .got = shortest(global)});
}

// Scale bytes to try, from the largest down.
struct Candidates {
  std::array<std::uint8_t, 20> codes{};
  unsigned count = 0;
  void add(std::uint8_t code) { codes[count++] = code; }
};

std::uint8_t scale_for(float amax, float becomes, float global, const ScaleLimits& limits) {
  const float raw = amax / (becomes * global);
  return encode_ue4m3_sat(std::clamp(raw, decode_ue4m3(limits.least), decode_ue4m3(limits.most)));
}

Candidates candidates_for(float amax, float global, Nvfp4Recipe recipe) {
  const ScaleLimits limits = limits_of(recipe);
  const std::uint8_t centre = scale_for(amax, kE2m1Max, global, limits);
  Candidates found;
  if (recipe == Nvfp4Recipe::four_over_six) found.add(scale_for(amax, 4.0F, global, limits));
  if (recipe == Nvfp4Recipe::amax || recipe == Nvfp4Recipe::four_over_six) {
    found.add(centre);
    return found;
  }
  // Less than 3/4 takes more from the maximum than the others' rounding gives back. 7/4 includes a
  // maximum of 4, however the centre was rounded; beyond, nothing is gained on Gaussian blocks.
  // Eight codes are a factor of two among normal numbers, and more than that below.
  constexpr int kOctave = 8;
  const float centre_value = decode_ue4m3(centre);
  const int least = std::max<int>(limits.least, centre - kOctave);
  for (int code = std::min<int>(limits.most, centre + kOctave); code >= least; --code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const float value = decode_ue4m3(byte);
    if (value < centre_value * 0.75F || value > centre_value * 1.75F) continue;
    if (recipe == Nvfp4Recipe::fp8_closed && !is_fp8_closed(byte)) continue;
    found.add(byte);
  }
  return found;
}

ScaledBlock<kGroup> scale_block(const float* values, std::uint8_t scale, float global) {
  ScaledBlock<kGroup> block;
  const float divisor = decode_ue4m3(scale) * global;
  for (unsigned i = 0; i < kGroup; ++i) block.scaled[i] = values[i] / divisor;
  block.multiplier = static_cast<double>(decode_ue4m3(scale)) * static_cast<double>(global);
  return block;
}

}  // namespace

std::string_view name_of(Nvfp4Recipe recipe) {
  switch (recipe) {
    case Nvfp4Recipe::amax:
      return "amax";
    case Nvfp4Recipe::mse:
      return "mse";
    case Nvfp4Recipe::four_over_six:
      return "46";
    case Nvfp4Recipe::fp8_closed:
      return "fp8-closed";
  }
  return "unknown";
}

float nvfp4_dequant_mul(std::span<const MatrixRef> matrices, Nvfp4Recipe recipe) {
  float amax = 0;
  for (const MatrixRef& matrix : matrices) {
    require_whole_groups(matrix, BlockFormat::nvfp4);
    amax = std::max(amax, finite_amax(matrix));
  }
  return global_of(amax, recipe);
}

Quantised quantise_nvfp4(const MatrixRef& matrix, const Nvfp4Options& options) {
  require_whole_groups(matrix, BlockFormat::nvfp4);
  const Nvfp4Recipe recipe = options.recipe;
  if (options.dequant_mul) require_global(*options.dequant_mul, recipe);
  const float own_amax = finite_amax(matrix);
  const float global = options.dequant_mul.value_or(global_of(own_amax, recipe));

  // The global is itself rounded: a maximum that it was made of is no saturation.
  const auto global_above =
      static_cast<double>(std::bit_cast<float>(std::bit_cast<std::uint32_t>(global) + 1));
  const double most_scale = static_cast<double>(decode_ue4m3(limits_of(recipe).most));
  const double tensor_reach = static_cast<double>(kE2m1Max) * most_scale * global_above;

  Quantised result = quantise_rows(
      matrix, BlockFormat::nvfp4, global,
      [&](const float* values, std::uint8_t* packed, std::uint8_t& scale, QuantStats& stats) {
        const float amax = group_amax(values, kGroup);
        const auto scaled = [&](std::uint8_t byte) { return scale_block(values, byte, global); };
        scale = kScaleOfZeros;
        if (amax > 0) {
          const Candidates candidates = candidates_for(amax, global, recipe);
          scale = best_scale<kGroup>(values, candidates.codes.data(), candidates.count, scaled);
        }
        stats.saturated_blocks += static_cast<double>(amax) > tensor_reach ? 1U : 0U;
        const double reach = static_cast<double>(kE2m1Max * decode_ue4m3(scale)) * global_above;
        encode_block<kGroup>(values, scaled(scale), reach, packed, stats);
      });
  result.stats.raised_globals = global == kNvfp4LeastGlobal ? 1 : 0;
  return result;
}

}  // namespace moxie
