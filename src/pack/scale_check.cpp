// SPDX-License-Identifier: Apache-2.0
// What is legal is formats' word: bad codes are those from some code on, so that a maximum finds
// them.
#include "pack/scale_check.hpp"

#include <algorithm>
#include <cstdio>
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
  refuse_scale(layer.format,
               {.file = checkpoint.files()[tensor.file].path.string(),
                .tensor = tensor.name,
                .layer = layer.layer,
                .expert = expert},
               row, group, got);
}

std::span<const std::byte> row_bytes(const Checkpoint& checkpoint, const RowsView& view,
                                     std::uint64_t row) {
  return checkpoint.bytes(*view.tensor)
      .subspan(view.offset + row * view.row_stride, view.row_bytes);
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
