// SPDX-License-Identifier: Apache-2.0
// Eight bytes per step from one or two random words; integers, shifts and table look-ups only.
#include "synth/patterns.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/random.hpp"
#include "formats/bf16.hpp"
#include "formats/e4m3.hpp"
#include "synth/code_tables.hpp"
#include "synth/gguf_tensors.hpp"
#include "synth/stream_words.hpp"
#include "synth/whole_patterns.hpp"

namespace moxie::synth {

namespace {

BlockFormat format_of(const Recipe& recipe, const Tensor& tensor) {
  return tensor.format.value_or(recipe.format);
}

void fill_random_codes(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
                       std::span<std::byte> out) {
  static constexpr ByteTable kLow[2] = {signed_codes(kMxfp4Magnitudes, 0),
                                        signed_codes(kNvfp4Magnitudes, 0)};
  static constexpr ByteTable kHigh[2] = {signed_codes(kMxfp4Magnitudes, 4),
                                         signed_codes(kNvfp4Magnitudes, 4)};
  const auto format = static_cast<std::size_t>(format_of(recipe, tensor));
  const ByteTable& low = kLow[format];
  const ByteTable& high = kHigh[format];
  const Stream stream = stream_of(recipe, tensor, Part::codes);
  fill_words(begin, out, [&](std::uint64_t i) {
    return look_up(low, stream.word(2 * i)) | look_up(high, stream.word(2 * i + 1));
  });
}

void fill_random_scales(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
                        std::span<std::byte> out) {
  const bool is_mxfp4 = format_of(recipe, tensor) == BlockFormat::mxfp4;
  const bool outliers = recipe.pattern == Pattern::outliers;
  const ByteTable& table = is_mxfp4   ? kE8m0Scales
                           : outliers ? kUe4m3ScalesBelowOutliers
                                      : kUe4m3Scales;
  const Stream stream = stream_of(recipe, tensor, Part::scales);
  fill_words(begin, out, [&](std::uint64_t i) {
    const std::uint64_t word = look_up(table, stream.word(2 * i));
    if (!outliers) return word;
    // One word in 256, hence one group in 2048, has an outlier: 2^-1..2^2 or 256..448.
    const std::uint64_t choice = stream.word(2 * i + 1);
    if ((choice & 0xFF) != 0) return word;
    const std::uint64_t scale =
        is_mxfp4 ? kE8m0One - 1 + ((choice >> 16) & 3) : 0x78 + ((choice >> 16) & 0xFF) % 7;
    const unsigned shift = 8 * ((choice >> 8) & 7);
    return (word & ~(std::uint64_t{0xFF} << shift)) | scale << shift;
  });
}

void fill_codes(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
                std::span<std::byte> out) {
  switch (recipe.pattern) {
    case Pattern::normal:
    case Pattern::outliers:
      return fill_random_codes(recipe, tensor, begin, out);
    case Pattern::monotonic:
      // Byte p of the tensor is p mod 256; a word starts at a multiple of 8, so no byte carries.
      return fill_words(begin, out, [](std::uint64_t i) {
        return ((8 * i) & 0xFF) * kEachByte + 0x0706050403020100;
      });
    case Pattern::constant:
      return fill_words(begin, out, [](std::uint64_t) { return 0x22 * kEachByte; });
  }
}

void fill_scales(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
                 std::span<std::byte> out) {
  switch (recipe.pattern) {
    case Pattern::normal:
    case Pattern::outliers:
      return fill_random_scales(recipe, tensor, begin, out);
    case Pattern::monotonic:
      return fill_words(begin, out, [&](std::uint64_t i) { return position_word(tensor, i); });
    case Pattern::constant: {
      const bool is_mxfp4 = format_of(recipe, tensor) == BlockFormat::mxfp4;
      const std::uint64_t one = is_mxfp4 ? kE8m0One : 0x38;
      return fill_words(begin, out, [one](std::uint64_t) { return one * kEachByte; });
    }
  }
}

// Bits of an fp32 scalar. Random ones are 2^exponent times a mantissa that a bijection makes of the
// expert's number, so that no two experts of the first 128 layers share a value. A reciprocal is of
// a multiplier below 1.25 * 2^exponent, which its own reciprocal gives back exactly: rounding moves
// the stored one by at most 2^-25 of 1, hence the multiplier by 1.25^2 * 2^-25, less than half of
// its last bit. Of those no two experts of the first 32 layers share one.
std::uint32_t scalar_bits(const Recipe& recipe, const Tensor& tensor) {
  if (recipe.pattern == Pattern::constant) return std::bit_cast<std::uint32_t>(1.0F);
  const bool is_weight = tensor.content == Content::weight_global;
  // amax / 2688 of weights of deviation 0.016, and of activations whose largest value is near 10.
  int exponent = is_weight ? -15 : -8;
  if (is_weight && recipe.pattern == Pattern::outliers) exponent += kOutlierExponents;
  // Gate and up see the same input and are scaled together: they share both scalars.
  const std::uint64_t is_down = tensor.projection == ProjectionKind::down ? 1 : 0;
  const std::uint64_t index = (tensor.layer << 16) + 2 * tensor.expert + is_down;
  const auto part = is_weight ? Part::weight_global : Part::input_global;
  const std::uint64_t start = Stream(recipe.seed, {static_cast<std::uint64_t>(part)}).word(0);
  const bool inverse = recipe.dialect == DialectKind::compressed_tensors;
  const std::uint64_t mantissa = (index * 0x4F1BBD + start) & (inverse ? 0x1FFFFF : 0x7FFFFF);
  const std::uint32_t bits =
      static_cast<std::uint32_t>(exponent + 127) << 23 | static_cast<std::uint32_t>(mantissa);
  return inverse ? std::bit_cast<std::uint32_t>(1.0F / std::bit_cast<float>(bits)) : bits;
}

// Deviation 0.018: logits over some thousand inputs of unit variance stay of order one.
std::uint64_t router_weight_word(const Stream& stream, std::uint64_t i) {
  std::uint64_t word = 0;
  for (unsigned element = 0; element < 4; ++element) {
    const std::uint64_t random = stream.word(2 * i + element / 2) >> (32 * (element % 2));
    const int sum = centred_sum(static_cast<std::uint32_t>(random));
    word |= std::uint64_t{encode_bf16(static_cast<float>(sum) * 0x1p-13F)} << (16 * element);
  }
  return word;
}

// Deviation 0.018; of outliers, one value in 256 is 64 times as large.
void fill_bf16(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
               std::span<std::byte> out) {
  const Stream stream = stream_of(recipe, tensor, Part::dense_weight);
  const Stream choice = stream_of(recipe, tensor, Part::tile_scales);
  fill_words(begin, out, [&](std::uint64_t i) {
    if (recipe.pattern == Pattern::constant)
      return std::uint64_t{encode_bf16(1.0F)} * 0x0001000100010001;
    if (recipe.pattern == Pattern::normal) return router_weight_word(stream, i);
    const std::uint64_t random = choice.word(i);
    std::uint64_t word = recipe.pattern == Pattern::monotonic ? 0 : router_weight_word(stream, i);
    for (unsigned element = 0; element < 4; ++element) {
      const unsigned shift = 16 * element;
      if (recipe.pattern == Pattern::monotonic) {
        const auto value = static_cast<float>(position_value(tensor, 4 * i + element));
        word |= std::uint64_t{encode_bf16(value - 56.0F)} << shift;
      } else if (((random >> shift) & 0xFF) == 0) {
        const auto bits = static_cast<std::uint16_t>(word >> shift);
        word = (word & ~(std::uint64_t{0xFFFF} << shift)) |
               std::uint64_t{encode_bf16(decode_bf16(bits) * 64.0F)} << shift;
      }
    }
    return word;
  });
}

// Near Gaussian of deviation 74, under scales near 2^-12.
void fill_e4m3(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
               std::span<std::byte> out) {
  const Stream stream = stream_of(recipe, tensor, Part::dense_weight);
  fill_words(begin, out, [&](std::uint64_t i) {
    if (recipe.pattern == Pattern::constant) return 0x38 * kEachByte;
    std::uint64_t word = 0;
    for (unsigned element = 0; element < 8; ++element) {
      const std::uint64_t random = stream.word(4 * i + element / 2) >> (32 * (element % 2));
      const int sum = centred_sum(static_cast<std::uint32_t>(random));
      const std::uint64_t code = recipe.pattern == Pattern::monotonic
                                     ? position_value(tensor, 8 * i + element)
                                     : encode_e4m3_sat(static_cast<float>(sum) * 0.5F);
      word |= code << (8 * element);
    }
    return word;
  });
}

void fill_tile_scales(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
                      std::span<std::byte> out) {
  const Stream stream = stream_of(recipe, tensor, Part::tile_scales);
  fill_words(begin, out, [&](std::uint64_t i) {
    std::uint64_t word = 0;
    for (unsigned half = 0; half < 2; ++half) {
      const std::uint64_t random = stream.word(i) >> (32 * half);
      std::uint32_t bits = std::bit_cast<std::uint32_t>(0x1p-12F);
      if (recipe.pattern == Pattern::constant) bits = std::bit_cast<std::uint32_t>(1.0F);
      if (recipe.pattern == Pattern::normal || recipe.pattern == Pattern::outliers)
        bits |= static_cast<std::uint32_t>(random & 0x7FFFFF);
      if (recipe.pattern == Pattern::outliers && ((random >> 24) & 7) == 0) bits += 6U << 23U;
      word |= std::uint64_t{bits} << (32 * half);
    }
    return word;
  });
}

// Deviation 0.036, small beside scores of order one.
std::uint64_t router_bias_word(const Stream& stream, std::uint64_t i) {
  const std::uint64_t random = stream.word(i);
  const auto bits = [&](unsigned half) {
    const int sum = centred_sum(static_cast<std::uint32_t>(random >> (32 * half)));
    return std::uint64_t{std::bit_cast<std::uint32_t>(static_cast<float>(sum) * 0x1p-12F)};
  };
  return bits(0) | bits(1) << 32;
}

// Deviation 0.29, largest 1: beside products of order one a bias that is lost or doubled shows.
std::uint64_t random_bias_word(const Stream& stream, std::uint64_t i) {
  std::uint64_t word = 0;
  for (unsigned element = 0; element < 4; ++element) {
    const std::uint64_t random = stream.word(2 * i + element / 2) >> (32 * (element % 2));
    const int sum = centred_sum(static_cast<std::uint32_t>(random));
    word |= std::uint64_t{encode_bf16(static_cast<float>(sum) * 0x1p-9F)} << (16 * element);
  }
  return word;
}

void fill_expert_bias(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
                      std::span<std::byte> out) {
  // Four elements, each a function of its position.
  const auto fill_elements = [&](const auto& value_at) {
    fill_words(begin, out, [&](std::uint64_t i) {
      std::uint64_t word = 0;
      for (unsigned element = 0; element < 4; ++element)
        word |= std::uint64_t{encode_bf16(value_at(4 * i + element))} << (16 * element);
      return word;
    });
  };
  switch (recipe.pattern) {
    case Pattern::normal:
    case Pattern::outliers: {
      const Stream stream = stream_of(recipe, tensor, Part::expert_bias);
      return fill_words(begin, out, [&](std::uint64_t i) { return random_bias_word(stream, i); });
    }
    case Pattern::monotonic:
      // As scales count, around zero: -7/8 to 7/8 in steps of 1/64.
      return fill_elements([&](std::uint64_t position) {
        const auto step = static_cast<int>((31 * position + tensor.number) % 113);
        return static_cast<float>(step - 56) / 64.0F;
      });
    case Pattern::constant:
      return fill_elements([](std::uint64_t) { return 1.0F; });
  }
}

// The ids of one token are an arithmetic progression modulo `experts` that is too short to meet
// itself: all distinct.
std::uint64_t token_table_word(const Recipe& recipe, const Stream& stream, std::uint64_t i) {
  const std::uint64_t random = stream.word(i / recipe.top_k);
  const std::uint64_t steps = recipe.top_k > 1 ? (recipe.experts - 1) / (recipe.top_k - 1) : 1;
  const std::uint64_t first = (random & 0xFFFFFFFF) * recipe.experts >> 32;
  const std::uint64_t step = 1 + ((random >> 32) * steps >> 32);
  return (first + i % recipe.top_k * step) % recipe.experts;
}

}  // namespace

void fill(const Recipe& recipe, const Tensor& tensor, std::uint64_t begin,
          std::span<std::byte> out) {
  if (recipe.dialect == DialectKind::gguf && fill_gguf(recipe, tensor, begin, out)) return;
  switch (tensor.content) {
    case Content::dense_weight:
      return tensor.entry.dtype == DType::f8_e4m3 ? fill_e4m3(recipe, tensor, begin, out)
                                                  : fill_bf16(recipe, tensor, begin, out);
    case Content::tile_scales:
      return fill_tile_scales(recipe, tensor, begin, out);
    case Content::codes:
      return fill_codes(recipe, tensor, begin, out);
    case Content::block_scales:
      return fill_scales(recipe, tensor, begin, out);
    case Content::weight_global:
    case Content::input_global:
      return fill_words(begin, out, [bits = scalar_bits(recipe, tensor)](std::uint64_t) {
        return std::uint64_t{bits};
      });
    case Content::router_weight: {
      const Stream stream = stream_of(recipe, tensor, Part::router_weight);
      return fill_words(begin, out, [&](std::uint64_t i) { return router_weight_word(stream, i); });
    }
    case Content::router_bias: {
      const Stream stream = stream_of(recipe, tensor, Part::router_bias);
      return fill_words(begin, out, [&](std::uint64_t i) { return router_bias_word(stream, i); });
    }
    case Content::expert_bias:
      return fill_expert_bias(recipe, tensor, begin, out);
    case Content::logit_bias: {
      const Stream stream = stream_of(recipe, tensor, Part::router_bias);
      return fill_words(begin, out, [&](std::uint64_t i) { return random_bias_word(stream, i); });
    }
    case Content::token_table: {
      const Stream stream = stream_of(recipe, tensor, Part::token_table);
      return fill_words(begin, out,
                        [&](std::uint64_t i) { return token_table_word(recipe, stream, i); });
    }
    case Content::biases: {
      const Stream stream = stream_of(recipe, tensor, Part::biases);
      return fill_words(begin, out, [&](std::uint64_t i) { return router_bias_word(stream, i); });
    }
    case Content::tile_exponents:
    case Content::norm:
    case Content::mix_weight:
    case Content::mix_base:
    case Content::mix_scale:
    case Content::sink:
    case Content::position_bias:
      return fill_whole(recipe, tensor, begin, out);
    case Content::blocks:
    case Content::weight_globals:
    case Content::input_globals:
      return;  // fill_gguf() has done them
  }
}

}  // namespace moxie::synth
