// SPDX-License-Identifier: Apache-2.0
// Every value is exact in fp32 at each step, so that contracted arithmetic changes nothing.
#include "synth/whole_patterns.hpp"

#include <bit>

#include "formats/bf16.hpp"
#include "synth/stream_words.hpp"

namespace moxie::synth {

namespace {

// Scales of FP8 weights near 2^-12, as in a tensor whose tiles differ: with codes of deviation 74
// the weights have one of 0.023. Of outliers one tile in eight is 2^6 larger.
constexpr ByteTable kTileExponents =
    spread(std::array<unsigned, 5>{16, 72, 120, 40, 8}, kE8m0One - 14);
static_assert(all_below(kTileExponents, kE8m0NanCode - kOutlierExponents),
              "the counts sum to 256 and no scale is NaN");

std::uint64_t tile_exponent_word(const Recipe& recipe, const Tensor& tensor, const Stream& stream,
                                 std::uint64_t i) {
  if (recipe.pattern == Pattern::constant) return kE8m0One * kEachByte;
  if (recipe.pattern == Pattern::monotonic) return position_word(tensor, i);
  std::uint64_t word = look_up(kTileExponents, stream.word(2 * i));
  if (recipe.pattern == Pattern::normal) return word;
  const std::uint64_t choice = stream.word(2 * i + 1);
  for (unsigned shift = 0; shift < 64; shift += 8) {
    if (((choice >> shift) & 7) == 0) word += std::uint64_t{kOutlierExponents} << shift;
  }
  return word;
}

// -ln(copies - 1) within 0.06, linear between powers of two: as a hyper-connection's base it gives
// every copy of the residual an equal share of the input.
float equal_share_base(std::uint64_t copies) {
  if (copies < 2) return 0;
  const std::uint64_t others = copies - 1;
  const unsigned exponent = static_cast<unsigned>(std::bit_width(others)) - 1;
  const float log2 = static_cast<float>(exponent) - 1.0F +
                     static_cast<float>(others) / static_cast<float>(std::uint64_t{1} << exponent);
  return -0.6875F * log2;
}

// `random` has 32 bits. Deviations are those of trained models as far as they matter: mixes stay
// near the equal ones, softmax terms of order one.
float normal_value(const Recipe& recipe, const Tensor& tensor, std::uint64_t position,
                   std::uint32_t random) {
  const auto sum = static_cast<float>(centred_sum(random));
  switch (tensor.content) {
    case Content::norm:
      return 1.0F + sum * 0x1p-11F;  // deviation 0.072
    case Content::mix_weight:
      return sum * 0x1p-15F;  // 0.0045: over 16384 normalised inputs 0.6
    case Content::mix_base: {
      const std::uint64_t copies = recipe.whole->config.copies;
      return (position < copies ? equal_share_base(copies) : 0.0F) + sum * 0x1p-12F;
    }
    case Content::mix_scale:
      return 0.25F + static_cast<float>(random & 0xFF) * 0x1p-10F;  // below 0.5
    case Content::sink:
      return sum * 0x1p-8F;  // deviation 0.58, largest 2
    default:
      return sum * 0x1p-9F;  // position_bias: 0.29, largest 1
  }
}

// The pattern's value of one element.
float value_at(const Recipe& recipe, const Tensor& tensor, const Stream& stream,
               std::uint64_t position) {
  if (recipe.pattern == Pattern::constant) return 1;
  if (recipe.pattern == Pattern::monotonic)
    return static_cast<float>(position_value(tensor, position)) - 56.0F;
  const std::uint64_t random = stream.word(position / 2) >> (32 * (position % 2));
  return normal_value(recipe, tensor, position, static_cast<std::uint32_t>(random));
}

}  // namespace

void fill_whole(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
                std::span<std::byte> out) {
  const Stream stream = stream_of(recipe, tensor, Part::elements);
  if (tensor.content == Content::tile_exponents) {
    return fill_words(
        begin, out, [&](std::uint64_t i) { return tile_exponent_word(recipe, tensor, stream, i); });
  }
  const bool is_bf16 = tensor.entry.dtype == DType::bf16;
  const unsigned bits = is_bf16 ? 16 : 32;
  fill_words(begin, out, [&](std::uint64_t i) {
    std::uint64_t word = 0;
    for (unsigned shift = 0; shift < 64; shift += bits) {
      const float value = value_at(recipe, tensor, stream, 64 / bits * i + shift / bits);
      const std::uint64_t element =
          is_bf16 ? std::uint64_t{encode_bf16(value)} : std::bit_cast<std::uint32_t>(value);
      word |= element << shift;
    }
    return word;
  });
}

}  // namespace moxie::synth
