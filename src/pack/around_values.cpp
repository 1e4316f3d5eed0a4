// SPDX-License-Identifier: Apache-2.0
// A number that is not finite has all exponent bits; of E4M3, which has no infinity, all bits.
#include "pack/around_values.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "pack/collect.hpp"
#include "pack/scale_check.hpp"

namespace moxie {

namespace {

template <class Word>
std::optional<std::uint64_t> first_with(std::span<const std::byte> bytes, Word mask) {
  const std::uint64_t count = bytes.size() / sizeof(Word);
  for (std::uint64_t i = 0; i < count; ++i) {
    Word word = 0;
    std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
    if ((word & mask) == mask) return i;
  }
  return std::nullopt;
}

// Values of a row; 1 of a scalar.
std::uint64_t row_values(const Shape& shape) {
  std::uint64_t values = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) values *= shape[i];
  return std::max<std::uint64_t>(values, 1);
}

std::string place_text(const TensorInfo& tensor, std::uint64_t value) {
  if (tensor.shape.size() < 2) return std::to_string(value);
  const std::uint64_t width = row_values(tensor.shape);
  return "row " + std::to_string(value / width) + ", column " + std::to_string(value % width);
}

[[noreturn]] void refuse_router(Place where, std::string message, std::string expected,
                                std::string got) {
  throw Error(ErrorCode::input, {.code = "MOXIE-M016",
                                 .message = std::move(message),
                                 .where = std::move(where),
                                 .expected = std::move(expected),
                                 .got = std::move(got),
                                 .hint = "the checkpoint is corrupt; download the file again"});
}

template <class Id>
void check_ids(const TensorInfo& tensor, const AroundPlace& place, std::uint64_t first_row,
               std::span<const std::byte> rows) {
  for (std::uint64_t i = 0; i < rows.size() / sizeof(Id); ++i) {
    Id id = 0;
    std::memcpy(&id, rows.data() + i * sizeof id, sizeof id);
    if (id >= 0 && static_cast<std::uint64_t>(id) < place.experts) continue;
    refuse_router(place.where, "the token table names an expert that does not exist",
                  "ids from 0 to " + std::to_string(place.experts - 1),
                  std::to_string(id) + " for token " +
                      std::to_string(first_row + i / row_values(tensor.shape)));
  }
}

}  // namespace

std::optional<std::uint64_t> first_not_finite(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::f32:
      return first_with<std::uint32_t>(bytes, 0x7F800000U);
    case DType::f16:
      return first_with<std::uint16_t>(bytes, 0x7C00U);
    case DType::bf16:
      return first_with<std::uint16_t>(bytes, 0x7F80U);
    case DType::f8_e4m3:
      return first_with<std::uint8_t>(bytes, 0x7FU);
    default:
      return std::nullopt;
  }
}

AroundPlace place_around(const MoeModel& model, const TensorInfo& tensor,
                         const LayerExperts* layer) {
  AroundPlace place{.where = {.file = model.checkpoint.files()[tensor.file].path.string(),
                              .tensor = tensor.name}};
  if (layer == nullptr) return place;
  place.where.layer = layer->layer;
  place.experts = layer->experts.size();
  return place;
}

bool is_router_tensor(std::string_view name) {
  return name.find(".ffn.gate.") != std::string_view::npos;
}

void check_router_rows(const TensorInfo& tensor, const AroundPlace& place, std::uint64_t first_row,
                       std::span<const std::byte> rows) {
  if (is_router_tensor(tensor.name)) check_router_numbers(tensor, place, first_row, rows);
}

void check_router_numbers(const TensorInfo& tensor, const AroundPlace& place,
                          std::uint64_t first_row, std::span<const std::byte> rows) {
  if (tensor.dtype == DType::i64 && place.experts > 0)
    return check_ids<std::int64_t>(tensor, place, first_row, rows);
  if (tensor.dtype == DType::i32 && place.experts > 0)
    return check_ids<std::int32_t>(tensor, place, first_row, rows);
  const auto bad = first_not_finite(tensor.dtype, rows);
  if (!bad) return;
  refuse_router(
      place.where, "a router tensor holds a value that is no finite number", "finite numbers",
      "NaN or infinity at " + place_text(tensor, first_row * row_values(tensor.shape) + *bad));
}

std::optional<Finding> non_number_of(const TensorInfo& tensor, Place where,
                                     std::span<const std::byte> bytes) {
  const auto bad = first_not_finite(tensor.dtype, bytes);
  if (!bad) return std::nullopt;
  return Finding{.code = "MOXIE-K018",
                 .message = "the tensor holds a value that is no finite number",
                 .where = std::move(where),
                 .expected = "finite numbers",
                 .got = "NaN or infinity at " + place_text(tensor, *bad),
                 .hint = "the checkpoint is corrupt; download the file again"};
}

std::vector<Finding> check_around_values(const TensorInfo& tensor, const AroundPlace& place,
                                         std::span<const std::byte> bytes) {
  std::vector<Finding> findings;
  collect(findings, [&] {
    if (tensor.dtype != DType::f8_e8m0) return;
    const std::size_t bad = first_bad_scale(BlockFormat::mxfp4, bytes);  // E8M0 all the same
    if (bad == bytes.size()) return;
    const std::uint64_t width = row_values(tensor.shape);
    refuse_scale(BlockFormat::mxfp4, place.where, bad / width, bad % width, bytes[bad]);
  });
  collect(findings, [&] { check_router_rows(tensor, place, 0, bytes); });
  if (!findings.empty() || is_router_tensor(tensor.name)) return findings;
  if (auto finding = non_number_of(tensor, place.where, bytes))
    findings.push_back(*std::move(finding));
  return findings;
}

}  // namespace moxie
