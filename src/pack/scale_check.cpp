// SPDX-License-Identifier: Apache-2.0
// What is legal is formats' word: bad codes are those from some code on, so that a maximum finds
// them.
#include "pack/scale_check.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "formats/act_quant.hpp"
#include "formats/block_format.hpp"

namespace moxie {

std::size_t first_bad_scale(BlockFormat format, std::span<const std::byte> scales) {
  const auto is_good = [format](std::byte scale) {
    return scale_is_valid(format, std::to_integer<std::uint8_t>(scale));
  };
  // Whole blocks first: a maximum needs no branch and vectorises.
  constexpr std::size_t kBlock = 256;
  std::size_t at = 0;
  for (; at + kBlock <= scales.size(); at += kBlock) {
    std::byte most{0};
    for (std::size_t i = 0; i < kBlock; ++i) most = std::max(most, scales[at + i]);
    if (!is_good(most)) break;
  }
  while (at < scales.size() && is_good(scales[at])) ++at;
  return at;
}

void refuse_scale(BlockFormat format, Place where, std::uint64_t row, std::uint64_t group,
                  std::byte got) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  const auto value = std::to_integer<unsigned>(got);
  const bool mxfp4 = format == BlockFormat::mxfp4;
  throw Error(
      ErrorCode::input,
      {.code = "MOXIE-K003",
       .message = std::string(mxfp4 || value == 0x7F || value == 0xFF ? "scale is NaN"
                                                                      : "scale has a sign") +
                  " at row " + std::to_string(row) + ", group " + std::to_string(group),
       .where = std::move(where),
       .expected = mxfp4 ? "an E8M0 code below 0xFF" : "a UE4M3 code below 0x7F",
       .got = std::string("0x") + kDigits[value >> 4U] + kDigits[value & 15U],
       .hint = "the checkpoint is corrupt; download the file again"});
}

void refuse_scale(const Checkpoint& checkpoint, const LayerExperts& layer, std::uint64_t expert,
                  const TensorInfo& tensor, std::uint64_t row, std::uint64_t group, std::byte got) {
  if (layer.recast) {
    throw Error(ErrorCode::input,
                {.code = "MOXIE-K011",
                 .message = "the experts are no exact cast of MXFP4: block scales at row " +
                            std::to_string(row) + " of group " + std::to_string(group),
                 .where = place_of(checkpoint, layer, expert, tensor),
                 .expected = "two equal powers of two",
                 .got = "others",
                 .hint = "the certificate is of other bytes; write it again, or plan without it"});
  }
  refuse_scale(layer.format, place_of(checkpoint, layer, expert, tensor), row, group, got);
}

void check_tile_scales(const Checkpoint& checkpoint, const TensorInfo& tensor,
                       const TensorPart& part, std::uint64_t first_row,
                       std::span<const std::byte> out) {
  const std::size_t bad = first_bad_scale(BlockFormat::mxfp4, out);  // E8M0 all the same
  if (bad == out.size()) return;
  refuse_scale(BlockFormat::mxfp4,
               {.file = checkpoint.files()[tensor.file].path.string(), .tensor = tensor.name},
               part.first_row + first_row + bad / part.row_bytes,
               part.first_byte + bad % part.row_bytes, out[bad]);
}

Place place_of(const Checkpoint& checkpoint, const LayerExperts& layer, std::uint64_t expert,
               const TensorInfo& tensor) {
  return {.file = checkpoint.files()[tensor.file].path.string(),
          .tensor = tensor.name,
          .layer = layer.layer,
          .expert = expert};
}

std::size_t first_bad_bias(std::span<const std::byte> biases) {
  const std::size_t count = biases.size() / sizeof(float);
  std::size_t at = 0;
  while (at < count && std::isfinite(bias_at(biases, at))) ++at;
  return at;
}

float bias_at(std::span<const std::byte> biases, std::size_t at) {
  float value = 0;
  std::memcpy(&value, biases.data() + at * sizeof value, sizeof value);
  return value;
}

void check_biases(std::span<const std::byte> biases, std::uint64_t first_row, const Place& where) {
  const std::size_t bad = first_bad_bias(biases);
  if (bad == biases.size() / sizeof(float)) return;
  throw Error(ErrorCode::input,
              {.code = "MOXIE-K010",
               .message = "bias is no finite number at row " + std::to_string(first_row + bad),
               .where = where,
               .expected = "a finite number",
               .got = std::to_string(bias_at(biases, bad)),
               .hint = "the checkpoint is corrupt; download the file again"});
}

float read_global(const Checkpoint& checkpoint, const LayerExperts& layer, std::uint64_t expert,
                  ProjectionKind projection, const ScalarRef& scalar) {
  if (!scalar.present()) {
    throw Error(
        ErrorCode::input,
        {.code = "MOXIE-M006",
         .message = std::string(name_of(projection)) + " has no global scale",
         .where = {.file = checkpoint.path().string(), .layer = layer.layer, .expert = expert},
         .expected = "an f32 scalar",
         .got = "none"});
  }
  return read_scalar_of(checkpoint, layer, expert, scalar);
}

float read_scalar_of(const Checkpoint& checkpoint, const LayerExperts& layer, std::uint64_t expert,
                     const ScalarRef& scalar) {
  try {
    return read_scalar(checkpoint, scalar);
  } catch (const Error& error) {
    Finding finding = error.findings().front();
    finding.where.layer = layer.layer;
    finding.where.expert = expert;
    throw Error(error.code(), std::move(finding));
  }
}

float read_act_scale(const Checkpoint& checkpoint, const LayerExperts& layer, std::uint64_t expert,
                     ProjectionKind projection, const ScalarRef& scalar) {
  const auto refuse = [&](Finding finding, ErrorCode code) {
    finding.message = std::string(name_of(projection)) + ": " + finding.message;
    throw Error(code, std::move(finding));
  };
  float value = 0;
  try {
    value = read_scalar_of(checkpoint, layer, expert, scalar);
  } catch (const Error& error) {
    refuse(error.findings().front(), error.code());
  }
  if (is_act_scale(value)) return value;
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(value));
  refuse({.code = "MOXIE-M007",
          .message = "an activation scale is out of the range in which fp32 can use it",
          .where = {.file = checkpoint.files()[scalar.tensor->file].path.string(),
                    .tensor = scalar.tensor->name,
                    .layer = layer.layer,
                    .expert = expert},
          .expected = "2^-117 to 2^116",
          .got = text,
          .hint = "use --act-scale warmup, row or dynamic"},
         ErrorCode::input);
  return value;
}

}  // namespace moxie
